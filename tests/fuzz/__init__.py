"""Fuzz targets for the parsers of files and messages, their seeds, and files that must be refused."""
