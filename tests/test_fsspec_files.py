"""Sources that are read through fsspec: the right bytes or one line of error, whatever the file system does."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
from builders import record_file
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from inside import absolute_name, formats_sources, is_remote, shown_name
from mounting import Mounts

import fffs
from fffs import ofrecord, tfrecord
from fffs.errors import (
    AccessError,
    ChecksumError,
    MetadataError,
    MountError,
    ReadError,
    SourceChangedError,
    SourceNotFoundError,
    TruncatedError,
    UsageError,
)

RECORDS = [os.urandom(size) for size in (0, 1, 700, 5_000, 70_000, 112_000, 3, 300_000, 12)]
LARGE = [os.urandom(20 << 20), b"small"]


class Faulty(AsyncFileSystem):
    """An asynchronous file system in memory. ``reads`` has the ranges that were read; ``fault`` is raised by each."""

    protocol = "faulty"
    cachable = False
    files: ClassVar[dict[str, bytes]] = {}
    etags: ClassVar[dict[str, str]] = {}
    reads: ClassVar[list[tuple[int, int]]] = []
    fault: ClassVar[list[BaseException]] = []

    async def _info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        if path not in self.files:
            raise FileNotFoundError(path)
        return {"name": path, "type": "file", "size": len(self.files[path]), "etag": self.etags.get(path)}

    async def _cat_file(self, path: str, start: int = 0, end: int = 0, **kwargs: Any) -> bytes:
        self.reads.append((start, end))
        if self.fault:
            raise self.fault[0]
        return self.files[path][start:end]

    async def _get_file(self, rpath: str, lpath: str, **kwargs: Any) -> None:
        if self.fault:
            raise self.fault[0]
        Path(lpath).write_bytes(self.files[rpath])


class Whole(Faulty):
    """One that returns whole files for any range, as that of sshfs; those that it opens have ranges."""

    protocol = "whole"

    async def _cat_file(self, path: str, **kwargs: Any) -> bytes:
        pytest.fail("a whole file was read")

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        return io.BytesIO(self.files[path])


class Nameless(MemoryFileSystem):
    """A file system that does not pass options on, and does not tell sizes of some files."""

    protocol = "nameless"
    store: ClassVar[dict[str, Any]] = {}
    cachable = False

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return "/" + path.removeprefix("nameless://").strip("/")

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        found: dict[str, Any] = super().info(path, **kwargs)
        return {**found, "size": None} if "unsized" in path else found

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        return bytes(super().cat_file(path, start, end))


fsspec.register_implementation("faulty", Faulty, clobber=True)
fsspec.register_implementation("whole", Whole, clobber=True)
fsspec.register_implementation("nameless", Nameless, clobber=True)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setitem(fsspec.config.conf, "simplecache", {"cache_storage": str(tmp_path / "cache")})
    yield
    for kept in (Faulty.files, Faulty.etags, Faulty.reads, Faulty.fault, MemoryFileSystem.store):
        kept.clear()


@pytest.fixture(scope="module")
def records_file() -> bytes:
    return record_file(RECORDS)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    for k in range(300):
        path = folder / "src" / f"d{k % 7}" / f"f{k}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([k % 256]) * (k * 37 % 2000))
    fffs.pack_folder(folder / "src", folder / "p.ffr")
    with zipfile.ZipFile(folder / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(folder / "p.ffr", "in/p.ffr")
    return folder


def _put(protocol: str, name: str, data: bytes) -> str:
    if protocol in ("faulty", "whole"):
        Faulty.files[name] = data
    else:
        fsspec.filesystem(protocol).pipe_file(name, data)
    return f"{protocol}://{name}"


def _same(records: list[Any], numbers: list[int]) -> bool:
    return [bytes(record) for record in records] == [RECORDS[k] for k in numbers]


# ---------------------------------------------------------------- what is read


def _zipped(records_file: bytes, method: int) -> bytes:
    archive = io.BytesIO(b"in front of it")
    archive.seek(0, os.SEEK_END)
    with zipfile.ZipFile(archive, "a", method) as files:
        files.writestr("in/r.ffr", records_file)
        files.writestr("in/other", bytes(100_000))
    return archive.getvalue()


@pytest.mark.parametrize("where", ["memory", "local"])
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_records_in_a_zip_archive(
    records_file: bytes, where: str, method: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it is not compressed, only what is asked for is read from it."""
    (tmp_path / "x.zip").write_bytes(_zipped(records_file, method))
    url = _put("memory", "x.zip", _zipped(records_file, method)) if where == "memory" else f"{tmp_path}/x.zip"
    if method == zipfile.ZIP_STORED:
        monkeypatch.setattr(zipfile.ZipExtFile, "read", lambda *_: pytest.fail("it was read from its beginning"))
    with fffs.FileReader(f"zip://in/r.ffr::{url}") as reader:
        assert _same(reader.read([8, 7, 0, 4, 8]), [8, 7, 0, 4, 8])
        assert bytes(reader.read_range(7, 1000, 1010)) == RECORDS[7][1000:1010]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("copied", ["", "simplecache::"])
