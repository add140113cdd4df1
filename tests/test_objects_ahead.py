"""Records of objects that are read before they are asked for: same bytes, same errors, nothing fetched twice."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import object_server
import pytest
import torch
from inside import ffi, lib
from mounting import wait_until
from object_server import ObjectServer, Request, flip, late, status

import fffs
import fffs.torch
from fffs.errors import ChecksumError, ReadError, RecordIndexError, SourceChangedError

COUNT = 64
RECORDS = [random.Random(k).randbytes(70_000 + 13 * k) for k in range(COUNT)]


@pytest.fixture(params=["off", "on"])
def cache(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("FFFS_CACHE", "off" if request.param == "off" else str(tmp_path / "cache"))
    return str(request.param)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("ahead") / "r.ffr"
    with fffs.FileWriter(path, COUNT) as writer:
        for record in RECORDS:
            writer.write_one(record)
    return path.read_bytes()


@pytest.fixture
def url(server: ObjectServer, packed: bytes) -> str:
    return server.put("r.ffr", packed)


def _same(records: Any, numbers: list[int]) -> bool:
    return [bytes(record) for record in records] == [RECORDS[k] for k in numbers]


def _fetched(server: ObjectServer) -> int:
    return sum(request.end - request.start for request in server.requests)


def test_what_was_prefetched_is_not_fetched_again(server: ObjectServer, url: str, cache: str) -> None:
    numbers = list(range(5, 40, 3))
    with fffs.FileReader(url) as reader:
        before = len(server.requests)
        reader.prefetch([*numbers, *numbers])
        assert _same(reader.read(numbers), numbers)
        requests = server.requests[before:]
        spans = sorted((request.start, request.end) for request in requests)
        assert spans
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
        if cache == "off":  # it is gone once it was read
            assert _same(reader.read(numbers), numbers)
            assert len(server.requests) > before + len(requests)


def test_repeated_and_other_records_of_a_batch(url: str, cache: str) -> None:
    with fffs.FileReader(url) as reader:
        reader.prefetch([1, 2, 3])
        assert _same(reader.read([3, 9, 3, 1, 60, 3]), [3, 9, 3, 1, 60, 3])
        assert _same(reader.read([2]), [2])


def test_what_is_needed_soon_makes_no_room_for_what_is_needed_later(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is room for two of these records. The third is fetched when it is read."""
    monkeypatch.setenv("FFFS_CACHE", "off")
    monkeypatch.setattr(object_server, "etag_of", lambda data: '"large"')  # which takes a second
    size = 90 << 20
    with fffs.FileWriter(tmp_path / "large.ffr", 3) as writer:
        for _ in range(3):
            writer.write_one(bytes(size))
    with fffs.FileReader(server.put("large.ffr", (tmp_path / "large.ffr").read_bytes())) as reader:
        before = _fetched(server)
        for k in range(2):
            reader.prefetch([k])
        wait_until(lambda: _fetched(server) - before >= 2 * size)
        time.sleep(0.2)  # until they are complete
        reader.prefetch([2])
        for k in range(3):
            assert len(reader.read([k])[0]) == size
        assert _fetched(server) - before < 3.1 * size


def test_a_record_that_does_not_exist_is_refused(url: str) -> None:
    with fffs.FileReader(url) as reader, pytest.raises(RecordIndexError):
        reader.prefetch([COUNT])


def test_a_byte_that_changes_on_its_way_is_fetched_again(server: ObjectServer, url: str, cache: str) -> None:
    with fffs.FileReader(url) as reader:
        server.faults.append(flip(1000))
        reader.prefetch([7])
        assert _same(reader.read([7]), [7])


def test_a_damaged_record_is_an_error_when_it_is_read(server: ObjectServer, packed: bytes, cache: str) -> None:
    damaged = bytearray(packed)
    damaged[packed.index(RECORDS[7][:100]) + 50] ^= 1
    with fffs.FileReader(server.put("bad.ffr", bytes(damaged))) as reader:
        reader.prefetch([6, 7, 8])
        with pytest.raises(ChecksumError, match="record 7"):
            reader.read([6, 7, 8])
        assert _same(reader.read([6, 8]), [6, 8])


def test_an_object_that_was_replaced(server: ObjectServer, url: str, packed: bytes, cache: str) -> None:
    with fffs.FileReader(url) as reader:
        server.put("r.ffr", packed[:-1] + b"x")
        reader.prefetch([1, 2])
        with pytest.raises(SourceChangedError):
            reader.read([1, 2])


