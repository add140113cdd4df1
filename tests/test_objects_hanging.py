"""Objects of stores and name servers that do not answer: who waits, how long, and who does not."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import fsspec
import numpy as np
import pytest
from builders import small_disk
from inside import Jobs, cache_settings, cache_upkeep, current_flag, engine, ffi, object_transfer
from mounting import Mounts, in_namespace, libc, pack_files, wait_until
from object_server import Answer, Fault, ObjectServer, Request, dripping, good, late, serving, status

import fffs
from fffs.errors import SourceNotFoundError

COUNT = 100
MANY = 50  # reads at a time: more than threads wait for one store


@pytest.fixture(scope="module")
def contents() -> dict[str, bytes]:
    return {f"{k:03}": random.Random(k).randbytes(20_000) for k in range(COUNT)}


@pytest.fixture
def url(server: ObjectServer, tmp_path: Path, contents: dict[str, bytes]) -> str:
    return server.put("p.ffr", pack_files(tmp_path / "p", **contents).read_bytes())


class Hold:
    """Has the server answer no more, from ``begin`` to ``end``."""

    def __init__(self, server: ObjectServer) -> None:
        self._server, self._released = server, threading.Event()

    def begin(self, then: Fault = good) -> None:
        """then: what becomes of the answers that are held."""

        def hold(request: Request, answer: Answer) -> None:
            then(request, answer)
            self.hold(request, answer)

        self._server.always = hold

    def hold(self, request: Request, answer: Answer) -> None:
        answer.hold = self._released

    def end(self) -> None:
        self._server.always = None
        self._released.set()


@pytest.fixture
def held(server: ObjectServer) -> Iterator[Hold]:
    hold = Hold(server)
    yield hold
    hold.end()


# ---------------------------------------------------------------- mounts


@pytest.mark.fuse
def test_cached_files_are_read_while_others_wait_for_the_store(
    url: str, held: Hold, contents: dict[str, bytes], mounts: Mounts, cache: Path
) -> None:
    """Also those that an earlier mount fetched, of which this one knows nothing yet."""
    before = mounts(cast(Any, url))
    assert (before / "003").read_bytes() == contents["003"]
    subprocess.run(["umount", before], check=True)
    point = mounts(cast(Any, url))
    held.begin()
    waiting = [_read_later(point / f"{k:03}") for k in range(COUNT - MANY, COUNT)]
    wait_until(lambda: mounts.daemon.threads() > 32)
    results: list[bytes] = []
    thread = threading.Thread(target=lambda: results.append((point / "003").read_bytes()))
    thread.start()
    thread.join(20)
    answered = not thread.is_alive()
    held.end()
    thread.join()
    for reader, _ in waiting:
        reader.join()
    assert answered
    assert results == [contents["003"]]
    assert {name: data for _, found in waiting for name, data in found} == {
        f"{k:03}": contents[f"{k:03}"] for k in range(COUNT - MANY, COUNT)
    }


def _read_later(path: Path) -> tuple[threading.Thread, list[tuple[str, bytes]]]:
    found: list[tuple[str, bytes]] = []
    thread = threading.Thread(target=lambda: found.append((path.name, path.read_bytes())))
    thread.start()
    return thread, found


@pytest.mark.fuse
def test_the_end_of_a_mount_waits_for_no_store(url: str, held: Hold, mounts: Mounts) -> None:
    point = mounts(cast(Any, url))
    held.begin()
    readers = [subprocess.Popen(["cat", point / f"{k:03}"], stderr=subprocess.DEVNULL) for k in range(MANY)]
    wait_until(lambda: mounts.daemon.threads() > 32)
    begin = time.monotonic()
    mounts.daemon.kill(signal.SIGTERM)
    assert mounts.daemon.wait(20)
    assert time.monotonic() - begin < 10
    assert {reader.wait(10) for reader in readers} == {1}


@pytest.mark.fuse
def test_a_damaged_block_of_the_cache_is_fetched_again_for_a_mount(
    server: ObjectServer, url: str, contents: dict[str, bytes], mounts: Mounts, cache: Path
) -> None:
    """Although it is in the page cache, where reads need not wait."""
    point = mounts(cast(Any, url))
    assert (point / "003").read_bytes() == contents["003"]  # fetches what follows, too
    assert (point / "004").read_bytes() == contents["004"]
    [data] = cache.glob("*.data")
    place = server.objects["/p.ffr"].index(contents["005"])
    wait_until(lambda: data.read_bytes()[place : place + 20_000] == contents["005"])
    with data.open("r+b") as file:
        file.seek(place + 10_000)
        file.write(b"damaged")
    assert (point / "005").read_bytes() == contents["005"]


def forget_pages(folder: Path) -> None:
    """Have the kernel forget the bytes of all files of a folder."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.mark.fuse
