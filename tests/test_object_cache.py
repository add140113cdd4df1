"""The cache of objects: nothing wrong leaves it, whatever happened to its files."""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import resource
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import object_server
import pytest
from builders import small_disk
from inside import block_cache, cache_settings, cache_space, cache_upkeep
from mounting import Mounts, wait_until
from object_server import ObjectServer, serving, status
from weed import clear_environment

import fffs
from fffs import ofrecord
from fffs.errors import ChecksumError, UsageError

BLOCK = 4096
COUNT = 40


def _record(k: int) -> bytes:
    return bytes([k + 1]) * (k * 611 % 9000 + 1)


@pytest.fixture(scope="module")
def records_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("objects") / "r.ffr"
    with fffs.FileWriter(path, COUNT) as writer:
        for k in range(COUNT):
            writer.write_one(_record(k))
    return path.read_bytes()


@pytest.fixture(scope="module")
def unchecked_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A format without checksums: only those of the cache can find damage."""
    path = tmp_path_factory.mktemp("objects") / "part-0"
    with ofrecord.OFRecordWriter(path) as writer:
        for k in range(COUNT):
            writer.write_one(_record(k))
    return path.read_bytes()


def _all_right(reader: fffs.FileReader) -> bool:
    numbers = np.random.default_rng(1).permutation(COUNT).tolist()
    return [bytes(r) for r in reader.read(numbers)] == [_record(k) for k in numbers]


def _file_of(cache: Path, kind: str) -> Path:
    (found,) = cache.glob(f"*.{kind}")
    return found


# ---------------------------------------------------------------- what it keeps


def test_what_was_read_is_not_fetched_again(server: ObjectServer, cache: Path, records_file: bytes) -> None:
    url = server.put("r.ffr", records_file)
    with fffs.FileReader(url) as reader:
        assert _all_right(reader)
        fetched = len(server.requests)
        assert _all_right(reader)
        assert len(server.requests) == fetched
    with fffs.FileReader(url) as reader:
        assert _all_right(reader)
    assert len(server.requests) == fetched + 1  # which asks for the version


def test_only_what_is_asked_for_is_fetched(server: ObjectServer, cache: Path, tmp_path: Path) -> None:
    with fffs.FileWriter(tmp_path / "b.ffr", 200) as writer:
        for _ in range(200):
            writer.write_one(os.urandom(112_000))
    with fffs.FileReader(server.put("b.ffr", (tmp_path / "b.ffr").read_bytes())) as reader:
        server.requests.clear()
        numbers = list(range(0, 200, 7))
        reader.read(numbers)
        assert sum(r.end - r.start for r in server.requests) <= 1.15 * 112_000 * len(numbers)


def test_another_version_is_another_object(server: ObjectServer, cache: Path, records_file: bytes) -> None:
    url = server.put("r.ffr", records_file)
    with fffs.FileReader(url) as reader:
        assert _all_right(reader)
        other = records_file.replace(_record(3), _record(3)[:-1] + b"?")
        server.put("r.ffr", other)
        assert _all_right(reader)  # from the cache: the version that was opened
    with fffs.FileReader(url) as reader, pytest.raises(ChecksumError):
        reader.read([3])  # which the other version has damaged
    assert len(list(cache.glob("*.data"))) == 2


def test_the_same_etag_at_another_address_is_another_object(
    server: ObjectServer, cache: Path, records_file: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of servers whose ETags are made of a size and a time."""
    with fffs.FileWriter(tmp_path / "o.ffr", COUNT) as writer:
        for k in range(COUNT):
            writer.write_one(bytes(len(_record(k))))
    monkeypatch.setattr(object_server, "etag_of", lambda _: '"64d2-1f40"')
    with fffs.FileReader(server.put("get?id=1", records_file)) as reader:
        assert _all_right(reader)
    with fffs.FileReader(server.put("get?id=2", (tmp_path / "o.ffr").read_bytes()), check_data=False) as reader:
        assert bytes(reader.read_one(9)) == bytes(len(_record(9)))