def test_a_reader_without_checks_gets_no_less_than_it_asks_for(url: str, cache: str) -> None:
    with fffs.FileReader(url, check_data=False) as unchecked, fffs.FileReader(url) as reader:
        unchecked.prefetch([4, 5])
        assert _same(reader.read([4, 5]), [4, 5])
        assert _same(unchecked.read([4, 5]), [4, 5])


def test_a_server_that_does_not_answer_holds_up_no_other(
    server: ObjectServer, url: str, packed: bytes, cache: str
) -> None:
    released, results = threading.Event(), []

    def hold(request: Request, answer: Any) -> None:
        answer.hold = released if request.path == "/dead.ffr" else None

    with fffs.FileReader(server.put("dead.ffr", packed)) as dead, fffs.FileReader(url) as reader:
        server.always = hold
        asked = len(server.requests)
        dead.prefetch([1])
        dead.prefetch([9])
        wait_until(lambda: len(server.requests) == asked + 2)
        reader.prefetch([5, 6])
        thread = threading.Thread(target=lambda: results.append(_same(reader.read([5, 6, 7]), [5, 6, 7])))
        thread.start()
        thread.join(20)
        answered = not thread.is_alive()
        released.set()
        thread.join()
        assert answered
        assert results == [True]


def test_closing_while_records_are_on_their_way(server: ObjectServer, url: str, cache: str) -> None:
    """Another object may get the number of the closed one."""
    other = server.put("other.ffr", server.objects["/r.ffr"])
    reader = fffs.FileReader(url)
    server.always = late(0.3)
    reader.prefetch(list(range(COUNT)))
    reader.close()
    server.always = None
    with fffs.FileReader(other) as again:
        assert _same(again.read([3]), [3])


def test_a_child_of_fork(server: ObjectServer, url: str, cache: str) -> None:
    with fffs.FileReader(url) as reader:
        server.always = late(0.1)
        reader.prefetch([1, 2, 3])
        child = os.fork()
        if child == 0:
            reader.prefetch([2])
            os._exit(0 if _same(reader.read([1, 2, 3]), [1, 2, 3]) else 1)
        assert _same(reader.read([1, 2, 3]), [1, 2, 3])
        assert os.waitpid(child, 0)[1] == 0


