"""Prefix indexes behind one interface, so that `bench.scale` asks all of them for the same work.

`shape`, `index`, `absent` and `child` need the standard library only: they also run in the
environments of other engines, each index in a process of its own.
"""
