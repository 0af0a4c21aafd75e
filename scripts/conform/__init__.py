"""The parts of scripts/conformance, which runs public suites of tests against a server.

`command` reads the arguments, goes through the suites and prints. `suites` is the table of them:
how each is called and what its report says. `llama_cpp` brings llama.cpp's tests, written for
another server, to this one, and `adapter` is loaded into them. `install` makes the environment
with the suites, `server` starts what they are run against, `results` judges.
"""
