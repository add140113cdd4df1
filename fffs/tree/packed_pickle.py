"""Decodes and encodes the tree of a packed folder as ffrecord stores it, a pickle of nested OrderedDicts.

The module ``pickle`` is not used. Neither way creates objects (see ``fffs/native/packed_pickle.c``, and for the opcodes
that are written ``packed_pickle_encode.c``).
"""

from __future__ import annotations

import errno
from typing import Any

import numpy as np
import numpy.typing as npt

from fffs.base.numbers import unique
from fffs.errors import MetadataError
from fffs.native import ffi, lib
from fffs.tree.builder import DIRECTORY, FILE, build_tree
from fffs.tree.tree import Tree

MAGIC = b"piouhjgbr"
PROTO = b"\x80"  # the first byte of every pickle since protocol 2


# ---------------------------------------------------------------- reading


def decode(data: npt.NDArray[np.uint8], records: int, source: str, mtime: int) -> Tree:
    """Return the Tree in the last record of a packed folder (uint8[bytes], including the magic bytes).

    records: the number of records that files may refer to. source: for messages. mtime: nanoseconds since 1970, for all
    nodes. The modes are default ones: ffrecord stores neither times nor modes.

    Raises:
        MetadataError: the record does not contain such a tree. No part of it was executed.
        MemoryError, UnsupportedError: as ``build_tree``.

    """
    pickle = np.ascontiguousarray(data[len(MAGIC) :])
    out = ffi.new("fffs_packed_pickle *")
    _run(pickle, out, source)
    entries, directories = int(out.entries), int(out.directories)
    arrays: dict[str, npt.NDArray[Any]] = {
        "entry_parent": np.empty(entries, np.uint32),
        "entry_child": np.empty(entries, np.uint32),
        "entry_record": np.empty(entries, np.int64),
        "name_offsets": np.empty(entries + 1, np.uint32),
        "names": np.empty(max(int(out.names_size), 1), np.uint8),
    }
    for name, array in arrays.items():
        setattr(out, name, ffi.cast(ffi.typeof(getattr(out, name)), array.ctypes.data))
    _run(pickle, out, source)

    # Nodes: first the dictionaries, by number, then one per record. The names of one record are hard links.
    is_file = arrays["entry_record"] >= 0
    named, which = unique(arrays["entry_record"][is_file], return_inverse=True)
    if len(named) and int(named[-1]) >= records:
        raise MetadataError(f"{source}: the tree is damaged: a file refers to record {int(named[-1])} of {records}")
    nodes = arrays["entry_child"]
    nodes[is_file] = directories + which
    n_nodes = directories + len(named)
    ref = np.zeros(n_nodes, np.int64)
    ref[directories:] = named
    mode = np.full(n_nodes, FILE, np.uint16)
    mode[:directories] = DIRECTORY
    return build_tree(
        parents=arrays["entry_parent"],
        nodes=nodes,
        name_offsets=arrays["name_offsets"],
        names=arrays["names"][: int(out.names_size)],
        mode=mode,
        mtime=np.full(n_nodes, mtime, np.int64),
        ref=ref,
        count=np.zeros(n_nodes, np.uint32),
        targets=np.empty(0, np.uint8),
        records=records,
        source=source,
    )


def _run(pickle: npt.NDArray[np.uint8], out: object, source: str) -> None:
    why, where = ffi.new("char **"), ffi.new("uint64_t *")
    status = lib.fffs_packed_pickle_decode(ffi.cast("uint8_t *", pickle.ctypes.data), len(pickle), out, why, where)
    if status == 0:
        return
    if status == -errno.ENOMEM:
        raise MemoryError(f"{source}: not enough memory to read the tree")
    reason = ffi.string(why[0]).decode()
    raise MetadataError(
        f"{source}: the tree of the packed folder is invalid: {reason} (at byte {where[0]} of the pickle)"
    )


# ---------------------------------------------------------------- writing


def encode(tree: Tree) -> npt.NDArray[np.uint8]:
    """Return the tree as ffrecord expects it, including the magic bytes.

    ffrecord supports only files and folders. A symbolic link to a file in the tree becomes a name of that file's
    record; other symbolic links are left out.
    """
    out = np.empty(len(MAGIC) + int(lib.fffs_packed_pickle_encode(tree.native, ffi.NULL)), np.uint8)
    out[: len(MAGIC)] = np.frombuffer(MAGIC, np.uint8)
    lib.fffs_packed_pickle_encode(tree.native, ffi.cast("uint8_t *", out.ctypes.data) + len(MAGIC))
    return out
