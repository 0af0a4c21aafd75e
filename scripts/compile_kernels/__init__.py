"""The parts of scripts/compile-kernels, which compiles the kernels ahead of time without a GPU.

`command` reads the arguments and chooses the release of triton, `gate` runs. `forms` is the table
of what is compiled, `cover` chooses combinations for it, `reports` compiles and judges, `kept`
knows what need not be compiled again.
"""
