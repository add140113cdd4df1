"""The data sets of fffs.torch: indices and results."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
import torch.utils.data
from inside import OFRecordWriter
from torch_samples import BatchCounter, Numbers, Own, Tagged, content, plain, write

import fffs
import fffs.torch
from fffs.errors import UsageError
from fffs.torch import ConcatDataset, Dataset, Subset


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("records") / "a.ffr", 20, None)


def test_importing_fffs_imports_no_torch() -> None:
    program = (
        "import sys, fffs, fffs.utils; fffs.install_as_ffrecord(); import ffrecord; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_without_torch_the_import_says_what_to_install() -> None:
    program = "import sys; sys.modules['torch'] = None\nimport fffs.torch"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "pip install 'fffs[torch]'" in done.stderr


def test_a_list_gives_samples_in_its_order_with_duplicates(path: Path) -> None:
    samples = Dataset(path)[[3, 0, 3, -1]]
    assert [sample.tobytes() for sample in samples] == [content(k, None) for k in (3, 0, 3, 19)]
    assert not np.shares_memory(samples[0], samples[2])
    assert samples[0].flags.writeable


@pytest.mark.parametrize(
    "indices",
    [(1, 2), range(1, 3), np.array([1, 2]), torch.tensor([1, 2]), [np.int64(1), torch.tensor(2)], slice(1, 3)],
)
def test_all_that_names_several_indices_gives_a_list(path: Path, indices: object) -> None:
    assert [sample.tobytes() for sample in Dataset(path)[indices]] == [content(1, None), content(2, None)]


@pytest.mark.parametrize("index", [2, -18, np.int64(2), torch.tensor(2)])
def test_an_integer_gives_one_sample(path: Path, index: object) -> None:
    assert Tagged(path)[index][1].tolist() == list(content(2, None)[:4])


def test_process_gets_the_indices_asked_for(path: Path) -> None:
    assert [k for k, _ in Tagged(path)[[4, 2]]] == [4, 2]


def test_a_process_function_that_is_set_on_the_object_makes_the_samples_of_every_loader(path: Path) -> None:
    dataset = Dataset(path)
    dataset.process = lambda indices, data: indices  # type: ignore[method-assign]
    subset = Subset(dataset, range(4, 8))
    assert dataset[[4, 5]] == subset[[0, 1]] == [4, 5]
    for kind in (fffs.torch.DataLoader, torch.utils.data.DataLoader):
        for workers in (0, 1):
            assert [batch.tolist() for batch in kind(subset, 2, num_workers=workers)] == [[4, 5], [6, 7]]


@pytest.mark.parametrize(("change", "count"), [(lambda data: data[1:], 2), (lambda data: [*data, data[0]], 4)])
def test_process_that_returns_fewer_or_more_samples_than_records_gives_a_warning(
    path: Path, change: Any, count: int
) -> None:
    """Functions written for ffrecord leave out samples in this way."""
    dataset = Dataset(path)
    dataset.process = lambda indices, data: change(indices)  # type: ignore[method-assign]
    message = rf"Dataset.process returned {count} samples for 3 records: the batch has as many"
    with pytest.warns(UserWarning, match=message):
        assert len(dataset[[4, 5, 6]]) == count
    for kind in (fffs.torch.DataLoader, torch.utils.data.DataLoader):
        with pytest.warns(UserWarning, match=message):
            assert len(next(iter(kind(dataset, 3)))) == count
    with (
        pytest.raises(UsageError, match=f"returned {count} samples for 3 records"),
        pytest.warns(UserWarning, match=message),
    ):
        (dataset + Dataset(path))[[0, 1, 2]]


@pytest.mark.filterwarnings("ignore:Dataset.process returned 0 samples")
def test_a_loop_over_samples_does_not_end_where_process_returns_none(path: Path) -> None:
    dataset = Dataset(path)
    dataset.process = lambda indices, data: [k for k in indices if k != 2]  # type: ignore[method-assign]
    with pytest.raises(UsageError, match="Dataset returned 0 samples for 1 record; single samples"):
        list(dataset)


def test_process_may_return_a_whole_batch_for_a_collate_fn_of_the_user(path: Path) -> None:
    dataset = Dataset(path)
    dataset.process = lambda indices, data: (torch.tensor(indices), len(data))  # type: ignore[method-assign]
    first, count = next(iter(fffs.torch.DataLoader(dataset, 3, collate_fn=lambda batch: batch)))
    assert (first.tolist(), count) == ([0, 1, 2], 3)


def test_an_empty_list_gives_an_empty_list(path: Path) -> None:
    dataset = Tagged(path)
    assert dataset[[]] == Subset(dataset, [1])[[]] == (dataset + dataset)[[]] == []


@pytest.mark.parametrize("indices", ["1", b"1", 1.5, None, object()])
def test_what_is_no_index_is_a_type_error(path: Path, indices: object) -> None:
    for dataset in (Dataset(path), Subset(Dataset(path), [1, 2]), Dataset(path) + Dataset(path)):
        with pytest.raises(TypeError):
            dataset[indices]


@pytest.mark.parametrize("indices", [["1"], [1.5], [None], [[1]]])
def test_lists_of_what_is_no_index_are_refused(path: Path, indices: list[object]) -> None:
    for dataset in (Dataset(path), Subset(Dataset(path), [1, 2]), Dataset(path) + Dataset(path)):
        with pytest.raises((TypeError, ValueError)):
            dataset[indices]


@pytest.mark.parametrize("make", [list, np.array, torch.tensor, lambda mask: [torch.tensor(item) for item in mask]])
def test_masks_are_not_taken_for_the_numbers_0_and_1(path: Path, make: Any) -> None:
    data = Dataset(path)
    for dataset in (data, Subset(data, [1, 2]), data + data):
        for wrong in (make([True, False]), make([True, False])[0]):
            with pytest.raises(UsageError, match="must be integers, not"):
                dataset[wrong]
    with pytest.raises(UsageError, match="must be integers, not"):
        data.reader.read(make([True, False]))
    with pytest.raises(UsageError, match="must be integers, not"):
        data.reader.read_one(make([True])[0])
    for wrong in (make([True, False]), [1.5, 2.5]):
        with pytest.raises(UsageError, match="must be integers, not"):
            Subset(data, wrong)[[0, 1]]


def test_a_tensor_of_numbers_is_read_as_an_array(path: Path) -> None:
    numbers = torch.tensor([[3, -1], [0, 3]], dtype=torch.int32)
    with fffs.FileReader(path) as reader:
        assert [bytes(record) for record in reader.read(numbers)] == [content(k, None) for k in (3, 19, 0, 3)]


@pytest.mark.parametrize("index", [20, -21, 2**70])
def test_an_index_out_of_range_is_an_index_error(path: Path, index: int) -> None:
    dataset = Dataset(path)
    for indices in (index, [0, index]):
        with pytest.raises(IndexError):
            dataset[indices]
        with pytest.raises(IndexError):
            Subset(dataset, range(20))[indices]
        with pytest.raises(IndexError):
            (dataset + dataset)[index * 2]


def test_a_subset_counts_in_its_indices(path: Path) -> None:
    indices = np.array([7, 3, 3, 19])
    subset = Subset(Tagged(path), indices)
    assert len(subset) == 4
    assert [k for k, _ in subset[[0, 1, 2, -1]]] == [7, 3, 3, 19]
    assert [k for k, _ in Subset(subset, [3, 0])[:]] == [19, 7]
    assert subset[1][0] == 3


def test_data_sets_are_concatenated_with_duplicates_in_order(path: Path) -> None:
    both = ConcatDataset([Tagged(path), Tagged(path)]) + Tagged(path)
    assert len(both) == 60
    assert both.cumulative_sizes == [40, 60]
    assert [k for k, _ in both[[21, 1, 21, 59, -60, 20]]] == [1, 1, 1, 19, 0, 0]
    assert both[41][0] == 1


def test_a_concatenation_of_nothing_or_of_something_else_is_refused(path: Path) -> None:
    with pytest.raises(ValueError):
        ConcatDataset([])
    with pytest.raises(TypeError):
        ConcatDataset([Dataset(path), Numbers(3)])  # type: ignore[list-item]


def test_torchs_own_subsets_read_batches(path: Path) -> None:
    first, _ = torch.utils.data.random_split(BatchCounter(path), [12, 8])
    loader = torch.utils.data.DataLoader(first, batch_size=6)
    assert plain(loader) == [[6] * 6] * 2


def test_readers_among_the_attributes_are_known(path: Path) -> None:
    class Pair(fffs.torch.ReaderRegistry):
        def __init__(self) -> None:
            self.a, self.b = fffs.FileReader(path), fffs.FileReader(path)

    class Four(Dataset):
        def __init__(self) -> None:
            self.one, self.pair, self.two = fffs.FileReader(path), Pair(), fffs.FileReader(path)

    four = Four()
    assert four.ffreaders() == [four.one, four.two, four.pair.a, four.pair.b]
    four.one = four.two
    del four.pair
    assert four.ffreaders() == [four.one, four.two]
    assert len(Subset(Dataset(path), [1]).ffreaders()) == 1
    assert len((Dataset(path) + Dataset(path)).ffreaders()) == 2


def test_data_sets_may_refer_to_each_other(path: Path) -> None:
    train, validation = Dataset(path), Dataset(path)
    train.half = Subset(train, range(10))  # type: ignore[attr-defined]
    train.validation, validation.train = validation, train  # type: ignore[attr-defined]
    both = train + validation
    validation.both = both  # type: ignore[attr-defined]
    assert set(train.ffreaders()) == set(both.ffreaders()) == {train.reader, validation.reader}
    assert len(list(fffs.torch.DataLoader(train, batch_size=5))) == 4
    assert train.ffreaders()[0] is train.reader


class Batched(Dataset):
    """Whose batches are not what its items are."""

    def __getitems__(self, indices: Any) -> Any:
        return [bytes(record[:4]) for record in super().__getitems__(indices)]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("loader", [fffs.torch.DataLoader, torch.utils.data.DataLoader])
def test_batches_of_a_data_set_that_makes_its_own(path: Path, loader: Any, workers: int) -> None:
    batched = Batched(path)
    expected = [bytes(record[:4]) for record in Dataset(path)[:20]]
    both = batched + batched
    for dataset in (
        batched,
        Subset(batched, range(20)),
        Subset(both, range(20, 40)),
        torch.utils.data.Subset(batched, range(20)),
    ):
        found = [sample for batch in loader(dataset, batch_size=7, num_workers=workers) for sample in batch]
        assert found == expected


def _after(get: Any) -> Any:
    def get_item(self: Any, indices: Any) -> Any:
        found = get(self, indices)
        return [len(record) for record in found] if isinstance(found, list) else len(found)

    return get_item


def _lists_only(get: Any) -> Any:
    return lambda self, indices: [len(record) for record in get(self, indices)]


def _integers_to_the_base(get: Any) -> Any:
    def get_item(self: Any, indices: Any) -> Any:
        if isinstance(indices, int):
            return get(self, indices)
        return [len(record) for record in get(self, indices)]

    return get_item


def _one_by_one(get: Any) -> Any:
    return lambda self, indices: [len(get(self, index)) for index in indices]


def _of_itself(get: Any) -> Any:
    def get_item(self: Any, indices: Any) -> Any:
        return [self[index] for index in indices] if isinstance(indices, list) else len(get(self, indices))

    return get_item


def _labelled(get: Any) -> Any:
    """With a label for an integer, and for each of a list."""

    def get_item(self: Any, indices: Any) -> Any:
        found = get(self, indices)
        return [(record, 7) for record in found] if isinstance(indices, list) else (found, 7)

    return get_item


@pytest.mark.parametrize("base", [Dataset, Subset, fffs.torch.ConcatDataset])
@pytest.mark.parametrize("style", [_after, _lists_only, _one_by_one, _of_itself, _labelled])
def test_samples_of_subclasses(path: Path, style: Any, base: Any) -> None:
    made = type("Made", (base,), {"__getitem__": style(base.__getitem__)})
    mixed = type("Mixed", (type("Mixin", (), {"__getitem__": style(base.__getitem__)}), base), {})
    further = type("Further", (made,), {})
    whole = Dataset(path)
    records = [bytes(record) for record in whole[:20]]
    for kind in (made, mixed, further):
        dataset = kind(*{Dataset: [path], Subset: [whole, range(20)]}.get(base, [[whole]]))
        several = (dataset[[3]][0], Subset(dataset, [3])[0], (dataset + dataset)[23], (dataset + dataset)[[23]][0])
        singly = (dataset[3], torch.utils.data.ConcatDataset([dataset])[3]) if style not in LISTS else ()
        for sample in (*several, *singly):
            if style is _labelled:
                assert (bytes(sample[0]), sample[1]) == (records[3], 7)
            else:
                assert sample == len(records[3])
        for loader in (fffs.torch.DataLoader, torch.utils.data.DataLoader):
            found = [sample for batch in loader(dataset, batch_size=7, collate_fn=list) for sample in batch]
            lengths = [len(sample[0]) if style is _labelled else sample for sample in found]
            assert lengths == [len(record) for record in records]


LISTS = (_lists_only, _one_by_one)


@pytest.mark.parametrize("base", [Dataset, Subset, fffs.torch.ConcatDataset])
def test_an_integer_for_the_base_class_gives_its_sample(path: Path, base: Any) -> None:
    whole = Dataset(path)
    dataset = type("Made", (base,), {"__getitem__": _integers_to_the_base(base.__getitem__)})(
        *{Dataset: [path], Subset: [whole, range(20)]}.get(base, [[whole]])
    )
    assert bytes(dataset[3]) == bytes(whole[3])
    assert dataset[[3]] == [len(whole[3])] == [Subset(dataset, [3])[0]]


class Table:
    """As those of pandas and Arrow: it has a row for each record, and ``iter`` gives its columns."""

    columns = ("a",)

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)


NO_SAMPLES = [
    lambda k: (k, k),
    lambda k: {"x": k},
    lambda k: {k},
    lambda k: b"ab",
    lambda k: None,
    lambda k: k.sum(),
    lambda k: Table(),
]


@pytest.mark.parametrize("columns", NO_SAMPLES)
def test_what_is_no_sample_for_each_record_is_not_divided(path: Path, columns: Any) -> None:
    class Columns(Dataset):
        def __getitem__(self, indices: Any) -> Any:
            return columns(torch.tensor(indices)) if isinstance(indices, list) else indices

    class Processed(Dataset):
        def process(self, indices: Any, data: Any) -> Any:
            return columns(torch.tensor(indices))

    assert Columns(path)[3] == 3
    for ask in (
        lambda: Subset(Columns(path), [3])[0],
        lambda: (Columns(path) + Columns(path))[3],
        lambda: Processed(path)[3],
        lambda: list(fffs.torch.DataLoader(Processed(path), batch_size=None)),
    ):
        with pytest.raises(
            UsageError,
            match=r"(Columns|Processed) returned (2 samples|dict|set|bytes|NoneType|Tensor|Table) for 1 record",
        ):
            ask()


def test_readers_of_the_users_make_single_samples(path: Path) -> None:
    class Pairs(Dataset):
        def __init__(self, path: Path) -> None:
            self.left, self.right = fffs.FileReader(path), fffs.FileReader(path)

        def __len__(self) -> int:
            return self.left.n

        def __getitem__(self, indices: Any) -> Any:
            return list(zip(self.left.read(indices), self.right.read(indices), strict=True))

    pairs, records = Pairs(path), Dataset(path)
    for left, right in (Subset(pairs, [3])[0], (pairs + pairs)[23]):
        assert bytes(left) == bytes(right) == bytes(records[3])


class BatchesBeside(Dataset):
    """As data sets for torch: single samples, and batches that are something else."""

    def __getitem__(self, index: Any) -> Any:
        return len(self.reader.read_one(index))

    def __getitems__(self, indices: Any) -> Any:
        return {"lengths": torch.tensor([self[index] for index in indices])}


class NoBatches(Dataset):
    __getitems__ = None  # type: ignore[assignment]

    def __getitem__(self, index: Any) -> Any:
        return len(self.reader.read_one(index))


@pytest.mark.parametrize("kind", [BatchesBeside, NoBatches])
@pytest.mark.parametrize("loader", [fffs.torch.DataLoader, torch.utils.data.DataLoader])
def test_data_sets_that_take_integers(path: Path, kind: Any, loader: Any) -> None:
    dataset = kind(path)
    expected = [len(record) for record in Dataset(path)[:20]]
    subset, nested = Subset(dataset, range(20)), Subset(Subset(dataset, range(20)), range(20))
    parts = [dataset, subset, nested]
    if kind is not BatchesBeside:
        parts.append(dataset + dataset)
    for part in parts:
        assert part[3] == expected[3]
        assert [int(x) for x in loader(part, batch_size=None)][:20] == expected
        found = list(loader(part, batch_size=10, collate_fn=lambda samples: samples))
        batches = [batch["lengths"] if kind is BatchesBeside else batch for batch in found]
        assert [int(x) for batch in batches for x in batch][:20] == expected


@pytest.mark.parametrize("make", [iter, lambda data: map(bytes, data), lambda data: (record for record in data)])
def test_data_sets_that_return_iterators_can_be_joined(path: Path, make: Any) -> None:
    class Iterators(Dataset):
        def process(self, indices: Any, data: Any) -> Any:
            return make(data)

    both = Iterators(path) + Iterators(path)
    assert [bytes(record) for record in both[[1, 21]]] == [bytes(Dataset(path)[1])] * 2
    assert bytes(both[21]) == bytes(Dataset(path)[1])
    assert [bytes(record) for record in both[[21]]] == [bytes(Dataset(path)[1])]


def test_many_data_sets_that_refer_to_all_others(path: Path) -> None:
    datasets = [Dataset(path) for _ in range(40)]
    for dataset in datasets:
        dataset.others = datasets  # type: ignore[attr-defined]
        vars(dataset).update({f"other{k}": other for k, other in enumerate(datasets)})
    assert set(datasets[7].ffreaders()) == {dataset.reader for dataset in datasets}


@pytest.mark.parametrize(
    ("result", "named"), [({"x": 1, "y": 2}, "dict"), ("ab", "str"), ([1], "1 sample"), (5, "int")]
)
def test_data_sets_that_return_no_samples_cannot_be_joined(path: Path, result: Any, named: str) -> None:
    class Whole(Dataset):
        def process(self, indices: Any, data: Any) -> Any:
            return result

    with pytest.warns(UserWarning, match="1 sample") if named == "1 sample" else contextlib.nullcontext():
        assert Subset(Whole(path), [0, 1])[[0, 1]] == result
    with pytest.warns(UserWarning, match="1 sample") if named == "1 sample" else contextlib.nullcontext():
        with pytest.raises(UsageError, match=f"Whole returned {named} for 2 records"):
            (Dataset(path) + Whole(path))[[20, 21]]


class Reversed(fffs.FileReader):
    """A reader whose records are not those of the file."""

    def read(self, *arguments: Any, **options: Any) -> Any:
        return [record[::-1].copy() for record in super().read(*arguments, **options)]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_reader_of_the_users_makes_the_samples_of_every_loader(path: Path, workers: int) -> None:
    dataset = Dataset(path)
    dataset.reader = Reversed(path)
    for loader in (fffs.torch.DataLoader, torch.utils.data.DataLoader):
        found = [
            bytes(record.numpy()) for batch in loader(dataset, batch_size=1, num_workers=workers) for record in batch
        ]
        assert found == [bytes(record[::-1]) for record in Dataset(path)[:20]]


def test_copies_and_pickles_read_the_same(path: Path) -> None:
    dataset = Tagged(path)
    for other in (copy.copy(dataset), copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert plain(other[[3, 4]]) == plain(dataset[[3, 4]])


def test_a_child_of_fork_reads_on(path: Path) -> None:
    dataset = Tagged(path)
    before = plain(dataset[[1, 2]])
    if (child := os.fork()) == 0:
        os._exit(plain(dataset[[1, 2]]) != before)
    assert os.waitpid(child, 0)[1] == 0


def test_a_reader_used_after_close_is_an_error(path: Path) -> None:
    dataset = Tagged(path)
    dataset.reader.close()
    with pytest.raises(RuntimeError, match="has been closed"):
        dataset[[1]]
    own = Own(path)
    own.mine.close()
    with pytest.raises(RuntimeError, match="has been closed"):
        own[[1]]


def test_check_data_off_gives_damaged_records(tmp_path: Path) -> None:
    data = bytearray(write(tmp_path / "a.ffr", 4).read_bytes())
    data[-1] ^= 1
    (tmp_path / "a.ffr").write_bytes(data)
    with pytest.raises(fffs.errors.ChecksumError, match="record 3"):
        Dataset(tmp_path / "a.ffr")[[3]]
    assert len(Dataset(tmp_path / "a.ffr", check_data=False)[[3]][0]) == 64


# ---------------------------------------------------------------- other formats


@pytest.fixture(params=["tfrecord", "ofrecord", "bag"])
def other(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The records of ``path`` in another format."""
    if request.param == "bag":
        with fffs.granular.BagWriter(tmp_path / "a.bag") as bag:
            for k in range(20):
                bag.append(content(k, None))
        return tmp_path / "a.bag"
    name = tmp_path / ("a.tfrecord" if request.param == "tfrecord" else "part-0")
    with fffs.tfrecord.TFRecordWriter(name) if request.param == "tfrecord" else OFRecordWriter(name) as writer:
        for k in range(20):
            writer.write_one(b"\n\0" + content(k, None))
    return name