def test_a_damaged_file_without_checksums_in_a_zip_archive(method: int, copied: str, tmp_path: Path) -> None:
    """The archive has one of all of it."""
    with fffs.granular.BagWriter(tmp_path / "p.bag") as bag:
        for record in RECORDS:
            bag.append(record)
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", method) as archive:
        archive.write(tmp_path / "p.bag", "p.bag")
    url = _put("memory", "x.zip", data.getvalue())
    with fffs.FileReader(f"zip://p.bag::{copied}{url}", format="bag") as reader:
        assert _same(reader.read(range(9)), list(range(9)))
    if method == zipfile.ZIP_STORED:
        spoiled = bytearray(data.getvalue())
        spoiled[spoiled.index(RECORDS[3]) + 7] ^= 1
        with fffs.FileReader(f"zip://p.bag::{copied}{_put('memory', 'y.zip', bytes(spoiled))}", format="bag") as reader:
            for read in (lambda: reader.read([8, 7]), lambda: reader.read_one(0)):
                with pytest.raises(ReadError, match="its CRC-32 is not that of the archive; its bytes are damaged"):
                    read()
            [(_, failure)] = reader._store.verify(np.arange(9))
            assert "its bytes are damaged" in str(failure)


def test_a_zip_archive_without_the_header_of_a_member(records_file: bytes) -> None:
    url = _put("memory", "x.zip", _zipped(records_file, zipfile.ZIP_STORED).replace(b"PK\3\4", b"PK\3\0"))
    with pytest.raises(ReadError, match=r"zip://in/r.ffr::memory://x.zip: .*there is no header of in/r.ffr"):
        fffs.FileReader(f"zip://in/r.ffr::{url}")


@pytest.mark.parametrize("protocol", ["memory", "faulty", "whole", "nameless", "simplecache::memory"])
def test_records_in_any_order_and_repeated(protocol: str, records_file: bytes) -> None:
    url = _put(protocol.rpartition(":")[2], "r.ffr", records_file)
    numbers = [7, 0, 8, 4, 4, 7, 1, 2, 3, 5, 6]
    with fffs.FileReader(url if "::" not in protocol else f"simplecache::{url}") as reader:
        assert _same(reader.read(numbers), numbers)
        assert bytes(reader.read_one(5)) == RECORDS[5]
        assert bytes(reader.read_range(7, 1000, 1010)) == RECORDS[7][1000:1010]


@pytest.mark.parametrize("chain", ["zip://in/p.ffr::{}/x.zip", "simplecache::file://{}/p.ffr", "file://{}/p.ffr"])
def test_a_pack_at_the_end_of_a_chain(chain: str, packed: Path) -> None:
    with fffs.PackedFolder(chain.format(packed)) as folder:
        assert bytes(folder.read_one("d3/f10")) == bytes([10]) * 370
        assert folder.num_files() == 300


