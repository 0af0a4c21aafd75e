"""What another cache would do: the real scheduler and cache with a simulated worker and clock.

python -m radixserve.simulate TRACE. No torch, no sockets; the same input gives the same output.
"""