@pytest.mark.parametrize("workers", [0, 2])
def test_records_of_every_format_are_a_data_set(other: Path, workers: int) -> None:
    before = b"" if other.suffix == ".bag" else b"\n\0"
    dataset = Dataset(other)
    assert dataset[3].tobytes() == before + content(3, None)
    loader = fffs.torch.DataLoader(dataset, batch_size=6, num_workers=workers, collate_fn=list)
    found = [bytes(sample) for batch in loader for sample in batch]
    assert found == [before + content(k, None) for k in range(20)]


def test_changing_a_batch_changes_nothing_else(tmp_path: Path) -> None:
    """CPython shares bytes objects of length 1, and torch's tensors of read-only arrays are writable."""
    with fffs.granular.DatasetWriter(tmp_path / "d", {"a": "array", "t": "tree", "i": "png"}) as writer:
        for k in range(9):
            value = np.array(k, np.uint8)
            writer.append({"a": value, "t": [value], "i": np.array([[k]], np.uint8)})
    frame = bytes.fromhex("28b52ffd200109000061")  # b"a", compressed
    (tmp_path / "x.bagz").write_bytes(frame + len(frame).to_bytes(8, "little"))
    for path in (tmp_path / "d", tmp_path / "x.bagz"):
        for row in fffs.torch.DataLoader(Dataset(path), batch_size=None):
            for tensor in (row,) if isinstance(row, torch.Tensor) else (row["a"], row["t"][0], row["i"]):
                tensor += 100
    with fffs.open(tmp_path / "d") as reader:
        assert [int(row["a"]) for row in reader] == [int(row["t"][0]) for row in reader] == list(range(9))
    assert [bytes([k])[0] for k in range(256)] == list(range(256))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_granular_data_set_is_a_data_set_of_rows(tmp_path: Path, workers: int) -> None:
    with fffs.granular.DatasetWriter(tmp_path / "d", {"name": "utf8", "number": "int"}) as writer:
        for k in range(9):
            writer.append({"name": f"row {k}", "number": k})
    dataset = Dataset(tmp_path / "d")
    assert dataset[4] == {"name": "row 4", "number": 4}
    assert pickle.loads(pickle.dumps(dataset))[[8]] == [{"name": "row 8", "number": 8}]
    loader = fffs.torch.DataLoader(dataset, batch_size=4, num_workers=workers)
    batches = [(batch["name"], batch["number"].tolist()) for batch in loader]
    assert batches == [([f"row {k}" for k in part], list(part)) for part in (range(4), range(4, 8), range(8, 9))]


def test_a_class_of_a_program_is_sent_by_value(path: Path) -> None:
    """As Ray and Dask do with classes of ``__main__``."""

    class Lengths(Dataset):
        def __getitem__(self, indices: Any) -> Any:
            return [len(record) for record in self.reader.read(indices)]

    code = f"import pickle; found = pickle.loads({cloudpickle.dumps(Lengths(path))!r}); print(found[[3]])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"[{len(Dataset(path)[3])}]\n"
