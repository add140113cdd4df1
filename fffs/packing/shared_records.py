"""Refuses packs whose files share records, where each would become a file of its own and could fill any disk."""

from __future__ import annotations

import stat

import numpy as np

from fffs.base.numbers import unique
from fffs.base.text import human
from fffs.errors import UnsupportedError
from fffs.layouts.view import TreeView


def refuse_multiplied(source: TreeView) -> None:
    """Raise UnsupportedError if unpacking would write more bytes than the source has. Hard links are one file, but
    several files may refer to one record, so a small source could fill any disk. Symbolic links may share targets, too.
    """
    tree, store = source.tree, source.store
    kinds = tree.kinds
    records, counts = unique(tree.ref[kinds == stat.S_IFREG], return_counts=True)
    targets = int(tree.count[kinds == stat.S_IFLNK].sum(dtype=np.int64))
    if targets <= len(tree.targets) and (counts == 1).all():
        return
    total = targets + sum(store.length(int(k)) * int(n) for k, n in zip(records, counts, strict=True))
    if total > store.size:
        raise UnsupportedError(
            f"{store.files[0].index.path}: its files share records, and would take {human(total)}, "
            f"more than the source itself; mount it and copy the files that you need"
        )
