"""The file system of fsspec: what is in a source, by every method, and by the libraries that read through fsspec."""

from __future__ import annotations

import errno
import io
import multiprocessing
import os
import pickle
import shutil
import stat
import threading
from pathlib import Path
from typing import Any

import fsspec
import object_server
import pandas
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet
import pytest
from builders import record_file
from object_server import ObjectServer, serving
from weed import clear_environment

import fffs
from fffs.errors import ChecksumError, ClosedError, FormatError, SourceChangedError, SourceNotFoundError, UsageError
from fffs.fsspec import FfrFileSystem

BIG = bytes(range(256)) * 16_000  # more than a block of checksums
STRANGE = [b"a::b", b"with space", b"hash#tag", b"star*", b"quest?", b"[set]", b"{brace}", b"not-utf8-\xff\xfe", b"..."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("fsspec") / "src"
    (source / "d/e").mkdir(parents=True)
    (source / "empty").mkdir()
    (source / "a.csv").write_text("x,y\n1,2\n")
    (source / "d/b.csv").write_text("x,y\n3,4\n")
    (source / "d/e/none").write_bytes(b"")
    (source / "big").write_bytes(BIG)
    os.link(source / "a.csv", source / "d/hard.csv")
    (source / "soft").symlink_to("d/b.csv")
    (source / "to_d").symlink_to("d")
    (source / "dangling").symlink_to("nowhere")
    return source


@pytest.fixture(scope="module")
def pack(folder: Path) -> str:
    fffs.pack_folder(folder, folder.parent / "p.ffr")
    return str(folder.parent / "p.ffr")


@pytest.fixture
def fs(pack: str) -> Any:
    return fsspec.filesystem("ffr", fo=pack)


# ---------------------------------------------------------------- names


def test_it_is_found_by_its_entry_point(pack: str) -> None:
    assert fsspec.get_filesystem_class("ffr") is FfrFileSystem
    for chain in (f"ffr://d/b.csv::{pack}", f"ffr://d/b.csv::file://{pack}"):
        with fsspec.open(chain, "rb") as file:
            assert file.read() == b"x,y\n3,4\n"


def test_all_names_are_those_of_the_folder(fs: Any, folder: Path) -> None:
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or path.is_file())
    assert fs.find("") == files
    both = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    assert fs.find("", withdirs=True) == both
    assert list(fs.find("", withdirs=True, detail=True)) == both
    assert sorted(fs.ls("", detail=False)) == sorted(os.listdir(folder))
    walked = {root: (sorted(folders), sorted(names)) for root, folders, names in fs.walk("")}
    assert walked["d"] == (["e"], ["b.csv", "hard.csv"])
    assert "to_d" not in walked  # a link that leads upwards would never end


def test_info_is_what_a_listing_says(fs: Any) -> None:
    listed = {info["name"]: info for info in fs.ls("d")}
    assert listed == {name: fs.info(name) for name in ("d/b.csv", "d/e", "d/hard.csv")}
    assert fs.find("d", withdirs=True, detail=True) == {
        name: fs.info(name) for name in ("d", "d/b.csv", "d/e", "d/e/none", "d/hard.csv")
    }
    assert fs.info("d/e")["type"] == "directory"
    assert fs.info("")["type"] == "directory"
    assert fs.info("")["name"] == ""


@pytest.mark.parametrize("form", ["d/b.csv", "/d/b.csv", "d//b.csv", "./d/./b.csv", "ffr://d/b.csv", "to_d/b.csv"])
def test_forms_of_a_path(fs: Any, form: str) -> None:
    assert fs.cat_file(form) == b"x,y\n3,4\n"
    assert fs.isfile(form) and not fs.isdir(form)


@pytest.mark.parametrize("path", ["no", "d/no", "a.csv/x", "../p.ffr", "d/../a.csv", "dangling/x", "\ud800"])
def test_paths_that_do_not_exist(fs: Any, path: str) -> None:
    assert not fs.exists(path) and not fs.lexists(path) and not fs.isfile(path) and not fs.isdir(path)
    for call in (fs.info, fs.ls, fs.cat_file, fs.open, fs.modified, fs.ukey):
        with pytest.raises(FileNotFoundError):
            call(path)
    assert fs.find(path) == []


def test_depths(fs: Any) -> None:
    assert fs.find("", maxdepth=1) == ["a.csv", "big", "dangling", "soft", "to_d"]
    assert fs.find("d", maxdepth=1, withdirs=True) == ["d", "d/b.csv", "d/e", "d/hard.csv"]
    with pytest.raises(ValueError):
        fs.find("", maxdepth=0)
    assert fs.find("a.csv") == ["a.csv"]


