"""The memory shared by workers and loader: batches do not change as long as they are referenced."""

from __future__ import annotations

import collections
import copy
import errno
import gc
import multiprocessing
import os
import pickle
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.reduction import ForkingPickler
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from engine_model import descriptors, wait_until
from inside import arena, importing
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader as StockLoader
from torch.utils.data._utils.collate import collate, default_collate_fn_map
from torch_samples import WARNINGS, Tagged, content, write

import fffs.torch
from fffs.torch import DataLoader, Dataset

pytestmark = [pytest.mark.filterwarnings(text) for text in WARNINGS]
N = 60


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("records") / "a.ffr", N)


@pytest.fixture
def own() -> Iterator[arena.Arena]:
    """An arena of one worker with two regions, without remains of earlier tests."""
    gc.collect()
    yield arena.Arena(1, 2)
    gc.collect()


def expected(k: int) -> list[int]:
    return list(content(k))


def send(own: arena.Arena, *values: int) -> Any:
    """Send values as a worker does, and receive them as its parent; None if no region is free."""
    parcel = own.take(0)
    if parcel is None:
        return None
    for place, sent in [parcel.new(torch.int32, (len(values),))]:
        place.copy_(torch.tensor(values))
        function, (argument, *rest) = sent.__reduce_ex__(4)
    rebuild, arguments = argument.__reduce__()
    return function(rebuild(*arguments), *rest)


@pytest.mark.parametrize("workers", [1, 2])
def test_kept_batches_do_not_change_however_many_they_are(path: Path, workers: int) -> None:
    batches = list(DataLoader(Dataset(path), 1, num_workers=workers))
    assert [batch[0].tolist() for batch in batches] == [expected(k) for k in range(N)]


def test_kept_parts_of_batches_do_not_change(path: Path) -> None:
    kept: list[Any] = []
    loader = DataLoader(Dataset(path), 2, num_workers=1, persistent_workers=True)
    for _ in range(2):
        for k, batch in enumerate(loader):
            if k % 7 == 0:
                kept += [(2 * k + 1, batch[1]), (2 * k, batch.numpy()[0]), (2 * k, memoryview(batch[0].numpy()))]
    del batch, loader
    gc.collect()
    assert len(kept) == 30
    assert all(list(np.asarray(record)) == expected(k) for k, record in kept)


def test_batches_may_be_written_to_and_outlive_the_loader(path: Path) -> None:
    batches = iter(DataLoader(Dataset(path), 4, num_workers=1))
    first, second = next(batches), next(batches)
    first += 1
    del batches
    gc.collect()
    assert first[0].tolist() == [(byte + 1) % 256 for byte in expected(0)]
    assert second[0].tolist() == expected(4)


def test_a_region_is_used_again_when_its_tensors_are_gone(own: arena.Arena) -> None:
    first, second = send(own, 1, 2), send(own, 3)
    assert send(own, 4) is None
    view = first[1:]
    del first
    assert send(own, 4) is None
    del view
    third = send(own, 5, 6, 7)
    assert (second.tolist(), third.tolist()) == ([3], [5, 6, 7])


def test_tensors_without_numbers_do_not_free_the_region_of_a_later_batch(own: arena.Arena) -> None:
    """The worker has freed the region of a batch of empty tensors before the parent receives it."""
    parcel = own.take(0)
    assert parcel is not None
    _, sent = parcel.new(torch.float32, (0, 4))
    data = ForkingPickler.dumps({"boxes": sent})
    assert parcel.size == 0
    parcel.give_back()
    later = [send(own, 1), send(own, 2)]
    assert pickle.loads(data)["boxes"].shape == (0, 4)
    assert send(own, 3) is None
    assert [tensor.tolist() for tensor in later] == [[1], [2]]


def test_batches_of_empty_tensors_between_others_arrive_as_they_were(path: Path) -> None:
    class Boxes(Dataset):
        def process(self, indices: list[int], data: list[Any]) -> list[Any]:
            return [torch.full((k % 3, 4), float(k)) for k in indices]

    loader = DataLoader(Boxes(path), 1, num_workers=1, collate_fn=itemgetter(0), prefetch_factor=4)
    for k, boxes in enumerate(loader):
        time.sleep(0.003)  # the worker takes regions meanwhile
        assert torch.equal(boxes, torch.full((k % 3, 4), float(k))), k


