"""Sources in file systems of fsspec that have one connection, and fail for ever once it was lost, as that of SFTP."""

from __future__ import annotations

import base64
import contextlib
import ftplib
import gc
import io
import itertools
import os
import sys
import tarfile
import threading
import time
import types
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from builders import record_file
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from inside import fsspec_file, fsspec_host, fsspec_servers, fsspec_web_file, sidecars

import fffs
from fffs.errors import AccessError, ReadError, SourceChangedError, SourceNotFoundError, UsageError
from fffs.fsspec import FfrFileSystem


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
        if not self.is_connected:
            raise OSError("Socket is closed")

    @property
    def is_connected(self) -> bool:
        """By identity: fsspec calls those equal that have the same options."""
        return any(other is self for other in self.connections)

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
            if path not in self.files:
                raise FileNotFoundError(path)
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
    now = [time.monotonic() + 1000]
    monkeypatch.setattr("fffs.files.fsspec_host.time", types.SimpleNamespace(monotonic=lambda: now[0]))
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


class Throttled(Connected):
    """Its server refuses to tell anything about files for a while."""

    protocol = "throttled"

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        if not self.is_up[0]:
            raise OSError("421 too many questions")
        return super().info(path, **kwargs)


@pytest.mark.parametrize("url", ["throttled://p.bag", "zip://p.bag::throttled://x.zip", "zip://p.bag::http://x.zip"])
def test_a_file_of_which_nothing_is_told_for_a_while(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes might be those of another one; those of records with checksums are not."""
    monkeypatch.setattr(fsspec_file, "PAUSES", (0.01,))
    for kind in (Limited, Throttled):
        kind.clear_instance_cache()
        monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, kind.protocol, kind)
    with fffs.open(url, format="bag") as reader, fffs.open(url.replace("bag", "ffr")) as verified:
        for _ in range(2):
            Connected.is_up[0] = False
            with pytest.raises(
                ReadError, match="record 0: its file system does not tell whether it was replaced: OSError: "
            ):
                _read(reader)
            assert _read(verified) == EXPECTED
            Connected.is_up[0] = True
            assert _read(reader) == EXPECTED


def test_an_archive_of_which_nothing_is_told_at_first_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not be known later whether it was replaced."""

    def info(self: Limited, path: str, **kwargs: Any) -> Any:
        if failures:
            raise failures.pop()
        return asks(self, path, **kwargs)

    Limited.clear_instance_cache()
    failures: list[Exception] = [OSError("503 busy")]
    asks = Limited.info
    monkeypatch.setattr(Limited, "info", info)
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "http", Limited)
    with pytest.raises(ReadError, match="503 busy"):
        fffs.open("zip://p.bag::http://x.zip", format="bag")
    with fffs.open("zip://p.bag::http://x.zip", format="bag") as reader:
        assert _read(reader) == EXPECTED


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_a_page_in_place_of_a_range_of_an_archive(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that sends it once, with the length that it has, gives an error, and the records afterwards."""

    def cat_file(self: Limited, path: str, start: int, end: int, **kwargs: Any) -> bytes:
        return pages.pop() if pages else reads(self, path, start, end)

    pages: list[bytes] = []
    records = [bytes([k]) * 50_000 for k in range(9)]
    _put(records, 1, tmp_path)
    Limited.clear_instance_cache()
    reads = Limited.cat_file
    monkeypatch.setattr(Limited, "cat_file", cat_file)
    monkeypatch.setattr(fsspec_web_file, "_WHOLE", 0)
    monkeypatch.setattr(fsspec_web_file, "_FIRST", 10_000)
    monkeypatch.setattr(fsspec_web_file, "_MOST", 20_000)
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "http", Limited)
    with fffs.open(f"{kind}://p.bag::http://x.{kind}", format="bag") as reader:
        for number in (7, 0, 8, 4):
            pages.append(b"<html>just a moment</html>")
            with pytest.raises(ReadError, match="its server sent 26 bytes for a range of"):
                reader.read_one(number)
            assert bytes(reader.read_one(number)) == records[number]
        assert [bytes(record) for record in reader.read(range(9))] == records


def test_an_archive_on_a_web_server_is_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is small, as a whole; and of others, nothing twice if it is read in order."""

    def cat_file(self: Limited, path: str, start: int, end: int, **kwargs: Any) -> bytes:
        asked.append((start, end))
        return reads(self, path, start, end)

    asked: list[tuple[int, int]] = []
    records = [bytes([k]) * 50_000 for k in range(20)]
    _put(records, 1, tmp_path)
    Limited.clear_instance_cache()
    reads = Limited.cat_file
    monkeypatch.setattr(Limited, "cat_file", cat_file)
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "http", Limited)
    with fffs.open("tar://p.bag::http://x.tar", format="bag") as reader:
        assert [bytes(reader.read_one(k)) for k in (7, 19, 0)] == [records[k] for k in (7, 19, 0)]
    assert asked == [(0, len(Limited.files["x.tar"][0]))] * len(asked)
    monkeypatch.setattr(fsspec_web_file, "_WHOLE", 0)
    monkeypatch.setattr(fsspec_web_file, "_FIRST", 60_000)
    monkeypatch.setattr(fsspec_web_file, "_MOST", 240_000)
    with fffs.open("tar://p.bag::http://x.tar", format="bag") as reader:
        reader.read_one(0)
        asked.clear()
        assert [bytes(reader.read_one(k)) for k in range(20)] == records
    assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(asked[1:]))
    assert 3 <= len(asked) <= 8