@pytest.mark.parametrize("cache", ["simplecache", "filecache"])
@pytest.mark.parametrize("chain", ["{cache}::zip://p.ffr::{zip}", "zip://p.ffr::{cache}::file://{zip}"])
def test_a_cache_never_gives_the_file_of_another_source(
    cache: str, chain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder that the configuration names, fsspec would: it knows a copy by its path in the archive alone."""
    monkeypatch.setitem(fsspec.config.conf, cache, {"cache_storage": str(tmp_path / "kept")})
    for data in (b"one", b"two"):
        folder = tmp_path / data.decode()
        folder.mkdir()
        with zipfile.ZipFile(folder / "x.zip", "w") as archive:
            archive.writestr("p.ffr", record_file([data]))
        with fffs.FileReader(chain.format(cache=cache, zip=folder / "x.zip")) as reader:
            assert bytes(reader.read_one(0)) == data
    assert not (tmp_path / "kept").exists()


def test_a_chain_with_a_cache_shows_the_current_file_of_its_own_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In chains that fsspec itself opens, too. Nothing is kept by fsspec, and nothing stays in the temporary folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name, data in (("a", b"one"), ("a", b"three"), ("b", b"seven")):
        (tmp_path / "f").write_bytes(data)
        (tmp_path / "p.ffr").unlink(missing_ok=True)
        fffs.pack_folder(tmp_path, tmp_path / "p.ffr")
        fsspec.filesystem("memory").pipe_file(f"/{name}/p.ffr", (tmp_path / "p.ffr").read_bytes())
        with zipfile.ZipFile(tmp_path / "x", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(tmp_path / "p.ffr", "p.ffr")
        fsspec.filesystem("memory").pipe_file(f"/{name}/x", (tmp_path / "x").read_bytes())
        for chain in (
            f"ffr://f::simplecache::memory://{name}/p.ffr",
            f"ffr://f::zip://p.ffr::filecache::memory://{name}/x",
            f"ffr://f::simplecache::zip://p.ffr::simplecache::memory://{name}/x",
        ):
            with fsspec.open(chain) as file:
                assert file.read() == data, chain
    assert sorted(os.listdir(tmp_path)) == ["f", "p.ffr", "x"]


@pytest.mark.parametrize("first", ["", "simplecache::"])
def test_a_file_in_a_copy(first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays the same when the archive is replaced, in children of fork, too. What is opened then is the new one."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    name, url = f"{len(first)}.zip", f"{first}zip://in/p.ffr::filecache::faulty://{len(first)}.zip"
    _put_zip(name, b"one")
    with fffs.FileReader(url) as reader:
        _put_zip(name, b"two")
        child = multiprocessing.get_context("fork").Process(target=_read_one, args=(reader,))
        child.start()
        child.join()
        assert child.exitcode == 0
        assert bytes(reader.read_one(0)) == b"one"
        with fffs.FileReader(url) as again:
            assert bytes(again.read_one(0)) == b"two"
        with fffs.FileReader(url.removeprefix(first).replace("p.ffr", "")) as parts:
            assert [bytes(record) for record in parts.read([0, 1])] == [b"two", b"two"]
    with pytest.raises(SourceNotFoundError, match=r"no.ffr::.*: no such file"):
        fffs.FileReader(url.replace("p.ffr", "no.ffr"))
    assert os.listdir(tmp_path) == []


def test_a_copy_is_made_once_for_files_that_are_opened_in_turn(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by chains that fsspec opens."""
    copied: list[str] = []
    monkeypatch.setattr(MemoryFileSystem, "get_file", _counting(copied, MemoryFileSystem.get_file))
    with zipfile.ZipFile(packed / "many.zip", "w") as archive:
        for k in range(6):
            archive.write(packed / "p.ffr", f"{k}.ffr")
            _put("memory", f"/turn{k}.ffr", (packed / "p.ffr").read_bytes())
    _put("memory", "/many.zip", (packed / "many.zip").read_bytes())
    for k in [*range(6)] * 3:
        for url in (f"simplecache::memory://turn{k}.ffr", f"zip://{k}.ffr::simplecache::memory://many.zip"):
            with fsspec.open(f"ffr://d3/f10::{url}") as file:
                assert file.read() == bytes([10]) * 370
    assert sorted(copied) == ["/many.zip", *(f"/turn{k}.ffr" for k in range(6))]


def _counting(copied: list[str], get_file: Callable[..., None]) -> Callable[..., None]:
    def get(self: MemoryFileSystem, rpath: str, lpath: str, **kwargs: Any) -> None:
        copied.append(rpath)
        get_file(self, rpath, lpath, **kwargs)

    return get


@pytest.mark.parametrize("chain", ["dir://p.ffr::{}", "dir://p.ffr::simplecache::{}", "simplecache::dir://p.ffr::{}"])
def test_a_file_below_a_root(chain: str, packed: Path) -> None:
    with fffs.PackedFolder(chain.format(f"file://{packed}")) as folder:
        assert bytes(folder.read_one("d3/f10")) == bytes([10]) * 370
    with fsspec.open(f"ffr://d3/f10::{chain.format(f'file://{packed}')}") as file:
        assert file.read() == bytes([10]) * 370


def test_options_that_name_no_file_below(packed: Path) -> None:
    options = {"path": str(packed), "target_protocol": "file"}
    fs = fsspec.filesystem("ffr", fo="p.ffr", target_protocol="dir", target_options=options)
    assert fs.cat_file("d3/f10") == bytes([10]) * 370


def test_copies_are_closed_if_one_file_of_several_is_missing(packed: Path) -> None:
    options = {"target_protocol": "file"}
    names = [str(packed / "p.ffr"), str(packed / "missing.ffr")]
    for k in range(20):
        with pytest.raises(SourceNotFoundError):
            fsspec.filesystem("ffr", fo=names, target_protocol="simplecache", target_options=options)
        if k == 0:
            before = len(os.listdir("/proc/self/fd"))
    assert len(os.listdir("/proc/self/fd")) == before


def _put_zip(name: str, data: bytes) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for member in ("in/p.ffr", "in/q.ffr"):
            archive.writestr(member, record_file([data]))
    Faulty.files[name] = made.getvalue()
    Faulty.etags[name] = repr(data)


def _read_one(reader: fffs.FileReader) -> None:
    assert bytes(reader.read_one(0)) == b"one"


def test_a_copy_is_shared_until_the_file_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by children of fork, of which one that ends removes nothing. Nothing stays in the temporary folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    url = _put("faulty", "shared.ffr", record_file([b"one"]))
    Faulty.etags["shared.ffr"] = "1"
    with fffs.FileReader(f"simplecache::{url}") as reader:
        Faulty.fault.append(OSError("no more copies"))
        for end in (os._exit, sys.exit):
            child = multiprocessing.get_context("fork").Process(target=_read_again, args=(reader, url, end))
            child.start()
            child.join()
            assert child.exitcode == 0
        assert bytes(reader.read_one(0)) == b"one"
        with fffs.FileReader(f"filecache::{url}") as again:
            assert bytes(again.read_one(0)) == b"one"
        Faulty.fault.clear()
        _put("faulty", "shared.ffr", record_file([b"two"]))
        Faulty.etags["shared.ffr"] = "2"
        with fffs.FileReader(f"simplecache::{url}") as again:
            assert bytes(again.read_one(0)) == b"two"
        assert bytes(reader.read_one(0)) == b"one"
    assert os.listdir(tmp_path) == []


def _read_again(reader: fffs.FileReader, url: str, end: Callable[[int], Any]) -> None:
    assert bytes(reader.read_one(0)) == b"one"
    with fffs.FileReader(f"simplecache::{url}") as again:
        assert bytes(again.read_one(0)) == b"one"
    end(0)


def test_a_size_alone_is_no_version() -> None:
    """Files are replaced by others of equal size."""
    for data in (b"one", b"two"):
        with fffs.FileReader(f"simplecache::{_put('faulty', 'sized.ffr', record_file([data]))}") as reader:
            assert bytes(reader.read_one(0)) == data


@pytest.mark.parametrize("times", [1, 1000])
def test_a_file_that_is_replaced_while_it_is_copied(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is copied again, unless it keeps changing."""
    name = f"torn{times}.ffr"
    url = _put("faulty", name, record_file([b"one"]))
    Faulty.etags[name] = "0"

    async def replace(self: Faulty, rpath: str, lpath: str, **kwargs: Any) -> None:
        Path(lpath).write_bytes(self.files[rpath])
        self.etags[rpath] = str(min(int(self.etags[rpath]) + 1, times))

    monkeypatch.setattr(Faulty, "_get_file", replace)
    if times == 1:
        fffs.FileReader(f"simplecache::{url}").close()
        return
    with pytest.raises(SourceChangedError, match=r"torn1000.ffr: the file was replaced while it was open"):
        fffs.FileReader(f"simplecache::{url}")


def test_a_copy_that_is_not_complete_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    url = _put("faulty", "short.ffr", record_file([b"one"]))
    with (
        monkeypatch.context() as patched,
        pytest.raises(ReadError, match=r"short.ffr: cannot read \(26 bytes of 27 came\)"),
    ):
        patched.setattr(Faulty, "_get_file", _make_short)
        fffs.FileReader(f"simplecache::{url}")
    Faulty.fault.append(OSError(28, "No space left on device"))
    with pytest.raises(ReadError, match=r"copying it: OSError: .*No space left"):
        fffs.FileReader(f"simplecache::{url}")
    assert os.listdir(tmp_path) == []


async def _make_short(self: Faulty, rpath: str, lpath: str, **kwargs: Any) -> None:
    Path(lpath).write_bytes(self.files[rpath][:-1])


def test_a_local_file_with_its_scheme_is_converted(packed: Path, tmp_path: Path) -> None:
    fffs.convert(f"file://{packed}/p.ffr", tmp_path / "p.tfrecord")
    with fffs.FileReader(tmp_path / "p.tfrecord") as reader:
        assert reader.n == 301


def test_neighbours_are_one_request_and_distant_records_are_requests_of_one_call(records_file: bytes) -> None:
    with fffs.FileReader(_put("faulty", "r.ffr", records_file)) as reader:
        Faulty.reads.clear()
        assert _same(reader.read([1, 3, 2]), [1, 3, 2])
        assert len(Faulty.reads) == 1
        Faulty.reads.clear()
        assert _same(reader.read([1, 7]), [1, 7])
        assert sum(end - begin for begin, end in Faulty.reads) <= 1.2 * len(RECORDS[7])


def test_opening_a_pack_takes_few_requests(packed: Path) -> None:
    with fffs.PackedFolder(_put("faulty", "p.ffr", (packed / "p.ffr").read_bytes())) as folder:
        assert len(Faulty.reads) <= 3
        assert bytes(folder.read_one("d3/f10")) == bytes([10]) * 370


def test_a_large_record_is_read_in_parts() -> None:
    with fffs.FileReader(_put("faulty", "l.ffr", record_file(LARGE))) as reader:
        Faulty.reads.clear()
        assert [bytes(record) for record in reader.read([1, 0])] == [LARGE[1], LARGE[0]]
        assert max(end - begin for begin, end in Faulty.reads) <= 8 << 20


def test_every_format_and_the_files_beside_it(tmp_path: Path) -> None:
    with tfrecord.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        for record in RECORDS:
            writer.write_one(record)
    url = _put("memory", "/d/a.tfrecord", (tmp_path / "a.tfrecord").read_bytes())
    with fffs.FileReader(url) as reader:
        assert _same(reader.read(range(len(RECORDS))), list(range(len(RECORDS))))
    with fffs.granular.BagWriter(tmp_path / "b.bag") as bag:
        for record in RECORDS:
            bag.append(record)
    for path in tmp_path.glob("*b.bag"):
        _put("memory", f"/d/{path.name}", path.read_bytes())
    with fffs.FileReader("memory://d/b.bag") as reader:
        assert _same(reader.read(range(len(RECORDS))), list(range(len(RECORDS))))


def test_checksums_that_a_store_hides_and_pages_in_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As s3fs without the right to list, and the HTTP file system of fsspec with servers that answer with a page."""
    with ofrecord.OFRecordWriter(tmp_path / "part-0", allow_empty=True) as writer:
        for record in RECORDS:
            writer.write_one(record)
    url = _put("faulty", "f/part-0", (tmp_path / "part-0").read_bytes())
    know = Faulty._info

    async def hide(self: Faulty, path: str, **kwargs: Any) -> dict[str, Any]:
        if path not in self.files:
            raise PermissionError("Forbidden")
        return await know(self, path, **kwargs)

    monkeypatch.setattr(Faulty, "_info", hide)
    with pytest.raises(AccessError, match=r"part-0.fffs-crc: no access"):
        fffs.open(url, format="ofrecord")
    monkeypatch.setattr(Faulty, "protocol", ("s3", "faulty"))
    with fffs.open(url, format="ofrecord") as reader:
        assert _same(reader.read(range(reader.n)), list(range(reader.n)))
    with pytest.raises(AccessError):
        fffs.open("faulty://f/part-1", format="ofrecord")
    _put("faulty", "f/part-0.fffs-crc", b"<html>Log in</html>")
    with pytest.raises(MetadataError, match="does not match"):
        fffs.open(url, format="ofrecord")
    monkeypatch.setattr(Faulty, "protocol", ("https", "faulty"))
    with fffs.open(url, format="ofrecord") as reader:
        assert _same(reader.read(range(reader.n)), list(range(reader.n)))


def test_a_list_and_a_folder_of_parts(records_file: bytes) -> None:
    urls = [_put("memory", f"/parts/{k}.ffr", record_file([b"%d" % k])) for k in range(3)]
    _put("memory", "/parts/other.txt", b"")
    for source in (urls, "memory://parts/"):
        with fffs.FileReader(source) as reader:
            assert [bytes(record) for record in reader.read(range(3))] == [b"0", b"1", b"2"]
    with pytest.raises(SourceNotFoundError, match="memory://empty/: no such file or folder"):
        fffs.FileReader("memory://empty/")


@pytest.mark.parametrize("chain", ["memory://set/", "zip://set/::{}/x.zip"])
def test_shards_and_parts_are_found_by_folder_stem_and_pattern(chain: str, tmp_path: Path) -> None:
    files = {}
    for k in range(3):
        path = tmp_path / f"train.tfrecord-{k:05}-of-00003"
        with tfrecord.TFRecordWriter(path) as writer:
            writer.write_one(b"%d" % k)
        files[path.name] = path.read_bytes()
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for name, data in files.items():
            _put("memory", f"/set/{name}", data)
            archive.writestr(f"set/{name}", data)
            archive.writestr(f"parts/part-{name[19]}", (0).to_bytes(8, "little"))
    folder = chain.format(tmp_path)
    for name in ("", "train.tfrecord", "train.tfrecord-*-of-00003", "train.tfrecord@3"):
        source = folder.replace("set/", f"set/{name}")
        with fffs.FileReader(tfrecord.expand_shards(source)) as reader:
            assert [bytes(record) for record in reader.read(range(3))] == [b"0", b"1", b"2"]
    with fffs.FileReader(folder) as reader:
        assert reader.n == 3
    one = folder.replace("set/", "set/train.tfrecord-00001-of-00003")
    assert tfrecord.expand_shards(one) == [one]
    with pytest.raises(SourceNotFoundError, match="no such file, and no shards of that name"):
        tfrecord.expand_shards(folder.replace("set/", "set/none"))
    parts = f"zip://parts/::{tmp_path}/x.zip"
    assert ofrecord.expand_parts(parts) == [f"zip://parts/part-{k}::{tmp_path}/x.zip" for k in range(3)]
    with fffs.FileReader(parts) as reader:
        assert reader.n == 3


# ---------------------------------------------------------------- commands and mounts


def _run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "fffs", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_commands(packed: Path, tmp_path: Path) -> None:
    url = f"zip://in/p.ffr::{packed / 'x.zip'}"
    assert "d3" in _run("ls", url)
    assert _run("cat", url, "d3/f10") == chr(10) * 370
    assert "packed folder" in _run("info", url)
    assert "ok: 301 records" in _run("verify", url)
    _run("unpack", url, str(tmp_path / "out"))
    assert (tmp_path / "out/d3/f10").read_bytes() == bytes([10]) * 370
    _run("convert", "--from", "ffrecord", url, str(tmp_path / "c.tfrecord"))
    with fffs.open(tmp_path / "c.tfrecord") as reader:
        assert reader.n == 301
    _run("convert", url, str(tmp_path / "aligned.ffr"), "--align")
    with fffs.PackedFolder(tmp_path / "aligned.ffr") as folder:
        assert bytes(folder.read_one("d3/f10")) == bytes([10]) * 370


def test_workers_of_a_loader_connect_again(packed: Path) -> None:
    torch = pytest.importorskip("fffs.torch")
    folder = torch.PackedFolder(f"zip://in/p.ffr::{packed / 'x.zip'}", transform=len)
    loader = torch.DataLoader(folder, batch_size=50, num_workers=2)
    assert sum(int(sizes.sum()) for sizes, _ in loader) == sum(k * 37 % 2000 for k in range(300))


def test_the_kernel_cannot_mount_what_fsspec_reads(packed: Path, tmp_path: Path) -> None:
    url = f"zip://in/p.ffr::{packed / 'x.zip'}"
    done = subprocess.run(
        [sys.executable, "-m", "fffs", "mount", "-o", "kernel", url, str(tmp_path / "mnt")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == MountError.exit_code and "is not a file of this machine" in done.stderr


@pytest.mark.fuse
def test_a_mount(packed: Path, mounts: Mounts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(packed)
    point = mounts("zip://in/p.ffr::x.zip")  # relative: the daemon has another folder
    mounts.daemon.expect("without the fast path: .*x.zip is not a file of this machine")
    assert (point / "d3/f10").read_bytes() == bytes([10]) * 370
    assert sum(len(files) for _, _, files in os.walk(point)) == 300
    with open("/proc/mounts") as table:
        assert f"zip://in/p.ffr::{packed}/x.zip" in table.read()


# ---------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("cache", ["blockcache", "cached"])
def test_a_cache_that_shows_zeros_after_an_error_is_refused(cache: str, packed: Path) -> None:
    for url in (
        f"{cache}::file://{packed}",
        f"zip://p.ffr::{cache}::file://{packed}",
        f"{cache}::file://{packed.parent}/",
    ):
        with pytest.raises(UsageError, match=r"blockcache shows zeros .* use filecache or simplecache$"):
            fffs.open(url)
    for chain in (f"ffr://f::{cache}::file://{packed}", f"ffr://f::zip://p.ffr::{cache}::file://{packed}/x.zip"):
        with pytest.raises(UsageError, match=r"blockcache shows zeros .* use filecache or simplecache$"):
            fsspec.open(chain).open()


def test_what_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    _put("nameless", "/unsized", b"x" * 100)
    for url, error, words in (
        ("nope://x.ffr", UsageError, "Protocol not known: nope"),
        ("memory://none.ffr", SourceNotFoundError, "no such file"),
        ("zip://none.ffr::/none.zip", SourceNotFoundError, "no such file"),
        ("memory://", UsageError, "is a folder"),
        ("nameless://unsized", ReadError, "does not tell its size"),
    ):
        with pytest.raises(error, match=words) as caught:
            fffs.open(url)
        assert str(caught.value).startswith(f"{url}: ") and "\n" not in str(caught.value)


def test_without_fsspec_one_line_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['fsspec'] = None\nimport fffs\n"
        "try: fffs.open('memory://x.ffr')\nexcept fffs.errors.UsageError as error: print(error)\n"
        "try: import fffs.fsspec\nexcept ModuleNotFoundError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == [
        "memory://x.ffr: this needs fsspec, which is missing: pip install 'fffs[fsspec]'",
        "fffs.fsspec needs fsspec: pip install 'fffs[fsspec]'",
    ]


def test_a_version_of_fsspec_that_does_not_work_after_fork_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("fsspec.asyn.reset_after_fork")
    with pytest.raises(UsageError, match="is too old: pip install"):
        fffs.open("memory://x.ffr")


def test_reading_local_files_does_not_import_fsspec(packed: Path) -> None:
    program = f"import sys, fffs; fffs.PackedFolder({str(packed / 'p.ffr')!r}); print('fsspec' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (OSError("host\nunreachable"), ReadError),
        (RuntimeError("https://u:pw@host/x?sig=SECRET"), ReadError),
        (PermissionError("no"), ReadError),
        (FileNotFoundError("x"), SourceNotFoundError),
    ],
)
def test_any_exception_of_a_file_system_is_one_line_without_secrets(
    records_file: bytes, fault: BaseException, error: type[Exception]
) -> None:
    with fffs.FileReader(_put("faulty", "r.ffr", records_file)) as reader:
        Faulty.fault.append(fault)
        for read in (lambda: reader.read([7, 4]), lambda: reader.read_one(4)):
            with pytest.raises((error, AccessError)) as caught:
                read()
            text = str(caught.value)
            assert "faulty://r.ffr" in text and "\n" not in text and "pw" not in text and "SECRET" not in text
        Faulty.fault.clear()
        assert bytes(reader.read_one(4)) == RECORDS[4]


@pytest.mark.parametrize("size", [-5, 2**63, 1.5, "700", True])
def test_a_size_that_is_none_is_an_error(monkeypatch: pytest.MonkeyPatch, size: Any) -> None:
    url = _put("faulty", "r.tfrecord", b"")

    async def info(self: Faulty, path: str) -> dict[str, Any]:
        return {"name": path, "type": "file", "size": size}

    monkeypatch.setattr(Faulty, "_info", info)
    with pytest.raises(ReadError, match=f"faulty://r.tfrecord: .*its file system tells a size that is none: {size!r}"):
        fffs.open(url)


def test_integers_of_numpy_are_sizes(monkeypatch: pytest.MonkeyPatch, records_file: bytes) -> None:
    async def info(self: Faulty, path: str) -> dict[str, Any]:
        return {"name": path, "type": "file", "size": np.int64(len(self.files[path]))}

    monkeypatch.setattr(Faulty, "_info", info)
    with fffs.FileReader(_put("faulty", "r.ffr", records_file)) as reader:
        assert bytes(reader.read_one(5)) == RECORDS[5]


@pytest.mark.parametrize("told", [None, 7])
def test_a_file_system_that_tells_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch, told: Any) -> None:
    async def info(self: Faulty, path: str) -> Any:
        return told

    monkeypatch.setattr(Faulty, "_info", info)
    with pytest.raises(
        ReadError, match=r"faulty://r.ffr: .*its file system tells nothing of it \(info is (None|int)\)"
    ):
        fffs.FileReader("faulty://r.ffr")


@pytest.mark.parametrize("protocol", ["faulty", "nameless"])
@pytest.mark.parametrize(("data", "kind"), [(None, "None"), ("text", "str"), ([1], "list")])
def test_what_is_not_bytes_is_an_error(
    monkeypatch: pytest.MonkeyPatch, records_file: bytes, protocol: str, data: Any, kind: str
) -> None:
    async def later(self: Any, path: str, **kwargs: Any) -> Any:
        return data

    with fffs.FileReader(_put(protocol, "r.ffr", records_file)) as reader:
        if protocol == "faulty":
            monkeypatch.setattr(Faulty, "_cat_file", later)
        else:
            monkeypatch.setattr(Nameless, "cat_file", lambda self, path, start=None, end=None: data)
        for read in (
            lambda: reader.read([7, 4]),
            lambda: reader.read_one(4),
            lambda: reader.read_range(7, 1000, 1010),
        ):
            with pytest.raises(ReadError, match=f"{protocol}://r.ffr: .*its file system returned {kind} in place of"):
                read()
    with pytest.raises(ReadError, match=f"{protocol}://r.ffr: .*its file system returned {kind} in place of"):
        fffs.FileReader(f"{protocol}://r.ffr")


@pytest.mark.parametrize("protocol", ["faulty", "nameless"])
@pytest.mark.parametrize("spare", [1, 1 << 20])
def test_more_bytes_than_those_of_a_range_are_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, protocol: str, spare: int
) -> None:
    def longer(self: Any, path: str, start: int = 0, end: int = 0, **kwargs: Any) -> bytes:
        return data if spare > len(data) else data[start : end + spare]

    async def later(*args: Any, **kwargs: Any) -> bytes:
        return longer(*args, **kwargs)

    with ofrecord.OFRecordWriter(tmp_path / "part-0") as writer:  # a format without checksums
        for k in range(3000):
            writer.write_one(b"%06d" % k * 40)
    data = (tmp_path / "part-0").read_bytes()
    with fffs.open(_put(protocol, "part-0", data), format="ofrecord") as reader:
        if protocol == "faulty":
            monkeypatch.setattr(Faulty, "_cat_file", later)
        else:
            monkeypatch.setattr(Nameless, "cat_file", longer)
        for read in (
            lambda: reader.read([1500, 1501, 2500]),
            lambda: reader.read_one(1500),
            lambda: reader.read_range(1500, 10, 20),
        ):
            with pytest.raises(ReadError, match=f"{protocol}://part-0: .*file system returned .* bytes for a range of"):
                read()