def test_a_kept_batch_costs_no_descriptor_for_each_child_that_ended(path: Path) -> None:
    batches = iter(DataLoader(Dataset(path), 4, num_workers=1))
    kept = next(batches)
    counts = []
    for _ in range(8):
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)
        counts.append(descriptors())
    assert max(counts) <= counts[0], "the pipe of a child stays open while the batch is kept"
    assert kept[0].tolist() == expected(0)


def test_a_failed_batch_gives_its_region_back(path: Path) -> None:
    class Odd(Tagged):
        def process(self, indices: list[int], data: list[Any]) -> list[Any]:
            return [np.zeros(3 if k else 4) for k in indices]

    batches = iter(DataLoader(Odd(path), batch_sampler=[[0, 1]] * 20 + [[1, 2]], num_workers=1))
    for _ in range(20):
        with pytest.raises(RuntimeError, match="equal size"):
            next(batches)
    assert next(batches).shape == (2, 3)
    assert batches._iterator.arena._busy[0:8].count(1) <= 1


def test_what_a_child_of_fork_holds_is_not_overwritten(own: arena.Arena) -> None:
    tensor = send(own, 11)
    ready, done = os.pipe(), os.pipe()
    if (child := os.fork()) == 0:
        os.write(ready[1], b"x")
        os.read(done[0], 1)
        os._exit(tensor.tolist() != [11])
    os.read(ready[0], 1)
    del tensor
    arena.settle()
    other = send(own, 12)
    assert send(own, 13) is None  # the child has the first region
    os.write(done[1], b"x")
    assert os.waitpid(child, 0)[1] == 0
    arena.settle()
    assert send(own, 14).tolist() == [14]
    assert other.tolist() == [12]
    for fd in (*ready, *done):
        os.close(fd)


def test_a_batch_that_arrives_while_forks_wait_belongs_to_their_children(own: arena.Arena) -> None:
    """Two threads fork while a third imports something, and the first child ends at once."""
    first, ready, done = send(own, 11), os.pipe(), os.pipe()
    batches: list[Any] = []
    ended: list[int] = []

    def fork(waits: bool) -> None:
        if (child := os.fork()) == 0:
            if waits:
                os.write(ready[1], b"x")
                os.read(done[0], 1)
            os._exit([batch.tolist() for batch in batches] != [[12]])
        ended.append(os.waitpid(child, 0)[1])

    forks = [threading.Thread(target=fork, args=[waits]) for waits in (False, True)]
    imports, imported = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: _import(imports, imported))
        imports.wait()
        for thread in forks:
            thread.start()
        wait_until(lambda: len(arena._forking) == 2)
        batches.append(send(own, 12))
        del first
        imported.set()
    os.read(ready[0], 1)
    forks[0].join()
    batches.clear()
    arena.settle()
    assert send(own, 13) is None  # the second child has both regions
    os.write(done[1], b"x")
    forks[1].join()
    assert ended == [0, 0]
    arena.settle()
    assert [send(own, k).tolist() for k in (14, 15)] == [[14], [15]]
    for fd in (*ready, *done):
        os.close(fd)


def _import(begun: threading.Event, end: threading.Event) -> None:
    with importing.importing:
        begun.set()
        end.wait()


def test_a_child_that_ends_gives_nothing_back(own: arena.Arena) -> None:
    tensor, other = send(own, 1), send(own, 2)
    if (child := os.fork()) == 0:
        del tensor, other
        gc.collect()
        arena.settle()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert send(own, 3) is None
    assert (tensor.tolist(), other.tolist()) == ([1], [2])