@pytest.mark.parametrize("differs", ["query", "server"])
def test_the_index_at_another_address_is_another_index(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, differs: str
) -> None:
    """Of two files of one size and ETag, whose records begin elsewhere and have no checksums."""
    clear_environment(monkeypatch, tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    monkeypatch.setattr(object_server, "etag_of", lambda _: '"64d2-1f40"')
    sizes = [[30, 10] * 1000, [10, 30] * 1000]
    with serving() as second:
        for at, lengths, number in zip((server, second), sizes, (1, 2), strict=True):
            path = tmp_path / f"part-{number}"
            with ofrecord.OFRecordWriter(path) as writer:
                for k, length in enumerate(lengths):
                    writer.write_one(bytes([k % 251]) * length)
            at.put("bucket/part-0", path.read_bytes())
            server.put(f"get?id={number}", path.read_bytes())
        for at, lengths, number in zip((server, second), sizes, (1, 2), strict=True):
            monkeypatch.setenv("AWS_ENDPOINT_URL", at.url)
            url = "s3://bucket/part-0" if differs == "server" else f"{server.url}/get?id={number}"
            for _ in range(2):
                with fffs.open(url, format="ofrecord") as reader:
                    assert [bytes(record) for record in reader] == [
                        bytes([k % 251]) * length for k, length in enumerate(lengths)
                    ]
    assert len(list((tmp_path / "cache/fffs").glob("scan-*"))) == 2


@pytest.mark.parametrize(
    "query",
    [
        "X-Amz-Algorithm=a&X-Amz-Date={0}&X-Amz-Signature={0}",
        "GoogleAccessId=me&Expires={0}&Signature={0}",
        "sv=2&se={0}&sr=b&sp=r&sig={0}",
    ],
)
def test_another_signature_is_the_same_object(query: str) -> None:
    first, second = (f"https://h/k?versionId=7&{query.format(k)}" for k in (1, 2))
    assert cache_space.place_of(first) == cache_space.place_of(second)
    assert cache_space.place_of(first) != cache_space.place_of(first.replace("versionId=7", "versionId=8"))
    assert cache_space.place_of("https://h/k?sp=1") != cache_space.place_of("https://h/k?sp=2")
    assert cache_space.place_of("https://one/b/k") != cache_space.place_of("https://two/b/k")


def test_no_etag_no_sharing(server: ObjectServer, cache: Path, records_file: bytes) -> None:
    def strip(request: object, answer: object) -> None:
        answer.headers.pop("ETag", None)  # type: ignore[attr-defined]

    server.always = strip  # type: ignore[assignment]
    with fffs.FileReader(server.put("r.ffr", records_file)) as reader:
        assert _all_right(reader)
        assert _all_right(reader)
    assert not cache.exists() or not list(cache.iterdir())


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize("kind", ["data", "map"])
@pytest.mark.parametrize("format", ["checked", "unchecked"])
def test_flipped_bytes(
    server: ObjectServer, cache: Path, records_file: bytes, unchecked_file: bytes, kind: str, format: str
) -> None:
    name, content = ("r.ffr", records_file) if format == "checked" else ("part-0", unchecked_file)
    url = server.put(name, content)
    with fffs.FileReader(url) as reader:
        assert _all_right(reader)
    path = _file_of(cache, kind)
    original = path.read_bytes()
    step = 97 if kind == "data" else 13
    places = [*range(0, 64), *range(4096, len(original), step)] if kind == "map" else range(0, len(original), step * 21)
    for place in places:
        with open(_file_of(cache, kind), "r+b") as file:
            file.seek(place)
            byte = file.read(1) or b"\0"
            file.seek(place)
            file.write(bytes([byte[0] ^ 0xFF]))
        with fffs.FileReader(url) as reader:
            assert _all_right(reader), place


@pytest.mark.parametrize("kind", ["data", "map"])
@pytest.mark.parametrize("size", [0, 100, 4096, 5000])
def test_cut_files(server: ObjectServer, cache: Path, unchecked_file: bytes, kind: str, size: int) -> None:
    url = server.put("part-0", unchecked_file)
    with fffs.FileReader(url) as reader:
        assert _all_right(reader)
    os.truncate(_file_of(cache, kind), size)
    with fffs.FileReader(url) as reader:
        assert _all_right(reader)


@pytest.mark.parametrize("size", [0, 5000])
@pytest.mark.parametrize("format", ["checked", "unchecked"])
def test_data_that_is_cut_while_it_is_open(
    server: ObjectServer, cache: Path, records_file: bytes, unchecked_file: bytes, format: str, size: int
) -> None:
    """Reading it fails then, as from a disk that fails."""
    url = server.put("part-0", records_file if format == "checked" else unchecked_file)
    with fffs.FileReader(url) as reader:
        assert _all_right(reader)
        os.truncate(_file_of(cache, "data"), size)
        assert _all_right(reader)
        assert bytes(reader.read_one(COUNT - 1)) == _record(COUNT - 1)


def test_data_that_was_cut_does_not_grow_again(server: ObjectServer, cache: Path, unchecked_file: bytes) -> None:
    """What was verified before would be zeros."""
    url = server.put("part-0", unchecked_file)
    with fffs.FileReader(url) as reader:
        assert _all_right(reader)
        os.truncate(_file_of(cache, "data"), 5000)
        for k in (COUNT - 1, *range(COUNT - 1, -1, -1)):
            assert bytes(reader.read_one(k)) == _record(k)
        old = _file_of(cache, "data").stat()
        assert old.st_size == 5000
        with fffs.FileReader(url) as other:
            assert _all_right(other)
        assert _file_of(cache, "data").stat().st_ino != old.st_ino
        assert _file_of(cache, "data").stat().st_size == len(unchecked_file)
        assert _all_right(reader)


def test_files_that_are_removed_while_they_are_open(server: ObjectServer, cache: Path, records_file: bytes) -> None:
    with fffs.FileReader(server.put("r.ffr", records_file)) as reader:
        reader.read([3])
        for path in cache.iterdir():
            path.unlink()
        cache.rmdir()
        assert _all_right(reader)


def test_a_hole_where_the_map_says_that_there_is_data(server: ObjectServer, cache: Path, unchecked_file: bytes) -> None:
    """As after a power cut, which kept the map and lost the data."""
    url = server.put("part-0", unchecked_file)
    with fffs.FileReader(url) as reader:
        assert _all_right(reader)
    path = _file_of(cache, "data")
    os.truncate(path, 0)
    os.truncate(path, len(unchecked_file))
    with fffs.FileReader(url) as reader:
        assert _all_right(reader)


@pytest.mark.parametrize("content", [b"x", b"fffsOBJ1" + bytes(5000)])
def test_a_strange_map(server: ObjectServer, cache: Path, records_file: bytes, content: bytes) -> None:
    url = server.put("r.ffr", records_file)
    with fffs.FileReader(url) as reader:
        assert _all_right(reader)
    _file_of(cache, "map").write_bytes(content)
    with fffs.FileReader(url) as reader:
        assert _all_right(reader)


# ---------------------------------------------------------------- folders


def test_a_folder_that_others_can_write_to_is_not_used(server: ObjectServer, cache: Path, records_file: bytes) -> None:
    cache.mkdir()
    cache.chmod(0o777)
    with fffs.FileReader(server.put("r.ffr", records_file)) as reader:
        assert _all_right(reader)
        assert _all_right(reader)
    assert not list(cache.iterdir())


@pytest.mark.parametrize("what", ["no locks", "no links"])
def test_a_folder_on_a_file_system_without_what_it_needs(
    server: ObjectServer, cache: Path, records_file: bytes, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some FUSE file systems have no flock(2), or tell of no links of files."""

    def flock(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    def fstat(fd: int) -> Any:
        status = os.fstat(fd)
        return SimpleNamespace(st_mode=status.st_mode, st_size=status.st_size, st_nlink=0)

    patched = {"flock": flock} if what == "no locks" else {"fstat": fstat}
    module = "fcntl" if what == "no locks" else "os"
    fake = SimpleNamespace(**vars(getattr(block_cache, module)) | patched)
    monkeypatch.setattr(block_cache, module, fake)
    with fffs.FileReader(server.put("r.ffr", records_file)) as reader:
        assert _all_right(reader)
        asked = len(server.requests)
        assert _all_right(reader)
        assert len(server.requests) == asked, "it has a cache of its own"
    if what == "no locks":
        assert list(cache.iterdir()) == []


def test_links_and_folders_in_place_of_files(server: ObjectServer, cache: Path, records_file: bytes) -> None:
    url = server.put("r.ffr", records_file)
    with fffs.FileReader(url) as reader:
        assert _all_right(reader)
    for kind in ("data", "map"):
        path = _file_of(cache, kind)
        path.unlink()
        path.symlink_to("/etc/passwd")
    with fffs.FileReader(url) as reader:
        assert _all_right(reader)
    assert not Path("/etc/passwd").read_bytes().startswith(b"fffs")
    for kind in ("data", "map"):
        path = _file_of(cache, kind)
        path.unlink()
        path.mkdir()
    with fffs.FileReader(url) as reader:
        assert _all_right(reader)


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("kind", ["data", "map"])
@pytest.mark.parametrize("how", ["owner", "mode", "link"])
def test_files_that_others_put_there_are_not_used(
    server: ObjectServer, cache: Path, unchecked_file: bytes, tmp_path: Path, how: str, kind: str, reads: bool
) -> None:
    """While the folder was open to them. They could forge bytes, read what is kept, or hold the lock."""
    url = server.put("part-0", unchecked_file)
    with fffs.FileReader(url) as reader:
        assert _all_right(reader)
    path = _file_of(cache, kind)
    shutil.copy(path, tmp_path / "planted")
    if how == "link":
        path.unlink()
        os.link(tmp_path / "planted", path)
    else:
        os.replace(tmp_path / "planted", path)
    path.chmod(0o666 if how == "mode" else 0o600)
    os.chown(path, 65534 if how == "owner" else -1, -1)
    with open(path, "r+b") as planted:
        fcntl.flock(planted, fcntl.LOCK_EX)
        before = planted.read()
        if reads:
            with fffs.FileReader(url) as reader:
                assert _all_right(reader)
        else:
            (result,) = cache_upkeep.verify_cached(cache_settings())
            assert result.removed
        assert all(not os.path.samestat(there.stat(), os.fstat(planted.fileno())) for there in list(cache.iterdir()))
        planted.seek(0)
        assert planted.read() == before
    if reads:
        (result,) = cache_upkeep.verify_cached(cache_settings())
        assert result.blocks and not result.damaged


def test_off(server: ObjectServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, records_file: bytes) -> None:
    monkeypatch.setenv("FFFS_CACHE", "off")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    with fffs.FileReader(server.put("r.ffr", records_file)) as reader:
        reader.store.use_caches()
        assert _all_right(reader)
    assert not (tmp_path / "home").exists()


def test_a_wrong_size_is_refused(
    server: ObjectServer, cache: Path, monkeypatch: pytest.MonkeyPatch, records_file: bytes
) -> None:
    monkeypatch.setenv("FFFS_CACHE_SIZE", "much")
    with pytest.raises(UsageError, match="FFFS_CACHE_SIZE: 'much' is not a size"):
        fffs.FileReader(server.put("r.ffr", records_file))


# ---------------------------------------------------------------- room


def test_when_it_is_full_it_keeps_what_it_has(
    server: ObjectServer, cache: Path, monkeypatch: pytest.MonkeyPatch, records_file: bytes
) -> None:
    monkeypatch.setenv("FFFS_CACHE_SIZE", str(10 * BLOCK))
    url = server.put("r.ffr", records_file)
    for _ in range(3):
        with fffs.FileReader(url) as reader:
            for k in range(COUNT):
                assert bytes(reader.read_one(k)) == _record(k)
    assert _file_of(cache, "data").stat().st_blocks * 512 <= 12 * BLOCK


def test_the_limit_of_an_earlier_cache_does_not_hold_for_a_later_one(
    server: ObjectServer, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, records_file: bytes
) -> None:
    url = server.put("r.ffr", records_file)
    monkeypatch.setenv("FFFS_CACHE_SIZE", str(10 * BLOCK))
    with fffs.FileReader(url) as reader:
        assert _all_right(reader)
    monkeypatch.delenv("FFFS_CACHE_SIZE")
    with fffs.FileReader(url, cache=tmp_path / "later") as reader:
        reader.read_one(0)
        time.sleep(0.1)  # until what is added may be counted again
        assert _all_right(reader)
        server.requests.clear()
        assert _all_right(reader)
    assert server.requests == []


@pytest.mark.parametrize("fork", [False, True])
def test_objects_that_are_open_together_share_the_room(
    server: ObjectServer, cache: Path, monkeypatch: pytest.MonkeyPatch, records_file: bytes, fork: bool
) -> None:
    monkeypatch.setenv("FFFS_CACHE_SIZE", str(2 * len(records_file)))
    readers = [fffs.FileReader(server.put(f"r{k}.ffr", records_file)) for k in range(6)]
    for reader in readers:
        child = os.fork() if fork else 0
        if not fork:
            assert _all_right(reader)
        elif child == 0:
            os._exit(0 if _all_right(reader) else 1)
        else:
            assert os.waitpid(child, 0)[1] == 0
    taken = sum(path.stat().st_blocks * 512 for path in cache.glob("*.data"))
    assert taken <= 2 * len(records_file) + 8 * BLOCK
    for reader in readers:
        reader.close()


def test_half_of_a_disk_stays_free(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records_file: bytes
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k,mode=700", "fffs-test", str(disk)], check=True)
    try:
        monkeypatch.setenv("FFFS_CACHE", str(disk))
        readers = [fffs.FileReader(server.put(f"r{k}.ffr", records_file)) for k in range(6)]
        for reader in readers:
            assert _all_right(reader)
        system = os.statvfs(disk)
        assert system.f_bavail >= system.f_blocks // 2 - 16
        for reader in readers:
            reader.close()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_cache_in_memory_takes_half_of_what_this_process_may_have(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records_file: bytes
) -> None:
    """A tmpfs is as large as half of the memory of the machine, whatever the limit of a container."""
    with small_disk(tmp_path / "disk", 64 << 20) as disk:
        monkeypatch.setattr(cache_space, "available_memory", lambda: 600 << 10)
        monkeypatch.setenv("FFFS_CACHE", str(disk / "cache"))
        readers = [fffs.FileReader(server.put(f"r{k}.ffr", records_file)) for k in range(6)]
        for reader in readers:
            assert _all_right(reader)
        taken = sum(path.stat().st_blocks * 512 for path in (disk / "cache").iterdir())
        assert len(records_file) < taken < 400 << 10
        for reader in readers:
            reader.close()


def test_parts_that_are_opened_together_look_at_the_folder_once(
    server: ObjectServer, cache: Path, records_file: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand of them would look at a thousand files a thousand times."""
    names = [server.put(f"{k}.ffr", records_file) for k in range(50)]
    looked: list[int] = []
    find = cache_space.find_files
    monkeypatch.setattr(cache_space, "find_files", lambda folder: looked.append(folder) or find(folder))
    with fffs.FileReader(names) as reader:
        assert len(looked) <= 32  # threads that open begin at the same time
        assert [bytes(record) for record in reader.read([COUNT * 7 + 3])] == [_record(3)]


def test_caches_leave_descriptors_for_connections(server: ObjectServer, cache: Path, records_file: bytes) -> None:
    names = [server.put(f"{k}.ffr", records_file) for k in range(40)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 300, hard))
    try:
        with fffs.FileReader(names) as reader:
            assert max(map(int, os.listdir("/proc/self/fd"))) < used + 150
            assert [bytes(record) for record in reader.read(range(3, 40 * COUNT, COUNT))] == [_record(3)] * 40
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert 0 < len(list(cache.glob("*.data"))) <= 40


def test_others_make_room_the_oldest_first_and_never_an_open_one(
    server: ObjectServer, cache: Path, monkeypatch: pytest.MonkeyPatch, records_file: bytes
) -> None:
    monkeypatch.setenv("FFFS_CACHE_SIZE", str(3 * len(records_file)))
    urls = [server.put(f"r{k}.ffr", records_file) for k in range(4)]
    first = fffs.FileReader(urls[0])
    assert _all_right(first)
    for url in urls[1:]:
        with fffs.FileReader(url) as reader:
            assert _all_right(reader)
        time.sleep(0.02)
    names = [entry.version.name for entry in cache_upkeep.list_cached(cache_settings()).entries if entry.version]
    assert urls[0] in names
    assert urls[1] not in names
    assert urls[3] in names
    requests = len(server.requests)
    assert _all_right(first)
    assert len(server.requests) == requests
    first.close()


def test_a_full_disk(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records_file: bytes
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "fffs-test", str(disk)], check=True)
    try:
        monkeypatch.setenv("FFFS_CACHE", str(disk))
        monkeypatch.setenv("FFFS_CACHE_SIZE", str(1 << 30))
        url = server.put("r.ffr", records_file)
        for _ in range(2):
            with fffs.FileReader(url) as reader:
                assert _all_right(reader)
                assert _all_right(reader)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with fffs.FileReader(url) as reader:
            assert _all_right(reader)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# ---------------------------------------------------------------- several at once


