"""The version of fffs."""

__version__ = "0.1.0"
