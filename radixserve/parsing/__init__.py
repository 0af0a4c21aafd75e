"""What a model's text means: reasoning, tool calls, and the rest, which is content.

Formats are data (`formats.py`); a few streaming machines read them. Pure Python: nothing here
knows of tokens, sockets or HTTP. `Parser` is for answers, `detect` for chat templates, `calls` for
history.
"""
