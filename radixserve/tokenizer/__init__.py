"""Text to tokens and back: prompts, chat templates, decoding, stop strings, the engine's client."""
