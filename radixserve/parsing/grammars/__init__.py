"""What an answer that calls tools must fit, as grammars in llguidance's dialect of Lark.

`forced`: answers that are calls and nothing else. `strict`: answers that may call, where calls fit
the schemas of strict tools. Nothing here needs the package that compiles them.
"""
