"""Tokens to pages: which requests run, which pages they get, what each step computes."""
