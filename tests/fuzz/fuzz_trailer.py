"""Fuzzes trailers with right checksums: the lists, records and verdicts of files that open agree with the arrays.

Input: the packed folder to begin with, then edits: the array, the place, the kind of change, and a number.
"""

from __future__ import annotations

import copy

import numpy as np
from builders import COUNTS, DTYPES, Pack, Trailer

from fuzz import packs, surface
from fuzz.cursor import Cursor

BASES = (
    packs.pack(packs.small()),
    packs.pack({}),
    packs.pack(packs.chain(12)),
    packs.pack(packs.flat_files(20)),
    packs.pack({b"big": bytes(packs.MIB + 1), b"link": packs.Link(b"big")}),
)
EDITS_MAX = 16
ARRAYS = tuple(DTYPES)


def edit_array(trailer: Trailer, name: str, cursor: Cursor) -> None:
    """Set an item, add to it, copy another one over it, insert one, remove one, or exchange two."""
    array = trailer.arrays[name]
    how, at, number = cursor.take(1) % 6, cursor.take(1), cursor.take(array.dtype.itemsize)
    if not len(array) and how != 3:
        return
    at %= max(len(array), 1)
    other = number % max(len(array), 1)
    value = np.frombuffer(number.to_bytes(array.dtype.itemsize, "little"), array.dtype)[0]
    if how == 0:
        array[at] = value
    elif how == 1:
        with np.errstate(over="ignore"):
            array[at] += np.int8(number & 0xFF).astype(array.dtype) if number < 128 else value
    elif how == 2:
        array[at] = array[other]
    elif how == 3:
        trailer.arrays[name] = np.insert(array, at, value)
    elif how == 4:
        trailer.arrays[name] = np.delete(array, at)
    else:
        array[[at, other]] = array[[other, at]]


def edit(pack: Pack, cursor: Cursor) -> None:
    """Make one change to the trailer, to a record, or to the pickle."""
    trailer = pack.trailer
    assert trailer is not None
    what = cursor.take(1) % 32
    if what < 2 * len(ARRAYS):
        edit_array(trailer, ARRAYS[what // 2], cursor)
    elif what == 26:
        trailer.counts[COUNTS[cursor.take(1) % len(COUNTS)]] = cursor.take(8)
    elif what == 27:
        trailer.size = cursor.take(8)
    elif what == 28:
        trailer.version, trailer.flags = cursor.take(1), cursor.take(1)
    elif what == 29 and pack.records:
        pack.records[cursor.take(1) % len(pack.records)] = bytes(cursor.take(1))
    elif what == 30:
        at = cursor.take(2) % len(pack.pickle)
        pack.pickle = pack.pickle[:at] + bytes([cursor.take(1)]) + pack.pickle[at + 1 :]
    elif what == 31:
        # Set right link counts, to reach the checks after them.
        nodes = trailer.arrays["entry_nodes"].astype(np.int64)
        names = np.bincount(nodes[nodes < 1000], minlength=len(trailer.arrays["mode"]))[: len(trailer.arrays["mode"])]
        files = trailer.arrays["mode"] & 0o170000 != 0o040000
        if len(trailer.arrays["nlink"]) == len(files):
            trailer.arrays["nlink"][files] = names[files]


def one_input(data: bytes) -> None:
    """Run the target on one input."""
    cursor = Cursor(data)
    pack = copy.deepcopy(BASES[cursor.take(1) % len(BASES)])
    for _ in range(EDITS_MAX):
        if cursor:
            edit(pack, cursor)
    try:
        file = pack.build()
    except (ValueError, OverflowError):  # counts that no footer can represent
        return
    surface.check_file(file)