def test_many_processes_on_one_cache(server: ObjectServer, cache: Path, records_file: bytes) -> None:
    url = server.put("r.ffr", records_file)
    code = (
        f"import fffs, numpy as np\n"
        f"r = fffs.FileReader({url!r})\n"
        f"for seed in range(5):\n"
        f"    for k in np.random.default_rng().permutation({COUNT}).tolist():\n"
        f"        assert bytes(r.read_one(k)) == bytes([k + 1]) * (k * 611 % 9000 + 1), k\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(6)]
    assert [process.wait(120) for process in processes] == [0] * 6


def test_killed_while_it_fills(server: ObjectServer, cache: Path, records_file: bytes) -> None:
    url = server.put("r.ffr", records_file)
    code = f"import fffs\nr = fffs.FileReader({url!r})\nprint(flush=True)\nfor k in range({COUNT}): r.read_one(k)\n"
    for delay in (0.0, 0.003, 0.01, 0.03):
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert process.stdout
        with process:
            process.stdout.readline()
            time.sleep(delay)
            process.kill()
        with fffs.FileReader(url) as reader:
            assert _all_right(reader)


def test_fork_and_threads(server: ObjectServer, cache: Path, records_file: bytes) -> None:
    with fffs.FileReader(server.put("r.ffr", records_file)) as reader:
        reader.read([1])
        child = os.fork()
        if child == 0:
            os._exit(0 if _all_right(reader) else 1)
        threads = [threading.Thread(target=lambda: good.append(_all_right(reader))) for _ in range(4)]
        good: list[bool] = []
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert good == [True] * 4
        assert os.waitpid(child, 0)[1] == 0


def test_a_copy_of_a_reader_uses_the_cache(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records_file: bytes
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    with fffs.FileReader(server.put("r.ffr", records_file)) as reader:
        reader.store.use_caches()
        assert _all_right(reader)
        with pickle.loads(pickle.dumps(reader)) as copy:
            requests = len(server.requests)
            assert _all_right(copy)
            assert len(server.requests) == requests


# ---------------------------------------------------------------- mounts


@pytest.fixture
def packed(tmp_path: Path) -> bytes:
    for k in range(200):
        path = tmp_path / "src" / f"d{k % 5}" / f"f{k}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(k * 97 % 9000) if k else os.urandom(3_000_000))
    fffs.pack_folder(tmp_path / "src", tmp_path / "p.ffr")
    return (tmp_path / "p.ffr").read_bytes()


@pytest.mark.fuse
def test_a_mount(server: ObjectServer, cache: Path, mounts: Mounts, packed: bytes, tmp_path: Path) -> None:
    url = server.put("p.ffr", packed)
    point = mounts(url)
    opened = len(server.requests)
    subprocess.run(["diff", "-r", str(tmp_path / "src"), str(point)], check=True)
    assert len(server.requests) - opened < 40  # one for each file would be 200
    assert url in Path("/proc/mounts").read_text()


@pytest.mark.fuse
def test_a_mount_whose_store_goes_away_and_comes_back(
    cache: Path, mounts: Mounts, packed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FFFS_DEADLINE", "1")
    with serving() as first:
        url = first.put("p.ffr", packed)
        port = int(first.url.rsplit(":", 1)[1])
        point = mounts(url)
        assert (point / "d1/f1").read_bytes() == (tmp_path / "src/d1/f1").read_bytes()
    mounts.daemon.expect("cannot be read|cannot read|reads failed")
    with pytest.raises(OSError, match="Input/output"):
        (point / "d0/f0").read_bytes()
    assert (point / "d1/f1").read_bytes() == (tmp_path / "src/d1/f1").read_bytes()
    with serving(port) as second:
        second.put("p.ffr", packed)
        time.sleep(0.3)  # for a quarter of a second, a record that failed fails at once
        subprocess.run(["diff", "-r", str(tmp_path / "src"), str(point)], check=True)


@pytest.mark.fuse
def test_a_mount_whose_credentials_are_lost_and_found(
    cache: Path, mounts: Mounts, server: ObjectServer, packed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clear_environment(monkeypatch, tmp_path)
    keys = "[default]\naws_access_key_id = k\naws_secret_access_key = s\n"
    (tmp_path / "keys").write_text(keys)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    server.put("b/p.ffr", packed)
    point = mounts("s3://b/p.ffr")
    assert (point / "d1/f1").read_bytes() == (tmp_path / "src/d1/f1").read_bytes()
    (tmp_path / "keys").write_text("")
    server.always = status(403)
    mounts.daemon.expect("no access|reads failed")
    with pytest.raises(OSError, match="Input/output"):
        (point / "d0/f0").read_bytes()
    wait_until(lambda: "f0: s3://b/p.ffr: no access" in mounts.daemon.log())
    assert (point / "d1/f1").read_bytes() == (tmp_path / "src/d1/f1").read_bytes()
    (tmp_path / "keys").write_text(keys)
    server.always = None
    time.sleep(0.3)  # for a quarter of a second, a record that failed fails at once
    subprocess.run(["diff", "-r", str(tmp_path / "src"), str(point)], check=True)


def test_several_processes_keep_one_size(server: ObjectServer, tmp_path: Path) -> None:
    """Each has opened its object before the others have filled the cache."""
    with fffs.FileWriter(tmp_path / "large.ffr", 300) as writer:
        for k in range(300):
            writer.write_one(bytes([k % 256]) * 10_000)
    for name in "ab":
        server.put(name, (tmp_path / "large.ffr").read_bytes())
    cache, size = tmp_path / "cache", 1_000_000
    code = "import fffs, sys; reader = fffs.open(sys.argv[1], cache=sys.argv[2], cache_size=sys.argv[3])\n"
    code += "for start in range(0, 300, 20): reader.read(range(start, start + 20))"
    with fffs.FileReader(f"{server.url}/a", cache=cache, cache_size=str(size)) as reader:
        reader.read([0])
        subprocess.run([sys.executable, "-c", code, f"{server.url}/b", cache, str(size)], check=True, timeout=60)
        time.sleep(0.2)
        for start in range(0, 300, 20):
            reader.read(range(start, start + 20))
        assert sum(path.stat().st_blocks * 512 for path in cache.iterdir()) < 1.2 * size
