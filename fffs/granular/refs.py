"""Records of refs.bag, which hold the blobs of each key of a row. They use a small part of msgpack, parsed strictly.

A row is an array with one entry per key: the number of a blob, or for a sequence an array ``[first, count]`` or ``[]``.
"""

from __future__ import annotations

from collections.abc import Sequence

from fffs.errors import MetadataError

_WIDTHS = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_CODES = {width: code for code, width in _WIDTHS.items()}

Ref = int | tuple[int, int]
"""The blob of a scalar, or (first blob, number of blobs) of a sequence."""


def decode(record: bytes, sequences: Sequence[bool]) -> list[Ref]:
    """Decode the entries of a row. sequences: for each key, whether it is a sequence.

    Raises:
        ValueError: the record is not a row.

    """
    try:
        count, at = _array(record, 0)
        if count != len(sequences):
            raise ValueError(f"it has {count} entries, for {len(sequences)} keys")
        row: list[Ref] = []
        for sequence in sequences:
            if sequence:
                items, at = _array(record, at)
                if items not in (0, 2):
                    raise ValueError(f"a sequence of {items} numbers, instead of its first blob and its length")
                first, at = _number(record, at) if items else (0, at)
                length, at = _number(record, at) if items else (0, at)
                row.append((first, length))
            else:
                number, at = _number(record, at)
                row.append(number)
    except IndexError:
        raise ValueError("it is truncated") from None
    if at != len(record):
        raise ValueError(f"{len(record) - at} bytes follow its last entry")
    return row


def _array(record: bytes, at: int) -> tuple[int, int]:
    """Read an array header. Returns the number of items, and the offset of the first."""
    code = record[at]
    if code & 0xF0 == 0x90:
        return code & 0x0F, at + 1
    if code in (0xDC, 0xDD):
        return _integer(record, at + 1, 2 if code == 0xDC else 4)
    raise ValueError(f"byte {at} does not begin an array (code {code:#04x})")


def _number(record: bytes, at: int) -> tuple[int, int]:
    """Read a number. Returns it, and the offset after it."""
    code = record[at]
    if code < 0x80:
        return code, at + 1
    if code in _WIDTHS:
        return _integer(record, at + 1, _WIDTHS[code])
    raise ValueError(f"byte {at} does not begin the number of a blob (code {code:#04x})")


def _integer(record: bytes, at: int, width: int) -> tuple[int, int]:
    if at + width > len(record):
        raise IndexError
    return int.from_bytes(record[at : at + width], "big"), at + width


def encode(row: Sequence[Ref]) -> bytes:
    """Encode a row exactly as msgpack packs it."""
    out = bytearray(_encode_array(len(row)))
    for ref in row:
        if isinstance(ref, int):
            out += _encode_number(ref)
        elif ref[1]:
            out += b"\x92" + _encode_number(ref[0]) + _encode_number(ref[1])
        else:
            out += b"\x90"
    return bytes(out)


def _encode_array(count: int) -> bytes:
    if count < 16:
        return bytes([0x90 | count])
    return b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")


def _encode_number(number: int) -> bytes:
    if number < 0x80:
        return bytes([number])
    width = next(width for width in (1, 2, 4, 8) if number < 1 << 8 * width)
    return bytes([_CODES[width]]) + number.to_bytes(width, "big")


class BlobNumbers:
    """The numbers of the blobs of a batch of rows, in their order.

    Rows may not share blobs: a small file could make its readers fill any amount of memory. ``once`` has the blobs
    without those of rows that the caller asked for again.
    """

    def __init__(self, path: str, most: int) -> None:
        """most: how many blobs there are."""
        self.numbers: list[int] = []
        self.once: list[int] = []
        self._path, self._most = path, most
        self._rows: set[object] = set()

    def add(self, row: object, wanted: range) -> None:
        """Add blobs of a key of a row. Raises MetadataError if the rows have more than there are.

        row: tells the rows and keys of all shards apart.
        """
        if row not in self._rows:
            self._rows.add(row)
            if len(self.once) + len(wanted) > self._most:
                raise self.shared()
            self.once.extend(wanted)
        self.numbers.extend(wanted)

    def shared(self) -> MetadataError:
        """Return the error for rows that share blobs."""
        return MetadataError(f"{self._path}: its rows share blobs; the data set is damaged")