@pytest.mark.parametrize("data", [bytearray, memoryview])
def test_other_buffers_are_read(monkeypatch: pytest.MonkeyPatch, records_file: bytes, data: Any) -> None:
    async def later(self: Faulty, path: str, start: int = 0, end: int = 0) -> Any:
        return data(self.files[path][start:end])

    monkeypatch.setattr(Faulty, "_cat_file", later)
    with fffs.FileReader(_put("faulty", "r.ffr", records_file)) as reader:
        assert _same(reader.read([7, 4]), [7, 4])


def test_a_range_that_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch, records_file: bytes) -> None:
    async def ranges(self: Faulty, *args: Any, **kwargs: Any) -> list[bytes]:
        return []

    monkeypatch.setattr(Faulty, "_cat_ranges", ranges)
    with pytest.raises(ReadError, match=r"faulty://r.ffr: .*its file system returned 0 ranges, not 1"):
        fffs.FileReader(_put("faulty", "r.ffr", records_file))


def test_a_listing_that_is_none_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ls(self: Faulty, path: str, detail: bool = True) -> Any:
        return [None]

    monkeypatch.setattr(Faulty, "_ls", ls, raising=False)
    with pytest.raises(ReadError, match=r"faulty://d/: "):
        fffs.FileReader("faulty://d/")


