"""One module per file format: recognising it, loading its index, writing it. ``table`` has them all."""
