"""Takes numbers from the input of a fuzzer."""

from __future__ import annotations


class Cursor:
    """The remaining input. After its end all numbers are 0."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, width: int) -> int:
        """Take width bytes as a number, little-endian."""
        piece = self._data[self._at : self._at + width]
        self._at += width
        return int.from_bytes(piece, "little")

    def rest(self) -> bytes:
        """Take all remaining bytes."""
        piece, self._at = self._data[self._at :], len(self._data)
        return piece

    def __bool__(self) -> bool:
        return self._at < len(self._data)
