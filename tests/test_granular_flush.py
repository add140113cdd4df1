"""Data sets in layout v3: opened while a writer flushes to one column after another, and how often a flush syncs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from inside import grown_columns, shards, sync

from fffs.errors import MetadataError
from fffs.granular import DatasetReader, DatasetWriter, ShardedDatasetWriter

SPEC = {"a": "u64", "b": "u64", "c": "u64"}


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[DatasetWriter]:
    """Return a writer that has flushed a row."""
    with DatasetWriter(tmp_path / "set", SPEC, layout="v3") as writer:
        append(writer, flush=True)
        yield writer


def append(writer: DatasetWriter, flush: bool) -> None:
    writer.append(dict.fromkeys(SPEC, len(writer._output)), flush=flush)


def after_each(monkeypatch: pytest.MonkeyPatch, action: Callable[[int], object]) -> list[str]:
    """Call an action with the number of Bags that were opened, after each. Return a list that gets their names."""
    opened, real = [], shards.open_bag

    def open_bag(path: str, *arguments: Any) -> Any:
        source = real(path, *arguments)
        opened.append(Path(path).name)
        action(len(opened))
        return source

    monkeypatch.setattr(shards, "open_bag", open_bag)
    return opened


def counts(reader: DatasetReader) -> list[int]:
    return [len(file.index) for file in reader._store.files]


def test_rows_that_were_flushed_between_two_columns_are_in_all(
    writer: DatasetWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = after_each(monkeypatch, lambda number: append(writer, flush=True) if number == 1 else None)
    with DatasetReader(writer.path) as reader:
        assert (len(reader), counts(reader)) == (2, [2, 2, 2])
        assert [row["c"] for row in reader] == [0, 1]
    assert opened == ["a.bag", "b.bag", "c.bag", "a.bag"]


def test_rows_that_are_flushed_all_the_time_do_not_keep_a_reader_waiting(
    writer: DatasetWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = after_each(monkeypatch, lambda _: append(writer, flush=True))
    with DatasetReader(writer.path) as reader:
        assert (len(reader), counts(reader)) == (3, [3, 3, 3])
    assert opened == ["a.bag", "b.bag", "c.bag", "a.bag", "b.bag"]


def test_a_reader_waits_for_a_flush_in_progress(writer: DatasetWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    append(writer, flush=False)
    bags = writer._output._bags  # type: ignore[union-attr]
    for bag in bags:
        bag.write_records()
    bags[0].write_table()
    pauses = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) in (150, 300):
            bags[len(pauses) // 150].write_table()

    monkeypatch.setattr(shards.time, "sleep", pause)
    with DatasetReader(writer.path) as reader:
        assert counts(reader) == [2, 2, 2]


def test_a_reader_does_not_wait_for_rows_that_do_not_come(
    writer: DatasetWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(writer, flush=False)
    writer._output._bags[1].write_records()  # type: ignore[union-attr]
    writer._output._bags[1].write_table()  # type: ignore[union-attr]
    pauses: list[float] = []
    monkeypatch.setattr(shards.time, "sleep", pauses.append)
    with pytest.raises(MetadataError, match=r"b\.bag: it has 2 records, but a\.bag has 1; a writer is appending"):
        DatasetReader(writer.path)
    assert 0.5 < sum(pauses) < 5


# ---------------------------------------------------------------- what waits for the disk


PLACES: list[tuple[Any, str]] = [
    (os, "fsync"),
    (os, "fdatasync"),
    *((module, "sync_files") for module in (sync, grown_columns)),
]
"""The functions that sync, where they are called."""


class Syncs:
    """Records what is synced, and how large the files of a folder are at that moment."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.calls: list[str] = []
        self.sizes: list[dict[str, int]] = []
        self._folder = folder
        for owner, name in PLACES:
            monkeypatch.setattr(owner, name, partial(self._record, name, getattr(owner, name)))

    def _record(self, name: str, real: Callable[[int], None], fd: int) -> None:
        self.calls.append(name)
        self.sizes.append({path.name: path.stat().st_size for path in self._folder.glob("*.*")})
        real(fd)


@pytest.mark.parametrize("columns", [1, 8])
def test_a_flush_waits_twice_for_the_disk_however_many_columns_there_are(
    tmp_path: Path, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = dict.fromkeys("abcdefgh"[:columns], "u64")
    with DatasetWriter(tmp_path / "set", spec, layout="v3") as writer:
        syncs = Syncs(monkeypatch, tmp_path / "set")
        writer.append(dict.fromkeys(spec, 1), flush=True)
        assert len(syncs.calls) == 2
        first, second = ({size for name, size in sizes.items() if name.endswith("x")} for sizes in syncs.sizes)
        assert (first, second) == ({0}, {8}), "no entry of a table reaches the disk before its record"
        assert {size for name, size in syncs.sizes[0].items() if name.endswith(".bag")} == {8}
        writer.flush()
    assert len(syncs.calls) == 2, "nothing was left to write"


@pytest.mark.parametrize("layout", ["v1", "v3"])
def test_tiny_shards_wait_for_the_disk_as_often_with_many_columns_as_with_one(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    for columns in (1, 8):
        spec = dict.fromkeys("abcdefgh"[:columns], "u64")
        with monkeypatch.context() as patched:
            syncs = Syncs(patched, tmp_path)
            with ShardedDatasetWriter(tmp_path / str(columns), spec, shard_length=1, layout=layout) as writer:
                for _ in range(3):
                    writer.append(dict.fromkeys(spec, 1))
        counts.append(len(syncs.calls))
    assert counts == [9, 9]


def test_each_file_is_synced_where_one_call_is_not_enough(
    writer: DatasetWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "is_of_this_machine", lambda fd: False)
    syncs = Syncs(monkeypatch, tmp_path / "set")
    append(writer, flush=True)
    assert syncs.calls == ["fdatasync"] * (2 * len(SPEC) + 1), "and the marker"


@pytest.mark.parametrize("here", [True, False])
def test_an_empty_data_set_is_durable_when_its_writer_is_closed(
    tmp_path: Path, here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not here:
        monkeypatch.setattr(grown_columns, "is_of_this_machine", lambda fd: False)
    syncs = Syncs(monkeypatch, tmp_path / "set")
    writer = DatasetWriter(tmp_path / "set", SPEC, layout="v3")
    assert syncs.calls == (["fdatasync"] if here else ["sync_files", "fsync", "fsync"])
    assert syncs.sizes[0] == {}, "before it appeared"
    writer.close()
    assert syncs.calls[1:] == (["sync_files"] if here else ["fsync", "fsync"])
    with DatasetReader(tmp_path / "set") as reader:
        assert len(reader) == 0
