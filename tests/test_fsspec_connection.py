"""Sources in file systems of fsspec that have one connection, and fail for ever once it was lost, as that of SFTP."""

from __future__ import annotations

import io
import os
import sys
import tarfile
import threading
import time
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from builders import record_file
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

import fffs
from fffs.errors import ReadError, SourceChangedError, SourceNotFoundError


class Connected(AbstractFileSystem):
    """A file system with one connection. fsspec keeps the object."""

    protocol = "connected"
    files: ClassVar[dict[str, tuple[bytes, int]]] = {}  # with their times
    connections: ClassVar[list[Connected]] = []  # that the server knows
    is_up: ClassVar[list[bool]] = [True]
    asked: ClassVar[list[str]] = []
    damaged: ClassVar[list[str]] = []

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if not self.is_up[0]:
            raise ConnectionRefusedError("refused")
        self.connections.append(self)
        self.busy = threading.Lock()

    def _require_connection(self) -> None:
        if self not in self.connections:
            raise OSError("Socket is closed")

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        self._require_connection()
        self.asked.append(path)
        if path not in self.files:
            raise FileNotFoundError(path)
        data, time = self.files[path]
        return {"name": path, "type": "file", "size": len(data), "mtime": time}

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        self._require_connection()
        return [self.info(name) for name in self.files if os.path.dirname(name) == path]

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        self._require_connection()
        if not self.busy.acquire(blocking=False):
            raise RuntimeError("two threads use one connection")
        try:
            time.sleep(0.001)
            if path in self.damaged:
                raise OSError("disk error")
            return self.files[path][0][start:end]
        finally:
            self.busy.release()

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        return AbstractBufferedFile(self, path, mode, cache_type="none")


fsspec.register_implementation("connected", Connected, clobber=True)


@pytest.fixture(autouse=True)
def server(tmp_path: Path) -> Iterator[None]:
    Connected.is_up[0] = True
    Connected.clear_instance_cache()
    _put(RECORDS, 1, tmp_path)
    yield
    Connected.files.clear()
    Connected.connections.clear()
    Connected.damaged.clear()


def _put(records: list[bytes], time: int, folder: Path) -> None:
    """Put record files there, and archives of them that give all files one time."""
    with fffs.granular.BagWriter(folder / "p.bag") as bag:
        for record in records:
            bag.append(record)
    files = {"p.ffr": record_file(records), "p.bag": (folder / "p.bag").read_bytes()}
    zipped, tarred = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive, tarfile.open(fileobj=tarred, mode="w") as tar:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data)
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), 946684800
            tar.addfile(member, io.BytesIO(data))
    files |= {
        "x.zip": zipped.getvalue(),
        "x.tar": tarred.getvalue(),
        "d/p.ffr": files["p.ffr"],
        "d/p.bag": files["p.bag"],
    }
    Connected.files.update({name: (data, time) for name, data in {**files, "d/q.ffr": files["p.ffr"]}.items()})


RECORDS = [b"one", b"two" * 100, b"three" * 100_000]
OTHERS = [b"ONE", *RECORDS[1:]]
URLS = [
    "connected://d/p.ffr",
    "zip://p.ffr::connected://x.zip",
    "dir://p.ffr::connected://d",
    "simplecache::connected://d/p.ffr",
]


def _read(reader: fffs.FileReader) -> list[bytes]:
    return [bytes(record) for record in reader.read([2, 0, 1])]


EXPECTED = [RECORDS[2], RECORDS[0], RECORDS[1]]


@pytest.mark.parametrize("url", URLS)
def test_a_lost_connection_is_made_again(url: str) -> None:
    with fffs.FileReader(url) as reader:
        for _ in range(3):
            Connected.connections.clear()
            assert _read(reader) == EXPECTED
        Connected.connections.clear()
        assert bytes(reader.read_one(0)) == b"one"
        Connected.connections.clear()
        with fffs.FileReader(url) as another:
            assert _read(another) == EXPECTED


def test_a_lost_connection_of_a_folder() -> None:
    with fffs.FileReader("connected://d/") as reader:
        Connected.connections.clear()
        assert len(reader.read([0, 5])) == 2
    Connected.connections.clear()
    with fffs.FileReader("connected://d/") as again:
        assert len(again) == 6


