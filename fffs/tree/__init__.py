"""The namespace: names that lead to records, in memory and in a file."""
