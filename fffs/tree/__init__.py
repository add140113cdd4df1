"""The namespace of a packed folder: names that refer to records, in memory and in a file."""