def test_damage_is_an_error_of_its_record_alone(records_file: bytes) -> None:
    damaged = bytearray(records_file)
    damaged[records_file.index(RECORDS[5]) + 1000] ^= 1
    with fffs.FileReader(_put("faulty", "r.ffr", bytes(damaged))) as reader:
        with pytest.raises(ChecksumError, match=r"faulty://r\.ffr: record 5: checksum mismatch"):
            reader.read([4, 5, 6])
        assert _same(reader.read([4, 6, 7]), [4, 6, 7])


def test_a_file_that_is_too_short_is_truncated(records_file: bytes) -> None:
    with fffs.FileReader(_put("faulty", "r.ffr", records_file[: -len(RECORDS[8]) - 1000])) as reader:
        with pytest.raises(TruncatedError):
            reader.read([8])
        assert _same(reader.read([6]), [6])


@pytest.mark.parametrize("protocol", ["faulty", "memory"])
def test_a_replaced_file_is_an_error_that_says_so(protocol: str, records_file: bytes) -> None:
    with fffs.FileReader(_put(protocol, "/r.ffr", records_file)) as reader:
        assert _same(reader.read([4]), [4])
        other = record_file([bytes(len(record)) for record in RECORDS])
        Faulty.etags["/r.ffr"] = "another"
        _put(protocol, "/r.ffr", other)
        with pytest.raises(SourceChangedError, match="was replaced while it was open"):
            reader.read([4])
        _put(protocol, "/r.ffr", records_file[:100])
        with pytest.raises(SourceChangedError):
            reader.read([7])