@pytest.mark.parametrize("url", URLS[:3])
def test_a_server_that_is_down_for_a_while(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads fail then, without connecting for each. They do not fail when it is back."""
    now = [100.0]
    monkeypatch.setattr("fffs.files.fsspec_connection.time", types.SimpleNamespace(monotonic=lambda: now[0]))
    with fffs.FileReader(url) as reader:
        Connected.connections.clear()
        Connected.is_up[0] = False
        for _ in range(3):
            with pytest.raises(ReadError, match=r"record [012].*: OSError: Socket is closed"):
                reader.read([0, 1, 2])
        Connected.is_up[0] = True
        now[0] += 1
        assert _read(reader) == EXPECTED


@pytest.mark.parametrize("is_lost", [True, False])
@pytest.mark.parametrize("name", ["p.ffr", "p.bag"])
@pytest.mark.parametrize("chain", ["connected://{}", "zip://{}::connected://x.zip", "tar://{}::connected://x.tar"])
def test_a_file_that_was_replaced(chain: str, name: str, is_lost: bool, tmp_path: Path) -> None:
    """By another one, of equal size. A Bag has no checksums."""
    with fffs.open(chain.format(name), format="bag" if name == "p.bag" else None) as reader:
        if is_lost:
            Connected.connections.clear()
        _put(OTHERS, 2, tmp_path)
        with pytest.raises(SourceChangedError, match=r"(changed|replaced) while it was open"):
            reader.read([0])


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("connected://p.bag", ["p.bag"]),
        ("dir://p.bag::connected://d", ["d/p.bag"]),
        ("zip://p.bag::connected://x.zip", ["x.zip"]),
        ("zip://p.bag::simplecache::connected://x.zip", []),
        ("simplecache::connected://p.bag", []),
    ],
)
def test_a_file_without_checksums_is_asked_for_once_for_each_batch(url: str, asked: list[str]) -> None:
    with fffs.open(url, format="bag") as reader:
        for read in (lambda: reader.read_one(0), lambda: reader.read([2, 0, 1])):
            Connected.asked.clear()
            read()
            assert Connected.asked == asked


class Limited(Connected):
    """As that of HTTP, which says that there is no such file whenever it gets no answer."""

    protocol = "http"
    files: ClassVar[dict[str, tuple[bytes, int]]] = Connected.files

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        if not self.is_up[0]:
            raise FileNotFoundError(path)
        return super().info(path, **kwargs)


def test_an_archive_of_which_nothing_is_told_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "http", Limited)
    with fffs.open("zip://p.bag::http://x.zip", format="bag") as reader:
        Connected.is_up[0] = False
        assert _read(reader) == EXPECTED


def test_a_link_or_another_mode_is_no_other_archive(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    path.write_bytes(Connected.files["x.zip"][0])
    with fffs.open(f"zip://p.bag::file://{path}", format="bag") as reader:
        path.chmod(0o600)
        os.link(path, tmp_path / "backup")
        assert _read(reader) == EXPECTED
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("more", b"")
        with pytest.raises(SourceChangedError, match="changed while it was open"):
            reader.read([0])


@pytest.mark.parametrize("cache", ["", "simplecache::"])
@pytest.mark.parametrize("chain", ["zip://p.ffr::{}connected://x.zip", "tar://p.ffr::{}connected://x.tar"])
@pytest.mark.parametrize("first", ["", "simplecache::"])
def test_what_is_opened_is_the_current_archive(first: str, chain: str, cache: str, tmp_path: Path) -> None:
    url = first + chain.format(cache)
    for records in (RECORDS, OTHERS):
        _put(records, len(Connected.files) + records[0][0], tmp_path)
        for _ in range(2):
            with fffs.FileReader(url) as reader:
                assert bytes(reader.read_one(0)) == records[0]
            fs, _ = fsspec.url_to_fs(f"ffr://::{url}", skip_instance_cache=True)
            assert fs.cat_file(min(fs.find(""))) == records[0]


def test_a_file_that_is_gone_when_the_connection_is_back() -> None:
    with fffs.FileReader(URLS[0]) as reader:
        Connected.connections.clear()
        Connected.files.clear()
        with pytest.raises(SourceNotFoundError, match="there is no such file any more"):
            reader.read([1])


@pytest.mark.parametrize(
    "urls", [["zip://p.bag::connected://x.zip"] * 4, ["connected://p.bag", "connected://d/p.bag"] * 2]
)
def test_threads_do_not_use_a_connection_at_the_same_time(urls: list[str]) -> None:
    """Nor for files that have it in common, and for questions about the archive."""
    errors: list[BaseException] = []
    readers = {url: fffs.open(url, format="bag") for url in urls}

    def read(reader: Any) -> None:
        try:
            for _ in range(10):
                assert _read(reader) == EXPECTED
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read, args=(readers[url],)) for url in urls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for reader in readers.values():
        reader.close()
    assert errors == []


@pytest.mark.parametrize("url", URLS[:3])
def test_an_error_of_the_file_makes_no_connection(url: str) -> None:
    with fffs.FileReader(url) as reader:
        before = list(Connected.connections)
        Connected.damaged.extend(Connected.files)
        for _ in range(5):
            with pytest.raises(ReadError, match="disk error"):
                reader.read([0, 1, 2])
        assert Connected.connections == before


def test_other_file_systems_of_the_program_stay() -> None:
    other = fsspec.filesystem("connected", host="other")
    with fffs.FileReader(URLS[0]) as reader:
        Connected.connections.clear()
        assert _read(reader) == EXPECTED
        assert fsspec.filesystem("connected", host="other") is other
        assert fsspec.filesystem("connected") is Connected.connections[-1]


def test_threads_that_lose_a_connection_make_one() -> None:
    found: list[list[bytes]] = []
    with fffs.FileReader(URLS[0]) as reader:
        Connected.connections.clear()
        threads = [threading.Thread(target=lambda: found.append(_read(reader))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [EXPECTED] * 8
    assert len(Connected.connections) == 1