class AnswerError(Exception):
    """As that of aiohttp."""

    def __init__(self, status: int) -> None:
        super().__init__(f"{status} of the server")
        self.status = status


@pytest.mark.parametrize("status", [404, 410, 403, 401, 500, 503])
def test_a_sidecar_that_a_server_of_the_web_does_not_give(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only if it says that there is none, the file is read without it."""

    def info(self: Limited, path: str, **kwargs: Any) -> Any:
        if os.path.basename(path) == "p.bag":
            return {**Connected.info(self, "p.bag"), "name": path}
        raise FileNotFoundError(path) from AnswerError(status)

    Limited.clear_instance_cache()
    monkeypatch.setattr(Limited, "info", info)
    monkeypatch.setattr(Limited, "get_file", lambda self, path, copy: Path(copy).write_bytes(self.files["p.bag"][0]))
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "http", Limited)
    with pytest.raises({403: AccessError, 404: SourceNotFoundError, 410: SourceNotFoundError}.get(status, ReadError)):
        fffs.open("zip://p.bag::http://host/x.zip")
    if status in (403, 404, 410):
        with fffs.open("simplecache::http://host/p.bag", format="bag") as reader:
            assert _read(reader) == EXPECTED
    else:
        with pytest.raises(ReadError, match=f"AnswerError: {status} of the server"):
            fffs.open("simplecache::http://host/p.bag", format="bag")


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_a_file_of_which_nothing_is_told_once(failures: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long conversion asks once, at its end."""

    def info(self: Throttled, path: str, **kwargs: Any) -> Any:
        if is_open and left:
            left.pop()
            raise OSError("429 slow down")
        return asks(self, path, **kwargs)

    asks, is_open, left = Throttled.info, False, [0] * failures
    monkeypatch.setattr(Throttled, "info", info)
    monkeypatch.setattr(Throttled, "protocol", "throttled")
    monkeypatch.setattr(fsspec_file, "PAUSES", (0.01, 0.01))
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "throttled", Throttled)
    with fffs.open("throttled://p.bag", format="bag") as reader:
        is_open = True
        assert _read(reader) == EXPECTED