def test_other_bytes_in_a_file_without_checksums_are_an_error(tmp_path: Path) -> None:
    with fffs.granular.BagWriter(tmp_path / "b.bag") as bag:
        bag.append(b"old")
    for path in tmp_path.glob("*b.bag"):
        Faulty.files[path.name] = path.read_bytes()
    Faulty.etags["b.bag"] = "one"
    with fffs.FileReader("faulty://b.bag") as reader:
        assert bytes(reader.read([0])[0]) == b"old"
        Faulty.etags["b.bag"] = "two"
        with pytest.raises(SourceChangedError):
            reader.read([0])


# ---------------------------------------------------------------- processes and threads


def test_pickles(records_file: bytes) -> None:
    with fffs.FileReader(_put("memory", "/r.ffr", records_file)) as reader:
        with pickle.loads(pickle.dumps(reader)) as copy:
            assert _same(copy.read([4, 2]), [4, 2])
        data = pickle.dumps(reader)
    _put("memory", "/r.ffr", record_file([b"another"]))
    with pytest.raises(SourceChangedError):
        pickle.loads(data)


@pytest.mark.parametrize("protocol", ["faulty", "memory"])
@pytest.mark.parametrize("before", [False, True])
def test_a_child_of_fork_connects_again(protocol: str, before: bool, records_file: bytes) -> None:
    with fffs.FileReader(_put(protocol, "r.ffr", records_file)) as reader:
        if before:
            reader.read([3])
        child = os.fork()
        if child == 0:
            os._exit(0 if _same(reader.read([7, 4]), [7, 4]) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert _same(reader.read([7, 4]), [7, 4])


@pytest.mark.parametrize("chain", ["memory://p.ffr", "zip://in/p.ffr::{}/x.zip"])
def test_threads_at_once(chain: str, packed: Path) -> None:
    _put("memory", "/p.ffr", (packed / "p.ffr").read_bytes())
    failed: list[Any] = []
    with fffs.PackedFolder(chain.format(packed)) as folder:

        def read() -> None:
            try:
                for k in range(20):
                    assert bytes(folder.read_one(f"d{k % 7}/f{k}")) == bytes([k]) * (k * 37)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=read) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed


