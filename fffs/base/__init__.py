"""What knows nothing of records: paths, numbers, threads, the ends of with-blocks."""
