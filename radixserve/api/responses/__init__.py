"""`/v1/responses`: OpenAI's Responses, as Open Responses writes them down.

A request becomes one of chat (`fields.py`, `items.py`, `tools.py`), so that prompts, sampling and
readings are the same. `output.py` makes items and stream events of the answer, `resource.py` the
response object, `respond.py` runs it all, `store.py` remembers what may be continued.
"""
