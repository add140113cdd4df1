"""Packs the files of a packed folder in a new one, in which they have other places."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np

from fffs.base.jobs import Jobs, Progress
from fffs.base.numbers import Int64Array, divide
from fffs.converting.archive_parts import join_trees
from fffs.converting.packs import alignment_of
from fffs.converting.request import Request
from fffs.converting.source_parts import SourcePart, open_parts, shown_of
from fffs.converting.verifying import compare_tree, differs
from fffs.files.atomic_output import AtomicOutput
from fffs.formats.table import format_named
from fffs.layouts import load_packed, packed
from fffs.layouts.view import TreeView
from fffs.native.engine import BLOCK
from fffs.objects.new_object import new_output
from fffs.packing.numbering import renumber, select
from fffs.packing.pack_file import PIECE, PackFile, numbered, record_of
from fffs.packing.protect import commit, reread
from fffs.records.store import RecordStore
from fffs.tree.tree import Tree

RECORDS = 1 << 14  # the most that are read in one batch


def pack_again(request: Request, progress: Progress | None) -> tuple[int, int, int]:
    """Pack the files of a packed folder in a new one. Returns the number of files, their bytes, and 1."""
    with load_packed(request.source) as source, new_output(request.target) as output:
        output.replaces = request.force
        shown, align, verify = request.source, request.align, request.verify
        _, sizes = pack_tree(source.tree, source.store, output, shown, align, verify, progress)
        commit(output, request.verity, progress)
    return len(sizes), int(sizes.sum()), 1


def pack_tree(
    tree: Tree,
    store: RecordStore,
    output: AtomicOutput,
    shown: str,
    align: bool,
    verify: bool,
    progress: Progress | None,
) -> tuple[int, Int64Array]:
    """Pack the files of a tree, which refers to records of a store, in a new file, which the caller commits.

    Returns the checksum of its header, and the sizes of the files. shown: the source, for messages. verify: read the
    result back and compare it.
    """
    tree, records = renumber(tree)
    sizes = store.lengths(records)
    pack, work = PackFile(output, sizes, align), Jobs(int(sizes.sum()), progress)
    for first, last in divide(sizes, BLOCK, RECORDS):
        _copy_run(store, records[first:last], pack, first)
        work.count(int(sizes[first:last].sum()))
    checksum = pack.finish(tree)
    if verify:
        with reread(output) as result:
            compare_tree(numbered(tree, alignment_of(result)), result.tree, shown, output.path)
            _compare_records(store, records, result, output.path)
    return checksum, sizes


def pack_parts_again(
    parts: Sequence[SourcePart], output: AtomicOutput, align: bool, verify: bool, progress: Progress | None
) -> tuple[int, Int64Array]:
    """As ``pack_tree``, for the files of packs whose records are in some parts of them.

    Symbolic links and empty folders are where the first record of their pack is. Raises as ``open_parts``.
    """
    with contextlib.closing(RecordStore(open_parts(parts, format_named("ffrecord"), packs=True))) as store:
        packs = [packed.load(file) for file in store.files]
        trees = [
            select(pack.tree, part.first, part.first + part.records, part.path, others=part.first == 0)
            for pack, part in zip(packs, parts, strict=True)
        ]
        if len(trees) > 1:
            trees = [join_trees(trees, [part.total for part in parts], [part.path for part in parts])]
        return pack_tree(trees[0], store, output, shown_of(parts), align, verify, progress)


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
