"""Checks any file, whatever its content: it gives an error of fffs.errors, or results that agree with its bytes.

The fuzz targets and the replay of bad files use it. Expected values come from the bytes, by struct, zlib and pickle.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from builders import MAGIC
from inside import LocalFile, RecordStore, Tree, TreeView, load_source, verify
from inside import load_ffrecord_index as load_index

from fffs import FileReader, LegacyFileWarning, PackedFolder
from fffs.errors import ChecksumError, EntryNotFoundError, FffsError, FormatError, RecordError, TruncatedError
from fuzz import packs

SAMPLE = 24  # number of records and names that are checked one by one


@contextlib.contextmanager
def file_of(data: bytes) -> Iterator[str]:
    """Yield the path of a file in memory."""
    fd = os.memfd_create("fuzz")
    try:
        os.write(fd, data)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def sample(items: Sequence[Any]) -> list[Any]:
    """Return all of a short list, or the beginning and the end of a long one."""
    return list(items) if len(items) <= SAMPLE else [*items[: SAMPLE // 2], *items[-SAMPLE // 2 :]]


# ---------------------------------------------------------------- the tables


class NoRecordFileError(Exception):
    """The format's definition does not accept this record file."""


def tables(data: bytes, checked: bool) -> tuple[list[int], list[int], list[int]]:
    """Return (starts, ends, checksums) of the records, as the format defines them."""
    if len(data) < 12:
        raise NoRecordFileError("too short")
    crc, n = struct.unpack_from("<Iq", data)
    first = 12 + 12 * n
    if n < 0 or first > len(data) or (n == 0 and len(data) > 12):
        raise NoRecordFileError("a number of records that cannot be")
    if checked and crc and crc != zlib.crc32(data[4:first]):
        raise NoRecordFileError("checksum of the metadata")
    sums = list(struct.unpack_from(f"<{n}I", data, 12))
    starts = list(struct.unpack_from(f"<{n}q", data, 12 + 4 * n))
    ends = [*starts[1:], len(data)][:n]
    if n and (starts[-1] > len(data) or (starts[-1] == len(data) and sums[-1])):  # the file is cut there, or before
        ends[-1] = min(starts[-1] + 1, (1 << 63) - 1)
    if n and (starts[0] < first or any(a > b for a, b in zip(starts, ends, strict=True))):
        raise NoRecordFileError("offsets that cannot be")
    return starts, ends, sums


def check_index(data: bytes, checked: bool = True) -> None:
    """Check that load_index accepts what the definition of the format accepts, with the same numbers, and no more."""
    expected: tuple[list[int], list[int], list[int]] | None = None
    with contextlib.suppress(NoRecordFileError):
        expected = tables(data, checked)
    with file_of(data) as path, LocalFile.open(path) as file, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            index = load_index(file, checked)
        except FormatError:
            assert expected is None, "refused what is a record file"
            return
        assert expected is not None, "took for a record file what is none"
        assert (index.starts.tolist(), index.ends.tolist()) == expected[:2]
        assert index.checksums is not None
        assert index.checksums.tolist() == expected[2]
        legacy = [warning.category for warning in caught] == [LegacyFileWarning]
        assert legacy == (data[:4] == bytes(4))
        assert len(caught) == legacy
        with FileReader(path, check_data=checked) as reader:
            check_records(reader.store, data, expected)


# ---------------------------------------------------------------- records

GOOD, WRONG, CUT = "good", "wrong", "cut"


Checksum = Callable[[bytes], int]


def state(data: bytes, start: int, end: int, crc: int, checksum: Checksum = zlib.crc32) -> str:
    """Return the expected state of a record."""
    if end > len(data) or start > len(data):
        return CUT
    return GOOD if checksum(data[start:end]) == crc else WRONG


def outcome(call: Any) -> Any:
    """Return the bytes of a read, or the kind of its error."""
    try:
        return call().tobytes()
    except ChecksumError:
        return WRONG
    except TruncatedError:
        return CUT


def check_records(
    store: RecordStore,
    data: bytes,
    expected: tuple[list[int], list[int], list[int]],
    checksum: Checksum = zlib.crc32,
) -> None:
    """Check that each way of reading a record returns its bytes, or the error that its state requires."""
    rows = list(zip(*expected, strict=True))
    assert store.n == len(rows)
    states = [state(data, *row, checksum) for row in rows]
    unverified = RecordStore([replace(file, check=False) for file in store.files], closes_files=False)
    store = RecordStore([replace(file, check=True) for file in store.files], closes_files=False)
    for k in sample(range(len(rows))):
        start, end, _ = rows[k]
        whole = data[start:end] if states[k] == GOOD else states[k]
        assert outcome(lambda k=k: store.read_one(k)) == whole
        assert outcome(lambda k=k: store.read([k])[0]) == whole
        unchecked = CUT if states[k] == CUT else data[start:end]
        assert outcome(lambda k=k: unverified.read_one(k)) == unchecked
        if store.files[0].index.blocks is None:
            check_ranges(store, k, whole, end - start)
    good = [k for k in range(len(rows)) if states[k] == GOOD]
    assert [array.tobytes() for array in store.read(good)] == [data[rows[k][0] : rows[k][1]] for k in good]
    if len(good) < len(rows):
        with contextlib.suppress(RecordError):
            store.read(range(len(rows)))
            raise AssertionError("a batch with a bad record was given out")
    failed = {number for number, _ in store.verify(np.arange(len(rows)))}
    assert failed == {k for k in range(len(rows)) if states[k] != GOOD}
    store.close()
    unverified.close()


