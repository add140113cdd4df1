"""Recognises, reads and writes the file formats. ``table`` has a row for each."""