def test_an_archive_in_a_url(tmp_path: Path) -> None:
    data = base64.b64encode(Connected.files["x.zip"][0]).decode()
    with fffs.open(f"zip://p.bag::data:application/zip;base64,{data}", format="bag") as reader:
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


def test_a_connection_that_answers_for_other_files_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def info(self: Connected, path: str, **kwargs: Any) -> dict[str, Any]:
        if path in Connected.damaged:
            raise OSError("disk error")
        return original(self, path, **kwargs)

    original = Connected.info
    monkeypatch.setattr(Connected, "info", info)
    with fffs.FileReader(URLS[0]) as reader, fffs.FileReader("connected://d/q.ffr") as other:
        _read(other)
        Connected.damaged.append("d/p.ffr")
        for _ in range(5):
            with pytest.raises(ReadError, match="disk error"):
                reader.read([0])
        del Connected.connections[1:]  # those that were tried
        assert _read(other) == EXPECTED
        assert len(Connected.connections) == 1


# ---------------------------------------------------------------- those that are made for fffs alone


class Control:
    """The connection of ftplib."""

    directory = '257 "/"'
    size = ""  # what is answered in place of sizes
    refused: ClassVar[list[str]] = []  # listings of names

    def __init__(self, fs: Own) -> None:
        self.fs = fs

    def retrlines(self, command: str, line: Any) -> None:
        self.fs._require_connection()
        assert command == "NLST /"
        if self.refused:
            raise ftplib.error_temp("450 busy")
        for path in self.fs.files:
            line(path)

    def sendcmd(self, command: str) -> str:
        self.fs._require_connection()
        name, _, path = command.partition(" ")
        size = f"213 {len(self.fs.files[path][0])}" if path in self.fs.files else "550 no such file"
        self.fs.answers.append(
            {"PWD": self.directory, "NOOP": "200 ok", "TYPE": "200 ok", "SIZE": self.size or size}[name]
        )
        answer = self.fs.answers.pop(0)
        if answer[0] in "45":
            raise {"4": ftplib.error_temp, "5": ftplib.error_perm}[answer[0]](answer)
        return answer

    def close(self) -> None:
        Connected.connections[:] = [other for other in Connected.connections if other is not self.fs]


class OpenFile(io.BytesIO):
    """A file of the server, which has to be closed over the connection that it was opened by."""

    opened: ClassVar[list[int]] = []
    closed: ClassVar[list[int]] = []

    def __init__(self, fs: Own, data: bytes) -> None:
        super().__init__(data)
        self.fs = fs
        self.opened.append(id(self))

    def read(self, size: int | None = -1, /) -> bytes:
        self.fs._require_connection()
        return super().read(size)

    def __del__(self) -> None:
        self.closed.append(id(self))


