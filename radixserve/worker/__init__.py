"""The worker process: pages to logits to next tokens. Owns the K/V tensors, the model, sampling.

Knows slots and pages, never requests, text or policy: the same `RunStep`s give the same result.
"""
