"""Packs the files of a packed folder in a new one, in which they have other places."""

from __future__ import annotations

import numpy as np

from fffs.base.jobs import Jobs, Progress
from fffs.base.numbers import Int64Array, divide
from fffs.converting.packs import alignment_of
from fffs.converting.plan import Request
from fffs.converting.verifying import compare_tree, differs
from fffs.layouts import load_packed
from fffs.layouts.view import TreeView
from fffs.native.engine import BLOCK
from fffs.objects.new_object import new_output
from fffs.packing.numbering import renumber
from fffs.packing.pack_file import PIECE, PackFile, numbered, record_of
from fffs.packing.protect import commit, reread
from fffs.records.store import RecordStore

RECORDS = 1 << 14  # the most that are read in one batch


def pack_again(request: Request, progress: Progress | None) -> tuple[int, int, int]:
    """Pack the files of a packed folder in a new one. Returns the number of files, their bytes, and 1."""
    with load_packed(request.source) as source, new_output(request.target) as output:
        output.replaces = request.force
        store = source.store
        tree, records = renumber(source.tree)
        sizes = store.lengths(records)
        pack, work = PackFile(output, sizes, request.align), Jobs(int(sizes.sum()), progress)
        for first, last in divide(sizes, BLOCK, RECORDS):
            _copy_run(store, records[first:last], pack, first)
            work.count(int(sizes[first:last].sum()))
        pack.finish(tree)
        if request.verify:
            with reread(output) as result:
                compare_tree(numbered(tree, alignment_of(result)), result.tree, request.source, request.target)
                _compare_records(store, records, result, request.target)
        commit(output, request.verity, progress)
    return len(records), int(sizes.sum()), 1


def _copy_run(store: RecordStore, records: Int64Array, pack: PackFile, k: int) -> None:
    """Copy records of a pack to file k of another one and the following."""
    size = int(pack.sizes[k])
    if size > BLOCK:
        for at in range(0, size, PIECE):
            pack.put(k, at, store.read_range(int(records[0]), at, at + PIECE))
        return
    data, offsets = store.read_joined(records)
    pack.put_files(np.arange(k, k + len(records), dtype=np.uint32), offsets[:-1], data)


def _compare_records(store: RecordStore, records: Int64Array, result: TreeView, target: str) -> None:
    """Raise RecordError unless the records of a result, read from the disk, have the checksums of the source's."""
    copies = record_of(np.arange(len(records)), alignment_of(result))
    differ = store.index.checksums[records] != result.store.index.checksums[copies]
    bad = [*copies[differ].tolist(), *(number for number, _ in result.store.verify(copies))]
    if bad:
        raise differs(target, bad[0])
