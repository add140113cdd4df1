"""Helpers that know nothing of records: paths, numbers, threads, with-blocks."""