class Own(Connected):
    """As that of FTP, which keeps listings by folders, and takes what is no answer for a file that is missing."""

    protocol = "ftp"

    def __init__(self, host: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.ftp = Control(self)
        self.answers: list[str] = []  # that came, and nobody waited for
        self.listings: dict[str, dict[str, Any]] = {}

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        return {"host": "here"}

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("ftp://here/")

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        folder = os.path.dirname(path)
        if folder not in self.listings:
            if not self.is_connected or self.answers:
                raise FileNotFoundError(path)
            self.listings[folder] = {
                name: super(Own, self).info(name) for name in self.files if os.path.dirname(name) == folder
            }
        if path not in self.listings[folder]:
            raise FileNotFoundError(path)
        found: dict[str, Any] = self.listings[folder][path]
        return found

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        self.listings.clear()
        self.info(path)
        return super().cat_file(path, start, end)

    def invalidate_cache(self, path: str | None = None) -> None:
        if path is None:
            self.listings.clear()
        self.listings.pop(path or "", None)

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        self.info(path)
        return OpenFile(self, self.files[path][0])


@pytest.fixture
def ftp(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The protocol ``ftp`` is that of Own."""
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "ftp", Own)
    Own.clear_instance_cache()
    yield
    fsspec_host._found.clear()
    gc.collect()
    OpenFile.opened.clear()
    OpenFile.closed.clear()


OWN = ["ftp://here/p.{}", "zip://p.{}::ftp://here/x.zip", "tar://p.{}::ftp://here/x.tar"]


@pytest.mark.usefixtures("ftp")
@pytest.mark.parametrize("kind", ["ffr", "bag"])
@pytest.mark.parametrize("url", OWN)
def test_an_idle_connection_that_the_server_ended(url: str, kind: str) -> None:
    with fffs.open(url.format(kind), format=None if kind == "ffr" else kind) as reader:
        for _ in range(3):
            Connected.connections.clear()
            assert _read(reader) == EXPECTED


@pytest.mark.usefixtures("ftp")
@pytest.mark.parametrize("url", OWN)
def test_a_file_that_was_replaced_and_whose_folder_was_listed_before(url: str, tmp_path: Path) -> None:
    with fffs.open(url.format("bag"), format="bag") as reader:
        _put(OTHERS, 2, tmp_path)
        with pytest.raises(SourceChangedError, match="changed while it was open"):
            reader.read([0])
        with fffs.open(url.format("bag"), format="bag") as again:
            assert bytes(again.read_one(0)) == OTHERS[0]


@pytest.mark.usefixtures("ftp")
def test_that_of_the_program_is_neither_used_nor_closed() -> None:
    theirs = fsspec.filesystem("ftp", host="here")
    with fffs.FileReader(OWN[0].format("ffr")) as reader:
        assert len(Connected.connections) == 2
        del Connected.connections[-1]
        assert _read(reader) == EXPECTED
        assert theirs.is_connected
        assert fsspec.filesystem("ftp", host="here") is theirs


@pytest.mark.usefixtures("ftp")
@pytest.mark.parametrize("error", [TimeoutError("silent"), KeyboardInterrupt()])
def test_no_late_answer_is_taken_for_that_to_another_question(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cat_file(self: Own, path: str, **kwargs: Any) -> bytes:
        if not failed:
            failed.append(self)
            raise error
        return Connected.cat_file(self, path, **kwargs)

    failed: list[Own] = []
    with fffs.FileReader(OWN[0].format("ffr")) as reader:
        monkeypatch.setattr(Own, "cat_file", cat_file)
        with contextlib.suppress(KeyboardInterrupt):
            _read(reader)
        assert _read(reader) == EXPECTED
        assert len(Connected.connections) == 1
        assert not failed[0].is_connected


@pytest.mark.usefixtures("ftp")
@pytest.mark.parametrize(
    "error", [UnicodeDecodeError("utf-8", b"\xe9", 0, 1, "invalid"), ConnectionResetError("reset")]
)
def test_an_answer_that_nobody_waited_for(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """ftplib does not read the last one if a line of a listing cannot be decoded."""

    def info(self: Own, path: str, **kwargs: Any) -> Any:
        if path == "d/p.bag":
            self.answers.append("226 Transfer complete")
            raise error
        return asks(self, path, **kwargs)

    asks = Own.info
    with fffs.open(OWN[0].format("bag"), format="bag") as reader:
        monkeypatch.setattr(Own, "info", info)
        for _ in range(2):
            with pytest.raises(ReadError, match=type(error).__name__):
                fffs.open("ftp://here/d/p.bag", format="bag")
            assert _read(reader) == EXPECTED
        Connected.connections[-1].answers.append("226 Transfer complete")  # type: ignore[attr-defined]
        assert _read(reader) == EXPECTED


@pytest.mark.usefixtures("ftp")
@pytest.mark.parametrize("directory", ['257 "/"', "250 /", "450 busy", "502 unknown"])
@pytest.mark.parametrize("url", OWN)
def test_servers_that_do_not_tell_their_folder(url: str, directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Control, "directory", directory)
    for kind in ("ffr", "bag"):
        with fffs.open(url.format(kind), format=None if kind == "ffr" else kind) as reader:
            for _ in range(2):
                assert _read(reader) == EXPECTED
                Connected.connections.clear()


@pytest.mark.usefixtures("ftp")
@pytest.mark.parametrize(
    ("size", "refused", "match"),
    [
        ("", [], "its server has it, but did not list it"),
        ("500 unknown", [], "its server has it, but did not list it"),
        ("500 unknown", ["names"], "450 busy"),
        ("450 no such file", [], "its server has it, but did not list it"),
    ],
)
@pytest.mark.parametrize("is_sidecar", [True, False])
def test_a_listing_that_is_refused_for_a_moment(
    is_sidecar: bool, size: str, refused: list[str], match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then fsspec says that there is no such file. Without its checksums, damaged bytes would be given."""

    def info(self: Own, path: str, **kwargs: Any) -> Any:
        if is_refused and path.endswith(".fffs-crc") is is_sidecar:
            raise FileNotFoundError(path)
        return asks(self, path, **kwargs)

    asks, is_refused = Own.info, True
    sidecars.keep_checksums(tmp_path / "p.bag")
    Connected.files["p.bag.fffs-crc"] = (tmp_path / "p.bag.fffs-crc").read_bytes(), 1
    data, when = Connected.files["p.bag"]
    Connected.files["p.bag"] = data.replace(b"two", b"TWO", 1), when
    monkeypatch.setattr(Own, "info", info)
    monkeypatch.setattr(Control, "size", size)
    monkeypatch.setattr(Control, "refused", refused)
    with pytest.raises(ReadError, match=match):
        fffs.open("ftp://here/p.bag", format="bag")
    is_refused = False
    monkeypatch.setattr(Control, "refused", [])
    with fffs.open("ftp://here/p.bag", format="bag") as reader:
        assert bytes(reader.read_one(0)) == RECORDS[0]
        with pytest.raises(fffs.errors.ChecksumError):
            reader.read_one(1)
        is_refused = not is_sidecar
        with pytest.raises(ReadError if is_refused else fffs.errors.ChecksumError):
            reader.read_one(1)


@pytest.mark.usefixtures("ftp")
def test_what_ended_a_connection_is_said_until_there_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with fffs.open(OWN[0].format("bag"), format="bag") as reader:
        monkeypatch.setattr(fsspec_host, "SHORTEST", 600.0)
        Connected.connections.clear()
        Connected.is_up[0] = False
        for lost in (
            "OSError: Socket is closed",
            "ConnectionError: the connection was lost: OSError: Socket is closed",
        ):
            with pytest.raises(ReadError, match=f"record 2: {lost}"):
                _read(reader)


@pytest.mark.usefixtures("ftp")
def test_an_interrupt_of_the_question_whether_a_connection_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def sendcmd(self: Control, command: str) -> str:
        self.fs.answers.append('257 "/"')
        raise KeyboardInterrupt

    with fffs.open(OWN[0].format("bag"), format="bag") as reader:
        with monkeypatch.context() as patch:
            patch.setattr(Control, "sendcmd", sendcmd)
            Connected.damaged.append("p.bag")
            with pytest.raises(KeyboardInterrupt):
                _read(reader)
        Connected.damaged.clear()
        for _ in range(3):
            assert _read(reader) == EXPECTED


@pytest.mark.usefixtures("ftp")
@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("url", OWN[1:])
def test_an_archive_that_is_replaced_while_it_is_opened(
    url: str, is_lost: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was opened stays the old one as long as the connection: its server has it by a handle."""

    def replaced_when_opened(open_file: Any) -> Any:
        def _open(self: Any, path: str, *args: Any, **kwargs: Any) -> Any:
            found = open_file(self, path, *args, **kwargs)
            questions.append(path)
            return found

        return _open

    def info(self: Connected, path: str, **kwargs: Any) -> Any:
        found = asks(self, path, **kwargs)
        if questions and path == questions[0]:  # the first question after it was opened
            questions.clear()
            _put([b"wrong" * 200, *OTHERS[1:]], 2, tmp_path)
        return found

    questions: list[str] = []
    asks = Connected.info
    monkeypatch.setattr(Connected, "info", info)
    monkeypatch.setattr(Own, "_open", replaced_when_opened(Own._open))
    with fffs.open(url.format("bag"), format="bag") as reader:
        assert Connected.files["x.zip"][1] == 2
        if is_lost:
            Connected.connections.clear()
        for _ in range(2):
            with pytest.raises(SourceChangedError):
                reader.read([0, 1, 2])


@pytest.mark.usefixtures("ftp")
@pytest.mark.parametrize("url", OWN[1:])
def test_files_that_archives_are_opened_from_are_closed(url: str) -> None:
    for _ in range(10):
        with fffs.FileReader(url.format("ffr")) as reader:
            assert _read(reader) == EXPECTED
        del reader
        gc.collect()
    assert len(OpenFile.opened) - len(OpenFile.closed) <= 2


@pytest.mark.usefixtures("ftp")
@pytest.mark.parametrize("url", OWN[1:])
def test_a_silent_server_is_waited_for_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each file that is closed."""

    def close(self: OpenFile) -> None:
        if self.fs.is_connected:
            closed.append(self)
            now[0] += fsspec_servers.PATIENCE

    now, closed = [time.monotonic()], []
    with fffs.FileReader(url.format("ffr")) as reader:
        others = [fffs.FileReader(url.format("ffr")) for _ in range(5)]
        assert [_read(other) for other in others] == [EXPECTED] * 5
        for other in others:
            other.close()
        del other, others
        gc.collect()
        monkeypatch.setattr(fsspec_host, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
        monkeypatch.setattr(OpenFile, "close", close)
        assert _read(reader) == EXPECTED
        assert len(closed) <= 1
        monkeypatch.undo()


@pytest.mark.usefixtures("ftp")
@pytest.mark.parametrize("url", OWN[1:])
def test_a_child_of_fork_closes_none_of_its_parent(url: str) -> None:
    """It would speak over the connection of the parent."""
    reader = fffs.FileReader(url.format("ffr"))
    assert _read(reader) == EXPECTED
    theirs = set(OpenFile.opened) - set(OpenFile.closed)
    assert theirs
    if (child := os.fork()) == 0:
        status = 1
        with contextlib.suppress(BaseException):
            assert _read(reader) == EXPECTED
            assert len(Connected.connections) == 2
            reader.close()
            del reader
            fsspec_host._found.clear()
            gc.collect()
            status = 0 if theirs.isdisjoint(OpenFile.closed) else 2
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert _read(reader) == EXPECTED
    reader.close()


@pytest.mark.usefixtures("ftp")
def test_other_options_are_another_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fsspec.config.conf, "ftp", {"username": "me"})
    with fffs.FileReader(OWN[0].format("ffr")), fffs.FileReader(OWN[0].format("ffr")):
        assert len(Connected.connections) == 1
        monkeypatch.setitem(fsspec.config.conf, "ftp", {"username": "you"})
        with fffs.FileReader(OWN[0].format("ffr")):
            assert [fs.storage_options.get("username") for fs in Connected.connections] == ["me", "you"]


@pytest.mark.usefixtures("ftp")
@pytest.mark.parametrize(
    "urls",
    [
        ["zip://p.bag::connected://x.zip"] * 4,
        ["zip://p.bag::ftp://here/x.zip"] * 4,
        ["ftp://here/p.bag", "ftp://here/d/p.bag", "zip://p.bag::ftp://here/x.zip", "tar://p.bag::ftp://here/x.tar"],
    ],
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


def test_files_of_others_are_read_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their file systems may be thread-safe."""
    both = threading.Barrier(2, timeout=20)

    def cat_file(self: Connected, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        both.wait()
        return self.files[path][0][start:end]

    readers = [fffs.open(f"connected://{name}", format="bag") for name in ("p.bag", "d/p.bag")]
    monkeypatch.setattr(Connected, "cat_file", cat_file)
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda reader: bytes(reader.read_one(0)), readers))
    for reader in readers:
        reader.close()
    assert found == [b"one", b"one"]


@pytest.mark.usefixtures("ftp")
def test_a_connection_is_made_again_as_the_same_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fsspec's configuration names meanwhile."""
    monkeypatch.setitem(fsspec.config.conf, "ftp", {"username": "me"})
    with fffs.FileReader(OWN[0].format("ffr")) as reader:
        for now in ({"username": "you"}, {}):
            monkeypatch.setitem(fsspec.config.conf, "ftp", now)
            Connected.connections.clear()
            assert _read(reader) == EXPECTED
            assert {fs.storage_options["username"] for fs in Connected.connections} == {"me"}
        monkeypatch.setitem(fsspec.config.conf, "ftp", {"account": "another"})
        Connected.connections.clear()
        with pytest.raises(ReadError, match="record 2: OSError: Socket is closed"):
            _read(reader)
        monkeypatch.setitem(fsspec.config.conf, "ftp", {})
        time.sleep(fsspec_host.SHORTEST)
        assert _read(reader) == EXPECTED


@pytest.mark.usefixtures("ftp")
@pytest.mark.parametrize("url", ["ftp://here/p.ffr", "dir://p.ffr::ftp://here/d"])
def test_users_share_no_copy(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their files may have one path, size and time."""

    def get_file(self: Own, path: str, copy: str, **kwargs: Any) -> None:
        Path(copy).write_bytes(files[self.storage_options["username"]][path][0])

    files = {}
    for user, records in (("me", RECORDS), ("you", OTHERS)):
        _put(records, 1, tmp_path)
        files[user] = dict(Connected.files)
    monkeypatch.setattr(Own, "get_file", get_file)
    for user, records in (("me", RECORDS), ("you", OTHERS), ("me", RECORDS)):
        monkeypatch.setitem(fsspec.config.conf, "ftp", {"username": user})
        with fffs.FileReader(f"simplecache::{url}") as reader:
            assert bytes(reader.read_one(0)) == records[0]


@pytest.mark.usefixtures("ftp")
@pytest.mark.parametrize(
    ("make", "kept"), [(lambda: test_options_that_are_objects, 1), (lambda: Path("/key"), 1), (lambda: bytearray(1), 0)]
)
def test_options_that_are_objects(make: Any, kept: int) -> None:
    """Equal ones have one connection. One of an option that cannot be hashed is closed with the file."""
    for _ in range(5):
        options = {"host": "here", "key": make()}
        fs = fsspec.filesystem("ffr", fo="d/p.ffr", target_protocol="ftp", target_options=options)
        assert fs.cat_file(min(fs.find(""))) == RECORDS[0]
        fs.close()
        del fs, options
        FfrFileSystem.clear_instance_cache()
        gc.collect()
    assert len(Connected.connections) == kept


@pytest.mark.parametrize("path", ["../p.ffr", "/../p.ffr", "x/../../p.ffr"])
@pytest.mark.parametrize("below", ["connected://d", "memory://d", "file:///tmp", "zip://d::connected://x.zip"])
def test_no_path_leads_out_of_a_folder(below: str, path: str) -> None:
    """Programs take ``dir`` for a boundary, as fsspec does for local files."""
    for prefix in ("", "simplecache::"):
        with pytest.raises(UsageError, match="leads out of the folder"):
            fffs.FileReader(f"{prefix}dir://{path}::{below}")