def test_damage_that_another_process_finds_makes_a_mount_verify_again(
    server: ObjectServer, url: str, contents: dict[str, bytes], mounts: Mounts, cache: Path
) -> None:
    find_damage(server, url, contents, mounts, cache)


@pytest.mark.fuse
def test_so_does_damage_of_a_cache_in_memory(
    server: ObjectServer,
    url: str,
    contents: dict[str, bytes],
    mounts: Mounts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tmpfs, and an overlay file system, as in containers, refuse to read without waiting."""
    with small_disk(tmp_path / "disk", 64 << 20) as disk:
        monkeypatch.setenv("FFFS_CACHE", str(disk / "cache"))
        find_damage(server, url, contents, mounts, disk / "cache")


def read_mount(url: str, contents: dict[str, bytes], mounts: Mounts) -> Path:
    """Mount an object, and read all of it."""
    point = mounts(cast(Any, url))
    assert {path.name: path.read_bytes() for path in point.iterdir()} == contents
    return point


def damage(cache: Path, at: int) -> None:
    """Change bytes of the only object in the cache."""
    [data] = cache.glob("*.data")
    with data.open("r+b") as file:
        file.seek(at)
        file.write(b"damaged")


def find_damage(server: ObjectServer, url: str, contents: dict[str, bytes], mounts: Mounts, cache: Path) -> None:
    point = read_mount(url, contents, mounts)
    damage(cache, server.objects["/p.ffr"].index(contents["005"]) + 10_000)
    [result] = cache_upkeep.verify_cached(cache_settings())
    assert result.damaged == 1
    forget_pages(point)
    assert {path.name: path.read_bytes() for path in point.iterdir()} == contents


@pytest.mark.fuse
def test_a_cache_whose_disk_loses_everything_under_a_mount(
    url: str, contents: dict[str, bytes], mounts: Mounts, cache: Path
) -> None:
    point = read_mount(url, contents, mounts)
    [data] = cache.glob("*.data")
    os.truncate(data, 5000)
    forget_pages(point)
    assert {path.name: path.read_bytes() for path in point.iterdir()} == contents


@pytest.mark.fuse
def test_a_cache_whose_end_is_lost_under_a_mount(
    url: str, contents: dict[str, bytes], mounts: Mounts, cache: Path
) -> None:
    """What is fetched again does not become the end of a hole, which would be taken for what was verified."""
    point = read_mount(url, contents, mounts)
    [data] = cache.glob("*.data")
    os.truncate(data, 5000)
    forget_pages(point)
    assert {name: (point / name).read_bytes() for name in reversed(contents)} == contents


@pytest.mark.fuse
def test_a_damaged_block_of_a_large_record_without_checksums_of_blocks(
    server: ObjectServer, mounts: Mounts, cache: Path, tmp_path: Path
) -> None:
    content = random.Random(1).randbytes(3 << 20)
    with fffs.FileWriter(tmp_path / "r.ffr", 1) as writer:
        writer.write_one(content)
    url = server.put("r.ffr", (tmp_path / "r.ffr").read_bytes())
    with fffs.FileReader(url) as reader:
        assert bytes(reader.read_one(0)) == content
    damage(cache, 2 << 20)
    [path] = mounts(cast(Any, url)).iterdir()
    assert path.read_bytes() == content


@pytest.mark.fuse
def test_damage_of_a_large_record_that_a_mount_with_a_full_cache_finds(
    server: ObjectServer, mounts: Mounts, cache: Path, tmp_path: Path
) -> None:
    content = random.Random(1).randbytes(3 << 20)
    with fffs.FileWriter(tmp_path / "r.ffr", 1) as writer:
        writer.write_one(content)
    url: Any = server.put("r.ffr", (tmp_path / "r.ffr").read_bytes())
    [path] = mounts(url).iterdir()
    assert path.read_bytes() == content
    damage(cache, 2 << 20)
    [other] = mounts(url, cache_size="4K").iterdir()
    assert other.read_bytes() == content
    forget_pages(path.parent)
    assert path.read_bytes() == content


@pytest.mark.fuse
def test_the_second_request_of_the_kernel_does_not_wait_again(
    server: ObjectServer, url: str, contents: dict[str, bytes], mounts: Mounts
) -> None:
    """After a failed read ahead, it asks once more for the page that a program wants."""
    point = mounts(cast(Any, url))
    assert (point / "003").read_bytes() == contents["003"]
    place = server.objects["/p.ffr"].index(contents["050"])
    server.requests.clear()
    server.always = status(404)
    mounts.daemon.expect("050: .*there is no such object")
    mounts.daemon.expect("reads failed, of 1 records")
    with pytest.raises(OSError, match="Input/output"):
        (point / "050").read_bytes()
    wait_until(lambda: "no such object" in mounts.daemon.log())
    asked = [request for request in server.requests if request.start <= place < request.end]
    assert len(asked) <= 2  # one is of the daemon, which finds out why


# ---------------------------------------------------------------- once is enough


@pytest.mark.parametrize("ahead", [False, True], ids=["read", "prefetched"])
@pytest.mark.parametrize("cached", [False, True], ids=["no cache", "cache"])
def test_a_failure_is_not_waited_for_again(
    server: ObjectServer, url: str, held: Hold, tmp_path: Path, ahead: bool, cached: bool
) -> None:
    """Neither of what was prefetched, nor to bypass the cache."""
    errors: list[Exception] = []
    with fffs.FileReader(url, cache=tmp_path / "cache" if cached else "off") as reader:
        asked = len(server.requests)
        held.begin(status(404))
        if ahead:
            reader.prefetch([5])
            wait_until(lambda: len(server.requests) == asked + 1)
        thread = threading.Thread(target=lambda: errors.extend(_error_of(reader, 5)))
        thread.start()
        wait_until(lambda: len(server.requests) == asked + 1)
        time.sleep(0.1)  # until the thread waits
        held.end()
        thread.join()
        assert [type(error) for error in errors] == [SourceNotFoundError]
        assert len(server.requests) == asked + 1
        assert not _error_of(reader, 5)


def _error_of(reader: fffs.FileReader, record: int) -> list[Exception]:
    try:
        reader.read([record])
    except Exception as error:
        return [error]
    return []


def test_a_large_record_that_fails_fails_once_for_all_that_wait(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FFFS_DEADLINE", "1")
    with fffs.FileWriter(tmp_path / "r.ffr", 1) as writer:
        writer.write_one(bytes(3 << 20))
    errors: list[BaseException] = []

    def read(place: int) -> None:
        try:
            reader.read_range(0, place, place + 1)
        except fffs.errors.ReadError as error:
            errors.append(error)

    with fffs.FileReader(server.put("r.ffr", (tmp_path / "r.ffr").read_bytes())) as reader:
        server.always = status(503)
        threads = [threading.Thread(target=read, args=(k,)) for k in range(8)]
        begin = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(errors) == 8
    assert time.monotonic() - begin < 3  # 8 deadlines are longer


def test_a_failure_is_that_of_its_record_only(
    server: ObjectServer, url: str, contents: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not of the next one, which waited for a block that both have a part of."""
    monkeypatch.setenv("FFFS_DEADLINE", "2")
    place = server.objects["/p.ffr"].index(contents["050"]) + 10_000
    results: dict[int, list[Any]] = {}

    def fail(request: Request, answer: Answer) -> None:
        if request.start <= place < request.end:
            status(500)(request, answer)

    def read(record: int) -> None:
        try:
            results[record] = [bytes(part) for part in reader.read([record])]
        except fffs.errors.ReadError:
            results[record] = []

    with fffs.FileReader(url, cache=tmp_path / "cache") as reader:
        asked = len(server.requests)
        server.always = fail
        threads = [threading.Thread(target=read, args=(record,)) for record in (50, 51)]
        threads[0].start()
        wait_until(lambda: len(server.requests) > asked)
        threads[1].start()
        for thread in threads:
            thread.join()
    assert results == {50: [], 51: [contents["051"]]}


# ---------------------------------------------------------------- how long a batch may fail


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few requests at a time, which fail soon."""
    monkeypatch.setenv("FFFS_DEADLINE", "1")
    monkeypatch.setenv("FFFS_CONNECTIONS", "4")


APART = list(range(0, COUNT, 2))
"""Records that are a request each."""


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("cached", [False, True], ids=["no cache", "cache"])
def test_a_store_that_does_not_answer_fails_a_batch_once(url: str, held: Hold, tmp_path: Path, cached: bool) -> None:
    """Its records are more than the requests at a time, of which each may fail for the deadline."""
    with fffs.FileReader(url, cache=tmp_path / "cache" if cached else "off") as reader:
        held.begin()
        begin = time.monotonic()
        with pytest.raises(fffs.errors.ReadError):
            reader.read(APART)
        assert time.monotonic() - begin < 5  # 13 deadlines


def test_a_store_that_does_not_answer_fails_the_steps_of_a_large_batch_once(
    server: ObjectServer, held: Hold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FFFS_DEADLINE", "2")
    with fffs.FileWriter(tmp_path / "r.ffr", 24) as writer:
        for _ in range(24):
            writer.write_one(bytes(4 << 20))
    url = server.put("r.ffr", (tmp_path / "r.ffr").read_bytes())
    with fffs.FileReader(url, cache=tmp_path / "cache") as reader:
        held.begin()
        begin = time.monotonic()
        with pytest.raises(fffs.errors.ReadError):
            reader.read(range(24))
        assert time.monotonic() - begin < 4  # three deadlines are six seconds


@pytest.mark.usefixtures("few")
def test_records_of_a_slow_store_are_all_asked_for_although_some_do_not_come(
    server: ObjectServer, url: str, held: Hold, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FFFS_CONNECTIONS", "8")
    place = server.objects["/p.ffr"].index(contents["010"])

    def slow(request: Request, answer: Answer) -> None:
        if request.start <= place:
            held.hold(request, answer)
        else:
            answer.delay = 0.1  # of all together more than the deadline

    with fffs.FileReader(url, cache="off") as reader:
        server.requests.clear()
        server.always = slow
        with pytest.raises(fffs.errors.ReadError):
            reader.read(APART)
    assert len({request.start for request in server.requests}) == len(APART)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("cached", [False, True], ids=["no cache", "cache"])
def test_several_stores_that_do_not_answer_fail_a_batch_together(
    server: ObjectServer, url: str, tmp_path: Path, cached: bool
) -> None:
    with contextlib.ExitStack() as stack:
        others = [stack.enter_context(serving()) for _ in range(2)]
        urls = [url, *(other.put("p.ffr", server.objects["/p.ffr"]) for other in others)]
        reader = stack.enter_context(fffs.FileReader(urls, cache=tmp_path / "cache" if cached else "off"))
        for one in (server, *others):
            held = Hold(one)
            stack.callback(held.end)
            held.begin()
        begin = time.monotonic()
        with pytest.raises(fffs.errors.ReadError):
            reader.read(range(0, reader.n, 2))
        assert time.monotonic() - begin < 6  # 13 deadlines each


@pytest.mark.parametrize("first", [0, COUNT // 2], ids=["the same", "and others"])
def test_records_that_another_thread_could_not_fetch_are_not_fetched_again(
    server: ObjectServer, url: str, held: Hold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """Their failures may come together, or while this thread fetches others."""
    monkeypatch.setenv("FFFS_DEADLINE", "2")
    with fffs.FileReader(url, cache=tmp_path / "cache") as reader, ThreadPoolExecutor(2) as pool:
        server.requests.clear()
        held.begin()
        begin = time.monotonic()
        one = pool.submit(reader.read, APART)
        wait_until(lambda: len(server.requests) >= 4)
        other = pool.submit(reader.read, [k for k in range(COUNT) if k % 2 == 0 or k >= COUNT - first])
        for job in (one, other):
            assert isinstance(job.exception(), fffs.errors.ReadError)
        assert time.monotonic() - begin < 3.9  # two deadlines are four seconds


def test_a_range_is_repeated_as_a_whole_before_it_is_divided(
    server: ObjectServer, url: str, held: Hold, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead connection is likelier than a place that the store cannot read, and many parts may get more of these."""
    monkeypatch.setenv("FFFS_DEADLINE", "8")  # the range is repeated after two seconds; a busy machine may need one
    with fffs.FileReader(url, cache="off") as reader:
        server.requests.clear()
        server.faults = [held.hold]
        assert [bytes(record) for record in reader.read(range(40))] == [contents[f"{k:03}"] for k in range(40)]
    first, second = server.requests[:2]
    assert (first.start, first.end) == (second.start, second.end)


def test_connections_that_a_gateway_forgot_are_not_tried_one_after_the_other(
    server: ObjectServer, url: str, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FFFS_DEADLINE", "6")
    with fffs.FileReader(url, cache="off") as reader:
        server.always = late(0.1)  # so that there is a connection for each record
        reader.read(APART)
        server.always = None
        assert server.connections > 10
        server.forgotten = server.connections
        for k in range(3):
            assert bytes(reader.read([k])[0]) == contents[f"{k:03}"]
        assert server.connections - server.forgotten == 1, "the new connection is used again"
        reader.read(APART)


def test_requests_that_wait_behind_others_keep_their_place(
    server: ObjectServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that serves a few requests a second and lets the others wait would be asked twice for each."""
    monkeypatch.setenv("FFFS_DEADLINE", "8")  # a request that waits for a quarter of it, two seconds, might be repeated
    monkeypatch.setenv("FFFS_CONNECTIONS", "16")

    def serve(turn: threading.Event) -> None:
        time.sleep(0.18)
        turn.set()

    def serve_in_turn(request: Request, answer: Answer) -> None:
        answer.hold = threading.Event()
        queue.submit(serve, answer.hold)

    pairs = [k for k in range(COUNT) if k % 3 < 2]  # each pair is a request
    with fffs.FileReader(url, cache="off") as reader, ThreadPoolExecutor(1) as queue:
        server.requests.clear()
        server.always = serve_in_turn
        reader.read(pairs)
        server.always = None
    assert len(server.requests) == len({request.start for request in server.requests}) == (COUNT + 2) // 3


@pytest.mark.usefixtures("few")
def test_another_store_is_asked_although_one_does_not_answer(
    server: ObjectServer, url: str, held: Hold, tmp_path: Path
) -> None:
    with (
        serving() as other,
        fffs.FileReader([url, other.put("p.ffr", server.objects["/p.ffr"])], cache="off") as reader,
    ):
        other.requests.clear()
        held.begin()
        with pytest.raises(fffs.errors.ReadError):
            reader.read([*APART, *(reader.n // 2 + k for k in APART)])
        assert len(other.requests) == len(APART)


@pytest.mark.parametrize("cached", [False, True], ids=["no cache", "cache"])
@pytest.mark.parametrize("hangs", [False, True], ids=["refuses", "hangs"])
@pytest.mark.parametrize("first", [0, 40], ids=["all", "one request"])
def test_a_place_that_cannot_be_read_costs_a_batch_only_its_record(
    server: ObjectServer,
    url: str,
    held: Hold,
    contents: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    cached: bool,
    hangs: bool,
    first: int,
) -> None:
    """And not the records that are fetched with it in one request."""
    monkeypatch.setenv("FFFS_DEADLINE", "4")
    monkeypatch.setenv("FFFS_CACHE", str(tmp_path / "cache") if cached else "off")
    files = fsspec.filesystem("ffr", fo=url, skip_instance_cache=True)
    place = server.objects["/p.ffr"].index(contents["050"]) + 10_000
    names = [f"{k:03}" for k in range(first, 2 * 50 - first)]

    def fail(request: Request, answer: Answer) -> None:
        if request.start <= place < request.end:
            (held.hold if hangs else status(500))(request, answer)

    server.always = fail
    begin = time.monotonic()
    assert files.cat(names, on_error="omit") == {name: contents[name] for name in names if name != "050"}
    assert time.monotonic() - begin < 20  # two batches, each of the deadline and one try


def test_a_store_that_refuses_all_is_not_asked_for_each_record(
    server: ObjectServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FFFS_DEADLINE", "2")
    with fffs.FileReader(url, cache="off") as reader:
        server.requests.clear()
        server.always = status(500)
        begin = time.monotonic()
        with pytest.raises(fffs.errors.ReadError):
            reader.read(range(COUNT))
        assert time.monotonic() - begin < 4
    assert len({request.start for request in server.requests}) < COUNT // 4
    assert len(server.requests) < COUNT


@pytest.mark.parametrize("records", [1, COUNT // 2])
def test_a_store_that_is_busy_is_asked_until_the_deadline(
    server: ObjectServer, url: str, monkeypatch: pytest.MonkeyPatch, records: int
) -> None:
    """And not only until the next pause would be longer than the rest."""
    monkeypatch.setenv("FFFS_DEADLINE", "2")
    with fffs.FileReader(url, cache="off") as reader:
        server.always = status(503)
        begin = time.monotonic()
        with pytest.raises(fffs.errors.ReadError):
            reader.read(APART[:records])
        assert 1.9 < time.monotonic() - begin < 6


def test_a_busy_store_is_asked_for_less_at_a_time_and_then_for_more_again(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers to what is in flight together halve the number of requests at a time once, and good ones raise it."""
    monkeypatch.setenv("FFFS_CONNECTIONS", "16")
    pack = pack_files(tmp_path / "p", **{f"{k:03}": bytes([k % 256]) * 2000 for k in range(300)})
    held: list[threading.Event] = []
    flights = []

    def hold(request: Request, answer: Answer) -> None:
        answer.hold = threading.Event()
        held.append(answer.hold)

    with (
        fffs.FileReader(server.put("p.ffr", pack.read_bytes()), cache="off") as reader,
        ThreadPoolExecutor(1) as pool,
    ):
        server.always, server.faults = hold, [status(503)] * 6
        job = pool.submit(reader.read, range(0, 300, 2))
        while not job.done():
            before = -1
            while before < len(held):  # until no more come
                before = len(held)
                time.sleep(0.2)
            flights.append(before)
            for event in held[:before]:
                event.set()
            del held[:before]
        assert [bytes(record) for record in job.result()] == [bytes([k % 256]) * 2000 for k in range(0, 300, 2)]
    assert flights[0] == 16
    assert max(flights[1:]) > 8


def test_a_transfer_that_stalls_after_more_than_the_deadline_is_repeated(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a router forgets a connection."""
    monkeypatch.setenv("FFFS_DEADLINE", "2")
    record = random.Random(1).randbytes(300_000)
    with fffs.FileWriter(tmp_path / "r.ffr", 1) as writer:
        writer.write_one(record)
    with fffs.FileReader(server.put("r.ffr", (tmp_path / "r.ffr").read_bytes()), cache="off") as reader:
        server.requests.clear()
        server.faults.append(dripping(0.1, size=10_000, stall=250_000))
        assert bytes(reader.read_one(0)) == record
    [first, second] = server.requests
    assert second.start == first.start + 250_000


def test_a_store_that_brings_little_with_each_request_fails_in_time(
    server: ObjectServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FFFS_DEADLINE", "3")
    with fffs.FileReader(url, cache="off") as reader:
        server.always = dripping(0.01, size=260, stall=260)
        begin = time.monotonic()
        with pytest.raises(fffs.errors.ReadError, match="hardly a byte came for 1 second"):
            reader.read_one(5)
        assert time.monotonic() - begin < 20  # all of it would take more than a minute


# ---------------------------------------------------------------- interrupts


CLOCK = r"""
#define _GNU_SOURCE
#include <time.h>
#include <unistd.h>
#include <sys/syscall.h>
int clock_gettime(clockid_t clock, struct timespec *time)
{
    long status = syscall(SYS_clock_gettime, clock, time);
    if (clock == CLOCK_REALTIME)
        time->tv_sec += 3600;
    return (int)status;
}
"""

WAITING = """
import sys, threading
import fffs

with fffs.FileReader(sys.argv[1], cache=sys.argv[2]) as reader:
    print(flush=True)
    sys.stdin.readline()
    threading.Thread(target=reader.read, args=([50],), daemon=True).start()
    sys.stdin.readline()
    reader.read([50])
"""


def test_a_time_of_day_that_is_set_back_delays_no_interrupt(
    server: ObjectServer, url: str, held: Hold, tmp_path: Path
) -> None:
    """As if it was set back by an hour after each look at it: who waits for what another thread fetches looks again."""
    (tmp_path / "clock.c").write_text(CLOCK)
    compiler = shutil.which("cc") or shutil.which("gcc") or "clang"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", tmp_path / "clock.so", tmp_path / "clock.c"], check=True)
    command = [sys.executable, "-c", WAITING, url, str(tmp_path / "cache")]
    environment = {**os.environ, "LD_PRELOAD": str(tmp_path / "clock.so")}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        asked = len(server.requests)
        held.begin()
        process.stdin.write(b"\n")
        process.stdin.flush()
        wait_until(lambda: len(server.requests) > asked)
        process.stdin.write(b"\n")
        process.stdin.flush()
        time.sleep(0.2)  # until it waits
        process.send_signal(signal.SIGINT)
        try:
            assert b"KeyboardInterrupt" in process.communicate(timeout=10)[1]
        finally:
            process.kill()


def test_an_interrupted_batch_is_not_used_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the thread that reads it would write to memory that is freed."""
    begun, ended = threading.Event(), threading.Event()

    def read(view: Any, count: int, cancel: Any) -> int:
        begun.set()
        wait_until(lambda: cancel[0])
        time.sleep(0.2)
        ended.set()
        return 0

    def interrupt() -> None:
        begun.wait()
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    fake = SimpleNamespace(fffs_remote_is_hot=lambda view, count, wait: 0, fffs_remote_read_batch=read)
    monkeypatch.setattr(object_transfer, "lib", fake)
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        object_transfer.read_batch(np.zeros(1, engine.REQUEST))
    assert ended.is_set()


def test_a_cancelled_task_does_not_delay_the_end_of_asyncio(
    url: str, held: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio waits for its threads before it ends."""
    monkeypatch.setenv("FFFS_DEADLINE", "30")

    async def give_up() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(reader.read_async(APART), 0.5)

    with fffs.FileReader(url, cache="off") as reader:
        held.begin()
        begin = time.monotonic()
        asyncio.run(give_up())
        assert time.monotonic() - begin < 10


OPEN_PARTS = "import fffs, sys; fffs.FileReader(sys.argv[1:])"


def test_an_interrupt_ends_the_opening_of_parts(server: ObjectServer, url: str, held: Hold) -> None:
    asked = len(server.requests)
    held.begin()
    command = [sys.executable, "-c", OPEN_PARTS, *[url] * 9]
    process = subprocess.Popen(command, env={**os.environ, "FFFS_CACHE": "off"}, stderr=subprocess.PIPE)
    wait_until(lambda: len(server.requests) == asked + 9)
    process.send_signal(signal.SIGINT)
    begin = time.monotonic()
    process.communicate(timeout=30)
    assert time.monotonic() - begin < 10
    assert process.returncode != 0


def test_an_interrupt_ends_the_reads_of_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of unpacking, converting and packing a folder of a store."""
    begun, stopped = threading.Semaphore(0), threading.Semaphore(0)

    def read(view: Any, count: int, cancel: Any) -> int:
        begun.release()
        if cancel != ffi.NULL:
            wait_until(lambda: cancel[0])
            stopped.release()
        return 0

    def interrupt() -> None:
        for _ in range(2):
            begun.acquire()
        time.sleep(0.1)  # until the main thread waits
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(object_transfer, "lib", SimpleNamespace(fffs_remote_read_batch=read))
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        Jobs(1, None).run(lambda _: object_transfer.read_batch(np.zeros(1, engine.REQUEST)) and None, [1, 2], 2, 1)
    assert stopped.acquire(blocking=False)
    assert stopped.acquire(blocking=False)


def test_what_ends_the_reads_of_other_jobs_is_what_is_raised() -> None:
    """They fail then, too, but not for a reason of their own."""
    begun = threading.Barrier(2)

    def work(item: int) -> None:
        begun.wait()
        if item == 2:
            raise fffs.errors.AccessError("no access to 2")
        flag = current_flag()
        assert flag is not None
        wait_until(lambda: flag.is_set)
        raise fffs.errors.ReadError(errno.ECANCELED, "1")

    with pytest.raises(fffs.errors.AccessError, match="no access to 2"):
        Jobs(1, None).run(work, [1, 2], 2, 1)


# ---------------------------------------------------------------- names


OPEN = """
import fffs, signal, sys, threading, os
if sys.argv[1:]:
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
fffs.FileReader("https://objects.example.com/x.ffr")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make namespaces")
@pytest.mark.parametrize("interrupt", [True, False])
def test_a_name_server_that_does_not_answer(interrupt: bool) -> None:
    results: list[tuple[float, str]] = []
    address = f"127.0.{77 + interrupt}.{os.getpid() % 250 + 1}"  # another process may run this test at the same time

    def work(folder: Path) -> None:
        (folder / "resolv.conf").write_text(f"nameserver {address}\noptions timeout:30 attempts:1\n")
        bind = ctypes.c_ulong(0x1000)
        assert libc.mount(bytes(folder / "resolv.conf"), b"/etc/resolv.conf", None, bind, None) == 0
        with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as silent:
            silent.bind((address, 53))
            begin = time.monotonic()
            done = subprocess.run(
                [sys.executable, "-c", OPEN, *["interrupt"][:interrupt]],
                env={**os.environ, "FFFS_DEADLINE": "1"},
                capture_output=True,
                text=True,
                check=False,
            )
        results.append((time.monotonic() - begin, done.stderr))

    in_namespace(work)
    [(seconds, said)] = results
    assert seconds < 10
    assert ("KeyboardInterrupt" if interrupt else "Resolving timed out") in said