# ---------------------------------------------------------------- through a file system of fsspec


def test_options_of_the_target_are_for_fsspec(packed: Path) -> None:
    _put("memory", "/p.ffr", (packed / "p.ffr").read_bytes())
    with fsspec.open("ffr://d3/f10::memory://p.ffr", "rb") as file:
        assert file.read() == bytes([10]) * 370
    with fsspec.open("ffr://d3/f10::simplecache::memory://p.ffr", "rb") as file:
        assert file.read() == bytes([10]) * 370
    fs = fsspec.filesystem("ffr", fo="in/p.ffr", target_protocol="zip", target_options={"fo": str(packed / "x.zip")})
    assert pickle.loads(pickle.dumps(fs)).cat_file("d3/f10") == bytes([10]) * 370


def test_secrets_among_options_are_not_shown() -> None:
    options = {"client_kwargs": {"password": "VERYSECRET"}, "token": "TOKENTOKEN"}
    Faulty.fault.append(RuntimeError("refused VERYSECRET and TOKENTOKEN"))
    Faulty.files["r.ffr"] = b"x" * 100
    with pytest.raises(ReadError, match="refused … and …"):
        fsspec.filesystem("ffr", fo="r.ffr", target_protocol="faulty", target_options=options)


def test_secrets_of_the_configuration_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of FSSPEC_FAULTY_PASSWORD, or a file in ~/.config/fsspec."""
    monkeypatch.setitem(fsspec.config.conf, "other", {"password": "VERYSECRET", "more": {"api_key": "KEYKEYKEY"}})
    Faulty.fault.append(RuntimeError("refused VERYSECRET and KEYKEYKEY"))
    Faulty.files["r.ffr"] = b"x" * 100
    with pytest.raises(ReadError, match="refused … and …"):
        fffs.open("faulty://r.ffr")


def test_a_replaced_target_is_seen_by_new_instances(packed: Path, tmp_path: Path) -> None:
    _put("memory", "/p.ffr", (packed / "p.ffr").read_bytes())
    assert fsspec.filesystem("ffr", fo="memory://p.ffr").isfile("d3/f10")
    (tmp_path / "src").mkdir()
    (tmp_path / "src/new").write_bytes(b"new")
    fffs.pack_folder(tmp_path / "src", tmp_path / "n.ffr")
    _put("memory", "/p.ffr", (tmp_path / "n.ffr").read_bytes())
    assert fsspec.filesystem("ffr", fo="memory://p.ffr").find("") == ["new"]


def test_a_replaced_archive_is_seen_by_new_instances(packed: Path, tmp_path: Path) -> None:
    for content in (b"old", b"newer"):
        (tmp_path / "src").mkdir(exist_ok=True)
        (tmp_path / "src/f").write_bytes(content)
        fffs.pack_folder(tmp_path / "src", tmp_path / f"{content.decode()}.ffr")
        with zipfile.ZipFile(tmp_path / "new.zip", "w") as archive:
            archive.write(tmp_path / f"{content.decode()}.ffr", "p.ffr")
        os.replace(tmp_path / "new.zip", tmp_path / "x.zip")
        fs = fsspec.filesystem("ffr", fo=f"zip://p.ffr::{tmp_path / 'x.zip'}")
        assert fs.cat_file("f") == content


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("sftp://me:pw@host/a.ffr", "sftp://…@host/a.ffr"),
        ("sftp://me:p/w@host/a.ffr", "sftp://…@host/a.ffr"),
        ("sftp://me:p@w@host/a.ffr", "sftp://…@host/a.ffr"),
        ("simplecache::ftp://me:pw@host:21/a.ffr", "simplecache::ftp://…@host:21/a.ffr"),
        ("zip://a.ffr::sftp://me:pw@host/x.zip", "zip://a.ffr::sftp://…@host/x.zip"),
    ],
)
def test_a_password_in_a_url_is_refused_and_not_shown(name: str, shown: str) -> None:
    assert shown_name(name) == shown
    for call in (fffs.open, fffs.PackedFolder, formats_sources.open_file, absolute_name):
        with pytest.raises(UsageError) as caught:
            call(name)
        assert "pw" not in str(caught.value) and "p/w" not in str(caught.value) and "p@w" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("sftp://me@host:22/a.ffr", "sftp://me@host:22/a.ffr"),
        ("hf://datasets/me/set@main/a.ffr", "hf://datasets/me/set@main/a.ffr"),
        ("github://org:repo@v1/a.ffr", "github://org:repo@v1/a.ffr"),
        ("simplecache::https://host/a.ffr?sig=secret", "simplecache::https://host/a.ffr?…"),
    ],
)
def test_what_is_shown_of_other_urls(name: str, shown: str) -> None:
    assert is_remote(name) and shown_name(name) == shown


@pytest.mark.parametrize("name", ["a.ffr", "/a/b.ffr", "./memory://x.ffr", "a::b.ffr", "c:/x", "ü://x"])
def test_names_of_local_files(name: str) -> None:
    assert not is_remote(name) and shown_name(name) == name


def test_names_that_mean_the_same_in_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, absolute in (
        ("memory://x.ffr", "memory://x.ffr"),
        ("zip://a.ffr::x.zip", f"zip://a.ffr::{tmp_path}/x.zip"),
        ("zip://a.ffr::memory://x.zip", "zip://a.ffr::memory://x.zip"),
        ("zip://a.ffr::file:///x.zip", "zip://a.ffr::file:///x.zip"),
        (f"file://{tmp_path}/x.ffr", f"{tmp_path}/x.ffr"),
    ):
        assert absolute_name(name) == absolute
    (tmp_path / "memory:").mkdir()
    (tmp_path / "memory:/x.ffr").write_bytes(record_file([b"local"]))
    with fffs.FileReader("./memory://x.ffr") as reader:
        assert bytes(reader.read_one(0)) == b"local"
