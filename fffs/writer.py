"""The public name of FileWriter."""

from __future__ import annotations

from fffs.formats.ffrecord_writer import FileWriter

__all__ = ["FileWriter"]
