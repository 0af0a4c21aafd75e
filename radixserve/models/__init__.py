"""Network definitions and their weights: from a checkpoint folder to a `Model` on a device."""
