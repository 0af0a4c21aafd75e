"""`radixserve chat`: a conversation in the terminal, over HTTP, that branches as the cache does.

`tree.py` is the conversation, `client.py` speaks to the server, `screen.py` to the terminal,
`chat.py` joins them. Knows the server by its API alone.
"""
