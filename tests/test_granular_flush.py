"""Data sets in layout v3 that are opened while a writer flushes to one column after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from inside import shards

from fffs.errors import MetadataError
from fffs.granular import DatasetReader, DatasetWriter

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
