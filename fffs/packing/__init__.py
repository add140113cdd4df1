"""Packing folders into files, unpacking them, and verifying sources."""