def check_ranges(store: RecordStore, record: int, whole: bytes | str, length: int) -> None:
    """Check ranges of a record that is verified as a whole."""
    middle = min(length // 3, 2**40)
    for start, stop in ((middle, min(2 * middle + 1, middle + 2**20)), (0, 1), (length, length + 5)):
        got = outcome(lambda start=start, stop=stop: store.read_range(record, start, stop))
        if isinstance(whole, bytes):
            assert got == whole[start:stop]
        elif whole == CUT or (start < length and stop > start):
            assert got == whole


# ---------------------------------------------------------------- names


def folder_of(tree: Tree) -> packs.Folder:
    """Return a tree as nested dictionaries, each file as the number of its record."""
    root: packs.Folder = {}
    stack = [(0, root)]
    while stack:
        node, folder = stack.pop()
        for name, child in tree.entries(node):
            assert name not in folder
            assert name not in (b"", b".", b"..")
            assert len(name) <= 255 and b"/" not in name and b"\0" not in name
            if tree.is_dir(child):
                folder[name] = {}
                stack.append((child, folder[name]))
            else:
                folder[name] = packs.Link(tree.target(child)) if tree.is_symlink(child) else tree.record(child)
    return root


def check_names(folder: PackedFolder, root: packs.Folder) -> None:
    """Check that the names of a packed folder, listed and looked up, are those of its tree, with links followed."""
    seen: dict[str, bool] = {}
    for path, value in packs.flat(root):
        target = packs.follow(root, path) if isinstance(value, packs.Link) else value
        if target is not None:
            seen[os.fsdecode(path)] = isinstance(target, dict)
    assert folder.list(recursive=True) == list(seen)
    assert folder.list(recursive=True, list_dir=False) == [path for path, is_dir in seen.items() if not is_dir]
    for path in sample(list(seen)):
        assert folder.exists(path)
        assert folder.is_dir(path) == seen[path]
        assert folder.is_file(path) != seen[path]
        assert not folder.exists(path + "/..") and not folder.exists("/" + path)
        if seen[path]:
            inside = packs.follow(root, os.fsencode(path))
            assert set(folder.list(path)) <= {os.fsdecode(name) for name in inside}


def check_files(folder: PackedFolder, root: packs.Folder, data: bytes, rows: list[tuple[int, int, int]]) -> None:
    """Check that the bytes of a file are those of its record."""
    for path in sample(folder.list(recursive=True, list_dir=False)):
        record = packs.follow(root, os.fsencode(path))
        start, end, crc = rows[record]
        expected: Any = state(data, start, end, crc)
        expected = data[start:end] if expected == GOOD else expected
        assert outcome(lambda path=path: folder.read_one(path)) == expected
    with contextlib.suppress(EntryNotFoundError):
        folder.read_one("no/such/file")
        raise AssertionError("a file that is not there was read")


def view_of_ffrecord(root: packs.Folder) -> dict[bytes, int | None]:
    """Return path -> record, None for a folder: what ffrecord sees of a tree."""
    return {path: None if isinstance(value, dict) else value for path, value in packs.flat(root, root)}


# ---------------------------------------------------------------- whole files


def check_verified(source: TreeView, data: bytes, rows: list[tuple[int, int, int]], root: packs.Folder | None) -> None:
    """Check that verify reports the bad records, and a tree that ffrecord sees differently."""
    bad = verify(source)
    reported = {entry.number for entry in bad}
    wrong = {k for k, row in enumerate(rows) if state(data, *row) != GOOD}
    last = len(rows) - 1
    assert reported - {last} == wrong - {last}, "verify and the checksums disagree"
    assert last in reported or last not in wrong
    for entry in bad:
        assert entry.record == entry.number and entry.offset == rows[entry.number][0] and entry.problem
    if root is not None and last not in reported:
        pickled = data[rows[last][0] + len(MAGIC) :]
        assert packs.unpickled(pickled) == view_of_ffrecord(root), "ffrecord sees another tree"


def check_pickle(source: TreeView, data: bytes, rows: list[tuple[int, int, int]], root: packs.Folder) -> None:
    """Check that a tree from the pickle equals what Python unpickles."""
    if source.store.files[0].index.blocks is None:
        try:
            expected = packs.unpickled(data[rows[-1][0] + len(MAGIC) :])
        except (pickle.UnpicklingError, EOFError, ValueError, IndexError, TypeError) as error:
            raise AssertionError(f"a pickle was accepted that Python refuses: {error}") from error
        assert view_of_ffrecord(root) == expected


def check_file(data: bytes, checked: bool = True) -> str:
    """Run all checks above on a file. Returns the name of the error, or the layout as which it was opened."""
    with file_of(data) as path, warnings.catch_warnings():
        warnings.simplefilter("ignore", LegacyFileWarning)
        try:
            source = load_source([path], check_data=checked)
        except (FffsError, MemoryError) as error:
            assert str(error) and "\n" not in str(error)
            with contextlib.suppress(FffsError, MemoryError):
                PackedFolder(path, check_data=checked).close()
                raise AssertionError("PackedFolder opens what load_source refuses") from error
            return type(error).__name__
        with source:
            expected = tables(data, checked)
            rows = list(zip(*expected, strict=True))
            check_records(source.store, data, expected)
            if source.layout == "plain":
                assert len(source.tree.mode) == len(rows) + 1
                check_verified(source, data, rows, None)
                return source.layout
            root = folder_of(source.tree)
            check_verified(source, data, rows, root)
            if checked:
                check_pickle(source, data, rows, root)
            with PackedFolder(path, check_data=True) if checked else contextlib.nullcontext() as folder:
                if folder is not None:
                    check_names(folder, root)
                    check_files(folder, root, data, rows)
        return source.layout