def test_a_child_that_cannot_be_watched_keeps_its_batches(own: arena.Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptor is left when a process is forked."""

    def refuse() -> tuple[int, int]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    tensor = send(own, 11)
    with monkeypatch.context() as patched:
        patched.setattr(arena, "pipe", refuse)
        if (child := os.fork()) == 0:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    del tensor
    arena.settle()
    assert send(own, 12, 13).tolist() == [12, 13]  # in the second region, which is free again
    assert [send(own, k).tolist() for k in (14, 15)] == [[14], [15]]
    arena.settle()
    assert own._busy[:2] == b"\1\0"


class Separate(collections.UserDict[str, torch.Tensor]):
    """A mapping that pickles each of its values on its own."""

    def __reduce__(self) -> Any:
        return _together, ([(key, bytes(ForkingPickler.dumps(value))) for key, value in self.data.items()],)


def _together(items: list[tuple[str, bytes]]) -> Separate:
    return Separate({key: pickle.loads(value) for key, value in items})


def test_parts_of_a_batch_that_are_pickled_separately_do_not_change(own: arena.Arena) -> None:
    parcel = own.take(0)
    assert parcel is not None
    parts = {}
    for k, name in enumerate("abc"):
        place, parts[name] = parcel.new(torch.int32, (2,))
        place.fill_(k)
    batch = pickle.loads(ForkingPickler.dumps(Separate(parts)))
    del batch["a"]
    assert [send(own, k, k) for k in (7, 8)] == [None, None]  # further batches do not use the arena
    assert [batch[name].tolist() for name in "bc"] == [[1, 1], [2, 2]]
    assert own._busy[:2] == b"\0\0"


def test_mappings_that_pickle_their_values_separately_arrive_as_they_were(path: Path) -> None:
    class Mappings(Dataset):
        def process(self, indices: list[int], data: list[Any]) -> list[Any]:
            return [Separate({name: torch.full((64,), k) for name in "xy"}) for k in indices]

    kept = []
    for batch in DataLoader(Mappings(path), 2, num_workers=1):
        assert type(batch) is Separate
        del batch["x"]
        time.sleep(0.003)  # the worker writes further batches meanwhile
        kept.append(batch["y"])
    assert [tensor[:, 0].tolist() for tensor in kept] == [[k, k + 1] for k in range(0, N, 2)]


def test_nothing_is_left_open_or_in_dev_shm(path: Path) -> None:
    ours = {os.getpid()}

    def run() -> None:
        loader = DataLoader(Dataset(path), 4, num_workers=1)
        batches = iter(loader)
        ours.update(process.pid for process in multiprocessing.active_children())
        assert len(list(batches)) > 1

    def files() -> int:
        gc.collect()
        return descriptors()

    run()
    before = files()  # including files that torch opens once, and may be about to close
    for _ in range(3):
        run()
    wait_until(lambda: files() <= before)
    # torch_PID_...: files of other tests have other numbers.
    left = [name for name in os.listdir("/dev/shm") if name.startswith("torch_")]
    assert not ours.intersection(int(name.split("_")[1]) for name in left)
    assert len(ours) == 5


def test_every_kind_of_tensor_arrives_as_it_was(path: Path) -> None:
    samples = list(DataLoader(Kinds(path), 2, num_workers=1))[1]
    direct = list(DataLoader(Kinds(path), 2))[1]
    assert samples.keys() == direct.keys()
    for name, value in direct.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(samples[name], value), name
            assert (samples[name].dtype, samples[name].shape) == (value.dtype, value.shape), name
        else:
            assert samples[name] == value


class Kinds(Tagged):
    def process(self, indices: list[int], data: list[Any]) -> list[Any]:
        return [
            {
                "scalar": k,
                "float": float(k),
                "text": str(k),
                "bool": torch.tensor([k > 2]),
                "half": torch.tensor(k, dtype=torch.bfloat16),
                "complex": torch.tensor([1j * k]),
                "empty": torch.empty(0, 3),
                "transposed": torch.arange(6).view(2, 3).t() + k,
                "array": np.full((2, 2), k, np.int16),
                "date": np.float32(k),
            }
            for k in indices
        ]


def strided(batch: list[Any]) -> list[torch.Tensor]:
    keys = torch.tensor([k for k, _ in batch])
    images = keys.view(-1, 1, 1, 1).repeat(1, 3, 4, 5)
    return [
        images.contiguous(memory_format=torch.channels_last),
        images[:, 0, 0].t(),
        images[:, :, 0].transpose(1, 2),
        images[..., ::2],
        keys.expand(3, -1),
        keys[:1].expand(7),
        images,
        # These count as contiguous, whatever the strides of dimensions of the size 1 are.
        images[..., :1].permute(0, 3, 1, 2),
        torch.empty_strided((4, 1, 4, 5), (20, 1, 5, 1), dtype=torch.int64).copy_(images[:, :1]),
        keys[:1].as_strided((1, 1), (7, 9)),
        keys[:0].as_strided((0, 3), (5, 2)),
    ]


@pytest.mark.parametrize("kind", [DataLoader, StockLoader])
def test_tensors_keep_their_strides(path: Path, kind: Any) -> None:
    """A program may use ``view``, which depends on them."""
    batches = list(kind(Tagged(path), 4, num_workers=1, collate_fn=strided))
    direct = list(kind(Tagged(path), 4, collate_fn=strided))
    assert len(batches) == len(direct)
    for batch, other in zip(batches, direct, strict=True):
        assert [tensor.stride() for tensor in batch] == [tensor.stride() for tensor in other]
        assert all(map(torch.equal, batch, other))


class Checked(NamedTuple("_Checked", [("numbers", torch.Tensor)])):
    """A named tuple whose constructor looks at its item."""

    def __new__(cls, numbers: torch.Tensor) -> Checked:
        assert numbers.device.type == "cpu"
        return super().__new__(cls, numbers)


class CheckedDict(dict[str, torch.Tensor]):
    """A mapping that looks at its values."""

    def update(self, other: Any) -> None:  # type: ignore[override]
        assert all(isinstance(value, torch.Tensor) for value in other.values())
        super().update(other)


def packed(batch: list[Any]) -> Any:
    return pack_sequence([torch.arange(1.0 + int(k)) for k, _ in batch], enforce_sorted=False)


def nested(batch: list[Any]) -> Any:
    return torch.nested.nested_tensor([torch.arange(1.0 + int(k)) for k, _ in batch], layout=torch.strided)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("collate", [packed, nested])
def test_what_torchs_loader_passes_from_a_worker_ours_passes(path: Path, collate: Any) -> None:
    ours, torchs = (
        list(kind(Tagged(path), 4, num_workers=1, collate_fn=collate)) for kind in (DataLoader, StockLoader)
    )
    assert [type(batch) for batch in ours] == [type(batch) for batch in torchs]
    for batch, other in zip(ours, torchs, strict=True):
        parts, others = (value.unbind() if isinstance(value, torch.Tensor) else value[:2] for value in (batch, other))
        assert all(torch.equal(part, its) for part, its in zip(parts, others, strict=True))


def test_containers_that_look_at_their_items_see_tensors(path: Path) -> None:
    class Samples(Tagged):
        def process(self, indices: list[int], data: list[Any]) -> list[Any]:
            return [(Checked(torch.tensor([k])), CheckedDict(n=torch.tensor([k]))) for k in indices]

    for k, (checked, mapping) in enumerate(DataLoader(Samples(path), 4, num_workers=1)):
        assert type(checked) is Checked and type(mapping) is CheckedDict
        assert checked.numbers.tolist() == mapping["n"].tolist() == [[k] for k in range(4 * k, 4 * k + 4)]
        assert type(checked.numbers) is type(mapping["n"]) is torch.Tensor


class Named(collections.namedtuple("_Named", "numbers text")):
    """A named tuple with attributes."""


def attributes(batch: list[Any]) -> Any:
    named = Named(torch.ones(2), "text")
    named.path = "a.jpg"  # type: ignore[attr-defined]
    return named


def cycle(batch: list[Any]) -> Any:
    values: list[Any] = [torch.arange(3.0)]
    values.append(values)
    return values


def expanded(batch: list[Any]) -> Any:
    return {"keys": torch.tensor([k for k, _ in batch]), "mask": torch.ones(1, 64, 64).expand(1 << 24, 64, 64)}


def test_named_tuples_keep_their_attributes(path: Path) -> None:
    for named in DataLoader(Tagged(path), 20, num_workers=1, collate_fn=attributes):
        assert (type(named), named.path, named.numbers.tolist()) == (Named, "a.jpg", [1, 1])


def test_lists_within_themselves_arrive(path: Path) -> None:
    batches = iter(DataLoader(Tagged(path), 4, num_workers=1, collate_fn=cycle))
    for values in batches:
        assert values[1] is values
        assert values[0].tolist() == [0, 1, 2]
    assert b"\1" not in batches._iterator.arena._busy[:]


def test_an_expanded_tensor_takes_no_more_memory_than_it_has(path: Path) -> None:
    (first, *_) = DataLoader(Tagged(path), 20, num_workers=1, collate_fn=expanded)
    assert first["mask"].untyped_storage().nbytes() == 64 * 64 * 4
    assert first["mask"].shape == (1 << 24, 64, 64)
    assert first["keys"].tolist() == list(range(20))


class Changed:
    """Samples that are collated by a function which changes the result of another one."""

    def __init__(self, number: int) -> None:
        self.number = number


CHANGES: dict[str, Any] = {
    "unsqueeze_": lambda tensor: tensor.unsqueeze_(1),
    "t_": lambda tensor: tensor.t_(),
    "resize_": lambda tensor: tensor.resize_(2),
    "requires_grad_": lambda tensor: tensor.requires_grad_(),
    "deepcopy": lambda tensor: copy.deepcopy(tensor),
    "add_": lambda tensor: tensor.add_(1),
    "data": lambda tensor: setattr(tensor, "data", torch.zeros(5)) or tensor,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_batch_that_a_collate_function_changed_arrives_changed(
    path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Samples(Tagged):
        def process(self, indices: list[int], data: list[Any]) -> list[Any]:
            return [Changed(k) for k in indices]

    def changed(batch: list[Changed], *, collate_fn_map: Any = None) -> Any:
        numbers = [torch.arange(3.0) + sample.number for sample in batch]
        return CHANGES[change](collate(numbers, collate_fn_map=collate_fn_map))

    monkeypatch.setitem(default_collate_fn_map, Changed, changed)
    direct, sent = (list(DataLoader(Samples(path), 4, num_workers=workers)) for workers in (0, 1))
    for batch, other in zip(direct, sent, strict=True):
        assert type(other) is torch.Tensor
        assert torch.equal(batch, other)
        assert batch.requires_grad == other.requires_grad


def test_a_limit_on_file_sizes_only_makes_it_slower(path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 28, before[1]))
    try:
        batches = list(DataLoader(Tagged(path), 4, num_workers=1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [k for keys, _ in batches for k in keys.tolist()] == list(range(N))


def test_a_batch_of_records_can_be_pinned_and_moved(path: Path) -> None:
    (batch,) = DataLoader(fffs.torch.Dataset(path), 2, sampler=[1, 2])
    records = fffs.torch.RecordBatch(batch.view(-1), torch.tensor([0, 64, 128]))
    moved = records.to(torch.int32)
    assert moved.data.dtype == torch.int32
    assert [record.tolist() for record in moved] == [expected(1), expected(2)]


KEEPING = """
import sys, fffs.torch
kept = []
try:
    for batch in fffs.torch.DataLoader(fffs.torch.Dataset(sys.argv[1]), batch_size=1, num_workers=1):
        kept.append(batch)
except RuntimeError as error:
    assert len(kept) > 4 and "shared memory" in str(error), error
    print("refused")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small /dev/shm")
def test_a_lack_of_shared_memory_for_batches_that_are_kept_is_an_error(tmp_path: Path) -> None:
    """As where a container has 64 MB of it. Many batches that are kept at a time are sent in torch's way."""
    with fffs.FileWriter(tmp_path / "r.ffr", 60) as writer:
        for _ in range(60):
            writer.write_one(bytes(1 << 20))
    command = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=8m none /dev/shm && exec "$@"', "sh"]
    done = subprocess.run(
        [*command, sys.executable, "-c", KEEPING, tmp_path / "r.ffr"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "refused\n", done.stderr


class Nested(torch.utils.data.IterableDataset[Any]):
    """Reads with a loader of its own in the worker, as a buffer that shuffles does."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[bool]:
        for batch in fffs.torch.DataLoader(fffs.torch.Dataset(self.path), batch_size=2):
            yield any(tensor.is_shared() for tensor in (batch.data, batch.offsets))


def test_batches_of_a_loader_in_a_worker_are_not_shared(tmp_path: Path) -> None:
    """They stay in that process. Each would cost two descriptors, and a container has little shared memory."""
    path = write(tmp_path / "a.ffr", N, None)
    for outer in (torch.utils.data.DataLoader, fffs.torch.DataLoader):
        assert not any(outer(Nested(path), batch_size=None, num_workers=1))
