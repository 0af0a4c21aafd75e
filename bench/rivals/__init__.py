"""Other engines' servers beside this one: how each is started, measured, stopped and reported.

Used by `bench.peers`.
"""
