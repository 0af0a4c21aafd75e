"""The parts of scripts/test-clients: agents as people use them, against a server of ours.

A model of 135 million parameters calls no tool of its own accord. So the clients do not speak to
the server but to a small proxy, which adds one field to each request and changes nothing else: to
the first that offers the tool, that the answer is this call of it (`structured_outputs.choice`); to
all others, that it is one short sentence (`structured_outputs.regex`), so that nobody waits for a
small model to end. The call, what the client makes of it, its second request and the words of the
answers are real, and so are the prompts.

Those prompts are up to 20,000 tokens long, and SmolLM2 was trained on 8,192. The server gets a copy
of its folder whose config allows 65,536: positions beyond those trained make its words worse, and
cost and caching stay what they are. Its template prints the tools, which SmolLM2's own does not.

`agents` says how each client is called, `install` gets them, `proxy` forces and listens, `server`
starts ours, `command` runs all.
"""
