"""The HTTP surface: one file per protocol, all over the same engine client."""
