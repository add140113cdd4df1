"""Resuming is exact or refused: other files and other samples, wherever data sets keep their readers."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from inside import keep_checksums
from torch_samples import WARNINGS, Numbers, Tagged, begun, content, plain, write

import fffs
from fffs.errors import UsageError
from fffs.granular import BagWriter
from fffs.tfrecord import TFRecordWriter
from fffs.torch import ConcatDataset, DataLoader, Dataset, Subset

pytestmark = [pytest.mark.filterwarnings(text) for text in WARNINGS]
N = 53


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("records") / "a.ffr", N)


@pytest.mark.parametrize("kind", [lambda path, n: Tagged(path), lambda path, n: Numbers(n)])
def test_a_data_set_that_grew_is_refused(tmp_path: Path, kind: Callable[[Path, int], Any]) -> None:
    _, state = begun(DataLoader(kind(write(tmp_path / "a.ffr", 53), 53), 4))
    grown = DataLoader(kind(write(tmp_path / "b.ffr", 56), 56), 4)  # as many batches
    with pytest.raises(UsageError, match="samples 53, but this one has samples 56"):
        grown.load_state_dict(state)


def test_a_data_set_of_other_records_is_refused_and_a_copy_is_not(tmp_path: Path, path: Path) -> None:
    _, state = begun(DataLoader(Tagged(path), 4))
    with TFRecordWriter(tmp_path / "b.tfrecord") as writer:
        for k in range(N):
            writer.write_one(content(k))
    with pytest.raises(UsageError, match="reads other files than the run began with: of its 1, 0 are among the 1"):
        DataLoader(Tagged(tmp_path / "b.tfrecord"), 4).load_state_dict(state)
    other = path.read_bytes()
    (tmp_path / "c.ffr").write_bytes(other)
    DataLoader(Tagged(tmp_path / "c.ffr"), 4).load_state_dict(state)
    with fffs.FileWriter(tmp_path / "d.ffr", N) as to:
        for _ in range(N):
            to.write_one(bytes(64))
    with pytest.raises(UsageError, match="reads files whose records have changed since the run began: 1 of 1"):
        DataLoader(Tagged(tmp_path / "d.ffr"), 4).load_state_dict(state)


class Two(Dataset):
    """Has its readers in a list."""

    def __init__(self, *paths: Path) -> None:
        self.readers = [fffs.FileReader(path) for path in paths]

    def __len__(self) -> int:
        return N

    def __getitem__(self, indices: list[int]) -> list[Any]:
        return [len(record) for record in self.readers[0].read(indices)]


def test_readers_in_a_list_are_those_of_the_data_set(tmp_path: Path, path: Path) -> None:
    _, state = begun(DataLoader(Two(path), 4))
    with pytest.raises(UsageError, match="the data set reads other files"):
        DataLoader(Two(write(tmp_path / "b.ffr", N, None)), 4).load_state_dict(state)


@pytest.mark.parametrize("kind", [ConcatDataset, torch.utils.data.ConcatDataset])
def test_a_data_set_that_is_there_twice_counts_twice(tmp_path: Path, path: Path, kind: Any) -> None:
    with fffs.FileWriter(tmp_path / "b.ffr", N) as to:
        for _ in range(N):
            to.write_one(bytes(64))
    a, b = Dataset(path), Dataset(tmp_path / "b.ffr")
    _, state = begun(DataLoader(kind([a, a, b]), 4))
    DataLoader(kind([Dataset(path), a, b]), 4).load_state_dict(state)
    for other in ([a, b, b], [a, b, a]):
        with pytest.raises(UsageError, match=r"in another order|files whose records have changed"):
            DataLoader(kind(other), 4).load_state_dict(state)


class Plain:
    """A data set without a base class of torch, with an object that holds its reader."""

    def __init__(self, held: Any) -> None:
        self.held, self.me = held, self
        self.labels = [("a", k) for k in range(2000)]

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> int:
        return index


HELD: list[Callable[[Any], Any]] = [
    lambda reader: reader,
    lambda reader: {"train": reader, "none": None},
    lambda reader: {1: [None, reader]},
    lambda reader: (3, "name", {"of": [reader]}),
    lambda reader: [("name", reader)] * 3,
    lambda reader: torch.utils.data.Subset(Plain(reader), range(N)),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("held", HELD)
def test_files_are_compared_wherever_data_sets_have_them(
    tmp_path: Path, path: Path, held: Callable[[Any], Any]
) -> None:
    (tmp_path / "copy.ffr").write_bytes(path.read_bytes())
    write(tmp_path / "b.ffr", N, None)
    with (
        fffs.FileReader(path) as reader,
        fffs.FileReader(tmp_path / "copy.ffr") as copy,
        fffs.FileReader(tmp_path / "b.ffr") as other,
    ):
        _, state = begun(DataLoader(Plain(held(reader)), 4))
        DataLoader(Plain(held(copy)), 4).load_state_dict(state)
        with pytest.raises(UsageError, match="the data set reads other files"):
            DataLoader(Plain(held(other)), 4).load_state_dict(state)


def test_data_sets_that_have_each_other_are_compared_in_time(path: Path) -> None:
    with fffs.FileReader(path) as reader:
        crowd = [Plain(reader) for _ in range(12)]  # 12! ways through them
        for one in crowd:
            one.held = [reader, *crowd]
        loader = DataLoader(crowd[0], 4)
        assert loader.state_dict()["fits"]["files"] is not None


@pytest.mark.parametrize("kind", [Subset, torch.utils.data.Subset])
def test_other_indices_of_a_subset_are_refused(path: Path, kind: Any) -> None:
    _, state = begun(DataLoader(kind(Dataset(path), range(20)), 4))
    DataLoader(kind(Dataset(path), list(range(20))), 4).load_state_dict(state)
    with pytest.raises(UsageError, match="with indices that differ from those of this one"):
        DataLoader(kind(Dataset(path), range(1, 21)), 4).load_state_dict(state)


class Lazy(Dataset):
    """Opens files when their samples are requested, and keeps the readers as ``keep`` does."""

    def __init__(self, paths: list[Path], keep: Callable[[Lazy, int, Any], None]) -> None:
        self.paths, self.keep = paths, keep
        self.readers: dict[Any, Any] = {}
        self.number = 0  # not a file

    def __len__(self) -> int:
        return N * len(self.paths)

    def __getitem__(self, indices: list[int]) -> list[int]:
        for k in {index // N for index in indices}:
            self.keep(self, k, fffs.FileReader(self.paths[k]))
        return list(indices)


KEEP: list[Callable[[Lazy, int, Any], None]] = [
    lambda data, k, reader: setattr(data, f"reader{k}", reader),
    lambda data, k, reader: data.readers.__setitem__(str(data.paths[k]), reader),
    lambda data, k, reader: data.readers.__setitem__(k, reader),
    lambda data, k, reader: data.readers.__setitem__(("part", data.paths[k]), reader),
    lambda data, k, reader: data.readers.setdefault("all", {}).__setitem__(k, [reader]),
]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("parts")
    return [write(folder / f"{k}.ffr", N + k) for k in range(4)]


@pytest.mark.parametrize("keep", KEEP)
def test_more_or_fewer_files_that_are_open_are_no_other_data_set(parts: list[Path], keep: Any) -> None:
    def make(*opened: int) -> DataLoader:
        loader = DataLoader(Lazy(parts, keep), 4)
        for k in opened:
            loader.dataset[[k * N]]
        return loader

    _, state = begun(make(3, 1))
    for opened in ((), (1,), (3,), (1, 3), (2, 1, 3), (3, 2, 1, 0)):
        make(*opened).load_state_dict(state)
    for opened in ((0,), (2, 3)):
        with pytest.raises(UsageError, match="the data set reads other files than the run began with") as caught:
            make(*opened).load_state_dict(state)
        assert f"of its {len(opened)}, {len(opened) - 1} are among the 2 of the run" in str(caught.value)
    changed = DataLoader(Lazy([write(parts[0].with_name("b.ffr"), N)] * 4, keep), 4)
    changed.load_state_dict(state)  # no file is open


def test_files_that_are_opened_in_an_epoch_are_no_other_data_set(parts: list[Path]) -> None:
    loader = DataLoader(Lazy(parts, KEEP[0]), 4)
    for _ in range(2):
        batches = iter(loader)
        next(batches)
        resumed = DataLoader(Lazy(parts, KEEP[0]), 4)
        resumed.load_state_dict(loader.state_dict())
        assert plain(resumed) == plain(batches) != []


def test_files_without_checksums_may_be_those_that_have_them(tmp_path: Path) -> None:
    with BagWriter(tmp_path / "a.bag") as writer:
        for k in range(N):
            writer.append(content(k))
    _, state = begun(DataLoader(Tagged(tmp_path / "a.bag"), 4))
    keep_checksums(tmp_path / "a.bag")
    _, other = begun(loader := DataLoader(Tagged(tmp_path / "a.bag"), 4))
    loader.load_state_dict(state)
    assert state["fits"]["files"] != other["fits"]["files"]


def test_a_thousand_files_make_a_small_state_of_numbers(path: Path) -> None:
    with fffs.FileReader([path] * 1000) as reader:
        state = DataLoader(Plain(reader), 4).state_dict()
    buffer = io.BytesIO()
    torch.save(state, buffer)
    assert buffer.tell() < 40_000
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True)["fits"] == state["fits"]
    assert len(state["fits"]["files"]) == 1000


# ---------------------------------------------------------------- other attributes of data sets

MANY: list[Callable[[], Any]] = [
    lambda: {f"name {k * 7919 % 500_000}": k for k in range(500_000)},
    lambda: {f"name {k * 7919 % 500_000}": (k, "label") for k in range(500_000)},
    lambda: [[[0] for _ in range(500)] for _ in range(1000)],
    lambda: [{f"name {k}": [k] for k in range(100)} for _ in range(1000)],
    lambda: [[[[1] for _ in range(60)] for _ in range(60)] for _ in range(60)],
]


@pytest.mark.parametrize("make", MANY)
def test_files_are_found_in_little_time_among_many_other_things(path: Path, make: Callable[[], Any]) -> None:
    with fffs.FileReader(path) as reader:
        data = Plain({"a": reader})
        data.__dict__ |= dict.fromkeys(("before", "labels", "with_labels"), make())
        loader = DataLoader(data, 4)
        begin = time.process_time()
        assert len(loader.state_dict()["fits"]["files"]) == 1
        assert time.process_time() - begin < 0.1
