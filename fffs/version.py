"""The version of fffs."""

__version__ = "0.2.0"
