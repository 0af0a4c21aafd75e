"""Network definitions and their weights: from a checkpoint folder to a `Decoder` on a device."""