def test_patterns(fs: Any) -> None:
    assert fs.glob("*.csv") == ["a.csv"]
    assert fs.glob("**/*.csv") == ["a.csv", "d/b.csv", "d/hard.csv"]
    assert fs.glob("d/*") == ["d/b.csv", "d/e", "d/hard.csv"]
    assert fs.glob("to_d/*.csv") == ["to_d/b.csv", "to_d/hard.csv"]
    assert fs.glob("nothing*") == []


def test_links(fs: Any) -> None:
    soft = fs.info("soft")
    assert (soft["type"], soft["destination"], soft["size"], soft["islink"]) == ("link", "d/b.csv", 8, True)
    assert fs.cat_file("soft") == b"x,y\n3,4\n" and fs.isfile("soft")
    assert fs.isdir("to_d") and fs.ls("to_d", detail=False) == ["to_d/b.csv", "to_d/e", "to_d/hard.csv"]
    assert fs.lexists("dangling") and not fs.exists("dangling")
    assert fs.info("a.csv")["ino"] == fs.info("d/hard.csv")["ino"] and fs.info("a.csv")["nlink"] == 2


def test_times(fs: Any, folder: Path) -> None:
    assert abs(fs.modified("a.csv").timestamp() - (folder / "a.csv").stat().st_mtime) < 1e-3
    assert fs.created("a.csv") == fs.modified("a.csv")
    assert abs(fs.info("a.csv")["mtime"] - (folder / "a.csv").stat().st_mtime) < 1e-3


