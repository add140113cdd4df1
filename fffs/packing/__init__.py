"""Folders into files and back, and checking them."""
