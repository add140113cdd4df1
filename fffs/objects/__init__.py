"""Objects in stores: their names, and a process that signs URLs and lists."""