def test_strange_names(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for name in STRANGE:
        (tmp_path / "src" / os.fsdecode(name)).write_bytes(name)
    fffs.pack_folder(tmp_path / "src", tmp_path / "s.ffr")
    fs = fsspec.filesystem("ffr", fo=str(tmp_path / "s.ffr"))
    names = fs.find("")
    assert sorted(map(os.fsencode, names)) == sorted(STRANGE)
    assert fs.cat(names) == {os.fsdecode(name): name for name in STRANGE}
    for name in names:
        assert fs.open(name).read() == fs.cat_file(name) == os.fsencode(name)
        assert fs.info(name)["size"] == len(os.fsencode(name))
    with fsspec.open(f"ffr://with space::{tmp_path / 's.ffr'}") as file:
        assert file.read() == b"with space"


# ---------------------------------------------------------------- bytes


@pytest.mark.parametrize(
    ("start", "end"),
    [(None, None), (0, 0), (2, 5), (-3, None), (None, -2), (-5, -1), (5, 2), (0, 1 << 40), (-99, 99)],
)
def test_ranges_are_those_of_slices(fs: Any, start: int | None, end: int | None) -> None:
    assert fs.cat_file("a.csv", start=start, end=end) == b"x,y\n1,2\n"[start:end]
    assert fs.cat_file("big", start=start, end=end) == BIG[start:end]
    assert fs.cat_ranges(["big", "a.csv"], start, end) == [BIG[start:end], b"x,y\n1,2\n"[start:end]]


def test_many_files_are_read_in_one_batch(fs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store, calls = fs._shown.store, []
    read = store.read
    monkeypatch.setattr(store, "read", lambda records: calls.append(len(list(records))) or read(records))
    assert fs.cat("**/*.csv") == {"a.csv": b"x,y\n1,2\n", "d/b.csv": b"x,y\n3,4\n", "d/hard.csv": b"x,y\n1,2\n"}
    assert fs.cat_ranges(["a.csv", "soft"], [0, 2], [3, None]) == [b"x,y", b"y\n3,4\n"]
    assert calls == [3, 2]
    assert fs.cat("", recursive=True, on_error="omit")["big"] == BIG
    assert fs.cat_ranges([], [], []) == []


def test_errors_of_many_files(fs: Any) -> None:
    assert fs.cat(["a.csv", "no"], on_error="omit") == {"a.csv": b"x,y\n1,2\n"}
    returned = fs.cat(["a.csv", "no", "d"], on_error="return")
    assert isinstance(returned["no"], FileNotFoundError) and isinstance(returned["d"], IsADirectoryError)
    with pytest.raises(FileNotFoundError):
        fs.cat(["a.csv", "no"])
    assert fs.cat_ranges(["no", "a.csv"], 0, 1)[1] == b"x"
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges(["no", "a.csv"], 0, 1, on_error="raise")


def _damage(path: Path, record: int) -> None:
    with fffs.FileReader(path) as reader:
        place = int(reader.get_offsets()[record])
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_a_damaged_record_names_itself_and_its_siblings_are_read(pack: str, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.ffr"
    shutil.copy(pack, damaged)
    with fffs.FileReader(pack) as reader:
        record = [bytes(one) for one in reader.read(range(reader.n))].index(b"x,y\n3,4\n")
    _damage(damaged, record)
    fs = fsspec.filesystem("ffr", fo=str(damaged))
    for read in (lambda: fs.cat_file("d/b.csv"), lambda: fs.open("d/b.csv").read(), lambda: fs.cat_file("soft", 0, 1)):
        with pytest.raises(ChecksumError, match=rf"damaged\.ffr: record {record}: checksum mismatch"):
            read()
    assert fs.cat("**/*.csv", on_error="omit") == {"a.csv": b"x,y\n1,2\n", "d/hard.csv": b"x,y\n1,2\n"}
    assert isinstance(fs.cat("**/*.csv", on_error="return")["d/b.csv"], ChecksumError)
    with pytest.raises(ChecksumError):
        fs.get("d/b.csv", str(tmp_path / "copy"))
    assert not (tmp_path / "copy").exists()


def test_a_file_object(fs: Any) -> None:
    with fs.open("big") as file:
        assert (file.size, file.tell(), file.name, file.mode) == (len(BIG), 0, "big", "rb")
        assert file.readable() and file.seekable() and not file.writable()
        assert file.seek(-10, io.SEEK_END) == len(BIG) - 10 and file.read() == BIG[-10:] and file.read() == b""
        assert file.seek(300) == 300 and file.read(7) == BIG[300:307] and file.tell() == 307
        buffer = bytearray(5000)
        assert file.readinto(buffer) == 5000 and buffer == BIG[307:5307]
        assert file.seek(1, io.SEEK_CUR) == 5308
        assert file.seek(1 << 40) == 1 << 40 and file.read(1) == b""
        with pytest.raises(ValueError):
            file.seek(-1)
    with pytest.raises(ValueError):
        file.read()
    assert fs.open("d/e/none").read() == b""
    assert list(fs.open("a.csv", "r")) == ["x,y\n", "1,2\n"]
    assert fs.read_block("a.csv", 0, 5, delimiter=b"\n") == b"x,y\n1,2\n"
    assert fs.head("a.csv", 3) == b"x,y" and fs.tail("a.csv", 3) == b",2\n"


@pytest.mark.parametrize("cache", ["filecache", "simplecache"])
def test_caches_of_fsspec(pack: str, tmp_path: Path, cache: str) -> None:
    options: Any = {cache: {"cache_storage": str(tmp_path / "chain")}}
    with fsspec.open(f"{cache}::ffr://d/b.csv::{pack}", **options) as file:
        assert file.read() == b"x,y\n3,4\n"
    for _ in range(2):  # the second one reads what is cached
        fs = fsspec.filesystem(
            cache,
            target_protocol="ffr",
            target_options={"fo": pack},
            cache_storage=str(tmp_path / "cache"),
            skip_instance_cache=True,
        )
        with fs.open("soft", "rt") as text:
            assert text.readlines() == ["x,y\n", "3,4\n"]
        with fs.open("big", block_size=100_000) as file:
            assert file.seek(-10, io.SEEK_END) == len(BIG) - 10
            assert file.read() == BIG[-10:]
            file.seek(99_990)
            assert file.read(20) == BIG[99_990:100_010]
            file.seek(0)
            assert file.read() == BIG
        with fs.open("d/e/none") as file:
            assert file.read() == b""
        with pytest.raises(FileNotFoundError):
            fs.open("missing")


@pytest.mark.parametrize("cache", ["blockcache", "cached"])
def test_a_cache_that_shows_zeros_after_an_error_is_refused(pack: str, tmp_path: Path, cache: str) -> None:
    fs = fsspec.filesystem(cache, target_protocol="ffr", target_options={"fo": pack}, cache_storage=str(tmp_path))
    with pytest.raises(UsageError, match=r"^big: blockcache shows zeros .* use filecache or simplecache$"):
        fs.open("big")
    with fsspec.filesystem("ffr", fo=pack).open("big", cache_type="none") as file:
        assert file.read() == BIG


@pytest.mark.parametrize("there", ["nothing", "a file", "a link", "a device"])
def test_a_copy_that_fails_removes_only_the_file_that_it_made(
    fs: Any, tmp_path: Path, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, other = tmp_path / "target", tmp_path / "other"
    if there == "a file":
        target.write_bytes(b"old")
    elif there == "a link":
        target.symlink_to(other)
    elif there == "a device":
        os.mknod(target, 0o600 | stat.S_IFCHR, os.makedev(1, 7))  # /dev/full

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(fs._shown.store, "copy_to", fail)
    with pytest.raises(OSError):
        fs.get_file("big", str(target))
    assert os.path.lexists(target) == (there in ("a link", "a device"))


def test_copies_on_the_local_disk(fs: Any, tmp_path: Path) -> None:
    fs.get("d", str(tmp_path / "out"), recursive=True)
    assert (tmp_path / "out/b.csv").read_text() == "x,y\n3,4\n" and (tmp_path / "out/e/none").read_bytes() == b""
    fs.get("soft", str(tmp_path / "one"))
    assert (tmp_path / "one").read_text() == "x,y\n3,4\n"
    fs.get(["a.csv", "big"], str(tmp_path / "two") + "/")
    assert (tmp_path / "two/big").read_bytes() == BIG


def test_other_methods_of_the_base_class(fs: Any) -> None:
    mapper = fs.get_mapper("d")
    assert sorted(mapper) == ["b.csv", "e/none", "hard.csv"] and mapper["b.csv"] == b"x,y\n3,4\n"
    assert mapper.getitems(["b.csv", "no"], on_error="omit") == {"b.csv": b"x,y\n3,4\n"}
    assert fs.du("d") == 16 and fs.sizes(["a.csv", "d/e/none"]) == [8, 0] and fs.size("big") == len(BIG)
    assert fs.read_text("a.csv") == "x,y\n1,2\n" and "b.csv" in fs.tree("", recursion_limit=3)
    assert fs.unstrip_protocol("a.csv") == "ffr://a.csv" and fs.info(Path("d")) == fs.info("d")


def test_changes_are_refused(fs: Any, tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(b"x")
    for change in (
        lambda: fs.open("new", "wb"),
        lambda: fs.pipe_file("new", b""),
        lambda: fs.mkdir("new"),
        lambda: fs.makedirs("new"),
        lambda: fs.rm("a.csv"),
        lambda: fs.mv("a.csv", "b.csv"),
        lambda: fs.copy("a.csv", "b.csv"),
        lambda: fs.touch("a.csv"),
        lambda: fs.put(str(tmp_path / "local"), "new"),
    ):
        with pytest.raises(OSError, match="Read-only file system"):
            change()
    assert fs.cat_file("a.csv") == b"x,y\n1,2\n"


# ---------------------------------------------------------------- other sources


def test_records_of_other_files_and_unions(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "r.ffr").write_bytes(record_file([b"zero", b"one"]))
    fs = fsspec.filesystem("ffr", fo=str(tmp_path / "r.ffr"), suffix=".txt")
    assert fs.cat("*.txt") == {"000000.txt": b"zero", "000001.txt": b"one"}
    (tmp_path / "parts").mkdir()
    for name in ("d", "empty"):
        fffs.pack_folder(folder / name, tmp_path / "parts" / f"{name}.ffr")
    union = fsspec.filesystem("ffr", fo=str(tmp_path / "parts"))
    assert union.find("") == ["b.csv", "e/none", "hard.csv"]
    both = fsspec.filesystem("ffr", fo=[str(tmp_path / "parts/d.ffr"), str(tmp_path / "parts/empty.ffr")])
    assert both.find("") == union.find("")


def test_a_pack_in_a_pack(tmp_path: Path, pack: str) -> None:
    (tmp_path / "outer").mkdir()
    shutil.copy(pack, tmp_path / "outer/inner.ffr")
    fffs.pack_folder(tmp_path / "outer", tmp_path / "outer.ffr")
    with fsspec.open(f"ffr://d/b.csv::ffr://inner.ffr::{tmp_path / 'outer.ffr'}") as file:
        assert file.read() == b"x,y\n3,4\n"


def test_sources_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "no.ffr").write_bytes(b"x" * 100)
    for source, error in (("none.ffr", SourceNotFoundError), ("no.ffr", FormatError)):
        with pytest.raises(error, match=source):
            fsspec.filesystem("ffr", fo=str(tmp_path / source))
    with pytest.raises(UsageError):
        fsspec.filesystem("ffr", fo=str(tmp_path / "no.ffr"), format="nonsense")
    with pytest.raises(UsageError, match="the name of a source is empty"):
        fsspec.filesystem("ffr")


# ---------------------------------------------------------------- sources that change


def _pack(folder: Path, name: str, content: bytes) -> str:
    source = folder / f"src-{content.decode()}"
    source.mkdir()
    (source / "f").write_bytes(content)
    fffs.pack_folder(source, folder / f"{content.decode()}.ffr")
    os.replace(folder / f"{content.decode()}.ffr", folder / name)
    return str(folder / name)


def test_a_replaced_source_is_seen_by_new_instances_and_not_by_old_ones(tmp_path: Path) -> None:
    path = _pack(tmp_path, "p.ffr", b"old")
    old = fsspec.filesystem("ffr", fo=path)
    key = old.ukey("f")
    assert fsspec.filesystem("ffr", fo=path)._shown is old._shown
    _pack(tmp_path, "p.ffr", b"new")
    new = fsspec.filesystem("ffr", fo=path)
    assert (old.cat_file("f"), new.cat_file("f")) == (b"old", b"new")
    assert new.ukey("f") != key == old.ukey("f")
    assert new.info("f")["ETag"] != old.info("f")["ETag"]
    assert new.checksum("f") != old.checksum("f")
    old.invalidate_cache()
    assert old.cat_file("f") == b"new"


def test_an_object_without_an_etag_is_told_from_another_by_its_time(server: ObjectServer, tmp_path: Path) -> None:
    """Both have one size. A time that goes back is another one, too."""
    time = "Tue, 24 Nov 2026 00:00:00 GMT"

    def tell(request: Any, answer: Any) -> None:
        answer.headers.pop("ETag", None)
        answer.headers["Last-Modified"] = time
        if request.headers.get("If-Unmodified-Since", time) != time:
            answer.status, answer.body, answer.headers = 412, b"", {"Content-Length": "0"}

    server.always = tell
    url = server.put("p.ffr", Path(_pack(tmp_path, "p.ffr", b"old")).read_bytes())
    old = fsspec.filesystem("ffr", fo=url)
    assert old.cat_file("f") == b"old"
    assert fsspec.filesystem("ffr", fo=url)._shown is old._shown
    server.put("p.ffr", Path(_pack(tmp_path, "q.ffr", b"new")).read_bytes())
    time = "Mon, 23 Nov 2026 00:00:00 GMT"
    assert fsspec.filesystem("ffr", fo=url, skip_instance_cache=True).cat_file("f") == b"new"
    with pytest.raises(SourceChangedError):
        old._shown.store.read_range(0, 0, 1)
    old.invalidate_cache()
    assert old.cat_file("f") == b"new"


def test_an_object_at_another_server_is_another_source(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one of the same size and ETag, as of servers that make it of these."""
    clear_environment(monkeypatch, tmp_path)
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    monkeypatch.setattr(object_server, "etag_of", lambda _: '"64d2-1f40"')
    with serving() as second:
        for at, content in ((server, b"one"), (second, b"two")):
            at.put("b/p.ffr", Path(_pack(tmp_path, "p.ffr", content)).read_bytes())
            monkeypatch.setenv("AWS_ENDPOINT_URL", at.url)
            shown = fsspec.filesystem("ffr", fo="s3://b/p.ffr", skip_instance_cache=True)
            assert shown.cat_file("f") == content


def test_a_source_that_was_overwritten_with_its_times_set_back_is_seen_by_new_instances(tmp_path: Path) -> None:
    path, other = Path(_pack(tmp_path, "p.ffr", b"old")), Path(_pack(tmp_path, "q.ffr", b"new"))
    old, times = fsspec.filesystem("ffr", fo=str(path)), path.stat()
    assert times.st_size == other.stat().st_size
    with open(path, "r+b") as file:
        file.write(other.read_bytes())
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert fsspec.filesystem("ffr", fo=str(path)).cat_file("f") == b"new"
    with pytest.raises(ChecksumError):
        old.cat_file("f")


def test_a_new_part_of_a_folder_is_seen_by_new_instances(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    _pack(tmp_path, "parts/a.ffr", b"one")
    assert fsspec.filesystem("ffr", fo=str(tmp_path / "parts")).cat_file("f") == b"one"
    _pack(tmp_path, "parts/0.ffr", b"two")
    assert fsspec.filesystem("ffr", fo=str(tmp_path / "parts")).cat_file("f") == b"two"


def test_pickles_open_the_same_source_from_any_folder(fs: Any, pack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(pack).parent)
    data = pickle.dumps(fsspec.filesystem("ffr", fo="p.ffr"))
    opened = pickle.dumps(fsspec.open("ffr://a.csv::p.ffr"))
    monkeypatch.chdir("/")
    assert pickle.loads(data).cat_file("a.csv") == b"x,y\n1,2\n"
    with pickle.loads(opened) as file:
        assert file.read() == b"x,y\n1,2\n"
    assert pickle.loads(data)._shown is fs._shown


def test_pickles_refuse_a_source_that_was_replaced(tmp_path: Path) -> None:
    path = _pack(tmp_path, "p.ffr", b"old")
    data = pickle.dumps(fsspec.filesystem("ffr", fo=path))
    _pack(tmp_path, "p.ffr", b"new")
    with pytest.raises(SourceChangedError):
        pickle.loads(data)
    assert fsspec.filesystem("ffr", fo=path).cat_file("f") == b"new"


def test_closing(pack: str, tmp_path: Path) -> None:
    own = shutil.copy(pack, tmp_path / "own.ffr")
    fs, other = fsspec.filesystem("ffr", fo=str(own)), fsspec.filesystem("ffr", fo=str(own))
    assert _is_open(own)
    fs.close()
    with pytest.raises(ClosedError, match=r"own\.ffr"):
        fs.cat_file("a.csv")
    assert other.cat_file("a.csv") == b"x,y\n1,2\n"
    other.close()
    assert not _is_open(own)


def _is_open(path: Any) -> bool:
    return str(path) in [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]


# ---------------------------------------------------------------- threads and processes


def test_threads_at_once(fs: Any) -> None:
    failed: list[Any] = []

    def read() -> None:
        try:
            for _ in range(50):
                assert fs.cat(["a.csv", "d/b.csv"])["a.csv"] == b"x,y\n1,2\n"
                assert fs.open("big").read() == BIG
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


@pytest.mark.parametrize("before", [False, True])
def test_a_child_of_fork_reads(pack: str, before: bool) -> None:
    fs = fsspec.filesystem("ffr", fo=pack)
    if before:
        fs.cat(["a.csv", "big"])
        file = fs.open("big")
        file.read(10)
    child = os.fork()
    if child == 0:
        good = fs.cat(["a.csv", "big"])["big"] == BIG
        good = good and fsspec.filesystem("ffr", fo=pack).cat_file("a.csv") == b"x,y\n1,2\n"
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert fs.cat_file("big") == BIG


def _size(fs: Any, path: str) -> int:
    return len(fs.cat_file(path))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers(pack: str, method: str) -> None:
    fs = fsspec.filesystem("ffr", fo=pack)
    fs.cat_file("a.csv")
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.starmap(_size, [(fs, "a.csv"), (fs, "big")] * 4) == [8, len(BIG)] * 4


# ---------------------------------------------------------------- libraries


def test_pandas_reads_by_url(pack: str) -> None:
    assert pandas.read_csv(f"ffr://d/b.csv::{pack}").to_dict("list") == {"x": [3], "y": [4]}
    files = fsspec.open_files(f"ffr://**/*.csv::{pack}", "rt")
    frames = []
    for file in files:
        with file as opened:
            frames.append(pandas.read_csv(opened))
    assert list(pandas.concat(frames)["x"]) == [1, 3, 1]


def test_pyarrow_reads_a_data_set_of_parquet_files(tmp_path: Path) -> None:
    for k in range(3):
        path = tmp_path / f"src/year={k}/part.parquet"
        path.parent.mkdir(parents=True)
        pyarrow.parquet.write_table(pyarrow.table({"n": list(range(k * 1000, (k + 1) * 1000))}), path)
    fffs.pack_folder(tmp_path / "src", tmp_path / "p.ffr")
    fs = fsspec.filesystem("ffr", fo=str(tmp_path / "p.ffr"))
    handler = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fs))
    found = pyarrow.dataset.dataset("", filesystem=handler, format="parquet", partitioning="hive")
    assert found.count_rows() == 3000
    assert found.to_table(filter=pyarrow.dataset.field("year") == 2)["n"].to_pylist() == list(range(2000, 3000))
    assert len(pandas.read_parquet(f"ffr://year=1/part.parquet::{tmp_path / 'p.ffr'}")) == 1000
