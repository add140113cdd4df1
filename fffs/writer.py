"""FileWriter, under the name by which users import it."""

from __future__ import annotations

from fffs.formats.ffrecord_writer import FileWriter

__all__ = ["FileWriter"]
