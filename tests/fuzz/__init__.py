"""Fuzz targets for everything that parses bytes from a disk, their seeds, and files that must be refused."""
