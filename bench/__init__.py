"""Measurements of radixserve and of any OpenAI-compatible server; LOG.md says how to record one."""
