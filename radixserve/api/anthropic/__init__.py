"""Anthropic's dialect: Messages over the text pipeline that all surfaces share."""
