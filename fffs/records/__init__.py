"""The positions of records in files, and reading them."""
