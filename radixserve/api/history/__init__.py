"""Token-exact history: an answer that comes back in a later prompt is the tokens that were made.

Clients send an assistant's turn back in their own spelling: arguments spaced anew, whitespace cut,
reasoning left out. Rendered and encoded it would be other tokens, and all behind it a miss. So
answers are remembered (`store.py`) under the conversation that they belong to (`keys.py`); the next
prompt gets back what its client dropped, and where the template prints a remembered answer, its own
tokens stand in for the text (`splice.py`). What a template does not print, none of this puts in:
where it leaves out the reasoning of earlier turns, the next prompt's beginning is computed ahead
(`ahead.py`).
"""