def test_children_share_what_is_known_of_the_cache(url: str, tmp_path: Path) -> None:
    """The workers of an epoch are new children: they need not ask the map for what those of the last one found."""
    with fffs.FileReader(url, cache=tmp_path / "cache") as reader:
        [file] = reader.store.files
        view = ffi.new("fffs_request[1]")
        view[0].fd, view[0].offset, view[0].length = file.file.descriptor, reader.get_offsets()[5], len(RECORDS[5])
        view[0].check = lib.FFFS_CHECK_CRC32
        assert not lib.fffs_remote_is_hot(view, 1, False)
        child = os.fork()
        if child == 0:
            os._exit(0 if _same(reader.read([5]), [5]) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert lib.fffs_remote_is_hot(view, 1, False)


def test_threads_that_read_and_prefetch(url: str, cache: str) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        numbers = random.Random(seed)
        for _ in range(30):
            batch = numbers.sample(range(COUNT), 8)
            reader.prefetch(numbers.sample(range(COUNT), 8))
            if not _same(reader.read(batch), batch):
                wrong.append(seed)

    with fffs.FileReader(url) as reader:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


PROGRAM = """
import sys, fffs
reader = fffs.FileReader(sys.argv[1])
reader.prefetch(list(range(reader.n)))
"""


def test_a_program_that_ends_while_records_are_on_their_way(server: ObjectServer, url: str) -> None:
    def very_late(request: Request, answer: Any) -> None:
        if request.end - request.start > 1 << 18:
            late(3)(request, answer)

    server.always = very_late
    done = subprocess.run([sys.executable, "-c", PROGRAM, url], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


# ---------------------------------------------------------------- loaders


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_has_the_next_batches_fetched(
    server: ObjectServer, url: str, packed: bytes, cache: str, workers: int
) -> None:
    """While the program computes, the batches after the next are on their way or there."""
    loader: Any = fffs.torch.DataLoader(fffs.torch.Dataset(url), batch_size=4, num_workers=workers)
    batches = iter(loader)
    first = next(batches)
    # torch asks the workers for four batches in advance, and for one more when it has returned the first.
    known = 4 * (2 if workers == 0 else 2 * workers + 2)
    last = packed.index(RECORDS[known - 1][:100])
    wait_until(lambda: any(request.start <= last < request.end for request in server.requests))
    assert _same(map(_bytes, first), [0, 1, 2, 3])
    rest = [_bytes(record) for batch in batches for record in batch]
    assert rest == RECORDS[4:]


def _bytes(record: torch.Tensor) -> bytes:
    return record.numpy().tobytes()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_of_objects_resumes_exactly(url: str, cache: str, workers: int) -> None:
    def loader() -> Any:
        order = torch.Generator().manual_seed(3)
        data = fffs.torch.Dataset(url)
        return fffs.torch.DataLoader(data, batch_size=4, shuffle=True, num_workers=workers, generator=order)

    def contents(batches: Any) -> list[list[bytes]]:
        return [[_bytes(record) for record in batch] for batch in batches]

    whole = contents(loader())
    assert sorted(record for batch in whole for record in batch) == sorted(RECORDS)
    stopped = loader()
    batches = iter(stopped)
    for _ in range(5):
        next(batches)
    state = stopped.state_dict()
    resumed = loader()
    resumed.load_state_dict(state)
    assert contents(resumed) == whole[5:]


def test_a_loader_whose_store_fails_for_a_moment(server: ObjectServer, url: str, cache: str) -> None:
    server.faults += [status(503)] * 6
    loader: Any = fffs.torch.DataLoader(fffs.torch.Dataset(url), batch_size=8, num_workers=0)
    assert [_bytes(record) for batch in loader for record in batch] == RECORDS


# ---------------------------------------------------------------- one part after the other


@pytest.fixture
def small_records(server: ObjectServer, tmp_path: Path) -> str:
    with fffs.FileWriter(tmp_path / "small.ffr", 2000) as writer:
        for k in range(2000):
            writer.write_one(k.to_bytes(4, "big") * 2000)
    return server.put("small.ffr", (tmp_path / "small.ffr").read_bytes())


def test_a_reader_in_order_has_the_next_steps_fetched(
    server: ObjectServer, small_records: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Steps follow each other without gaps, although the fetches of neighbouring ones overlap in time."""
    monkeypatch.setenv("FFFS_CACHE", str(tmp_path / "cache"))
    with fffs.FileReader(small_records) as reader:
        reader.store.use_caches()
        before = len(server.requests)
        server.always = late(0.01)
        for k in range(reader.n):
            assert bytes(reader.read_one(k)) == k.to_bytes(4, "big") * 2000
        spans = sorted((request.start, request.end) for request in server.requests[before:])
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    # The steps double from 256 KiB on, and requests have at most 1 MiB.
    assert len(spans) <= 40


def test_a_reader_in_random_order_has_nothing_else_fetched(
    server: ObjectServer, small_records: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FFFS_CACHE", str(tmp_path / "cache"))
    order = [k * 7 % 20 * 100 for k in range(20)]
    with fffs.FileReader(small_records) as reader:
        reader.store.use_caches()
        before = _fetched(server)
        for k in order:
            reader.read_one(k)
        assert _fetched(server) - before <= 20 * 3 * 4096


@pytest.mark.parametrize("hangs", [False, True])
def test_a_place_that_cannot_be_read_costs_only_its_record(
    server: ObjectServer, small_records: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hangs: bool
) -> None:
    """And not all that is fetched ahead together with it, which nobody asked for yet."""
    monkeypatch.setenv("FFFS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FFFS_DEADLINE", "2")
    monkeypatch.setattr(object_server, "etag_of", lambda data: '"small"')
    place, released = server.objects["/small.ffr"].index((1500).to_bytes(4, "big") * 2000) + 4000, threading.Event()

    def fail(request: Request, answer: Any) -> None:
        if not request.start <= place < request.end:
            return
        if hangs:
            answer.hold = released
        else:
            status(500)(request, answer)

    bad = []
    with fffs.FileReader(small_records) as reader:
        reader.store.use_caches()
        server.always = fail
        for k in range(reader.n):
            try:
                assert bytes(reader.read_one(k)) == k.to_bytes(4, "big") * 2000
            except ReadError:
                bad.append(k)
        asked = [(request.start, request.end) for request in server.requests if request.start <= place < request.end]
        released.set()
    assert bad == [1500]
    # Tries: of the record, and of one or two steps that it is in. The next ones leave it out.
    assert len(set(asked)) <= 3
