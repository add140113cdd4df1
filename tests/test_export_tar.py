"""Packs and records become tar archives, and shards that WebDataset reads."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import MIB, contents, small_disk, stretched
from inside import AtomicFile, ExportEntry, header_of
from test_cli import run
from test_convert import flip, left_in, records_of, when_reread, write_ffr
from webdataset import tariterators

import fffs
from fffs.errors import RecordError, UnsupportedError, UsageError, WriteError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of samples whose names sort badly, and of everything else that a pack keeps."""
    root = tmp_path / "folder"
    for place in ("a", "a.d", "empty", "deep/er"):
        (root / place).mkdir(parents=True)
    for k in range(4):
        for name in (f"a.{k}", f"a-{k}.x", f"a/s{k:02}.cls", f"a/s{k:02}.seg.png", f"a.d/t{k}.jpg", f"deep/er/{k}.txt"):
            (root / name).write_bytes(stretched(300 * k, k) + name.encode())
    (root / "large.bin").write_bytes(stretched(5 * MIB + 7))
    (root / "README").write_bytes(b"")
    (root / ("long" * 50 + ".txt")).write_bytes(b"long")
    (root / os.fsdecode(b"not-utf8-\xff.bin")).write_bytes(b"odd")
    os.symlink("a/s00.cls", root / "link")
    os.link(root / "a/s01.cls", root / "deep/other.cls")
    os.utime(root / "README", ns=(0, -1_500_000_001))
    os.utime(root / "a/s02.cls", ns=(0, 1_700_000_000_000_000_000))
    os.chmod(root / "a/s03.cls", 0o4640)
    return root


def pack(folder: Path) -> Path:
    target = folder.with_suffix(".ffr")
    fffs.pack_folder(folder, target)
    return target


def members(path: Path) -> dict[bytes, bytes | None]:
    """Return the files of an archive as Python reads them, links followed, and other members."""
    with tarfile.open(path, encoding="utf-8", errors="surrogateescape") as archive:
        found: dict[bytes, bytes | None] = {}
        for member in archive:
            data = archive.extractfile(member) if member.isfile() or member.islnk() else None
            found[os.fsencode(member.name)] = data.read() if data else None
        return found


def samples_of(shards: list[Path]) -> Iterator[dict[str, Any]]:
    """Yield the samples that WebDataset reads. WebDataset itself would not close the files."""
    for path in shards:
        with path.open("rb") as stream:
            files = tariterators.tar_file_expander([{"url": str(path), "stream": stream}])
            yield from tariterators.group_by_keys(files, lcase=False)


def silent(line: str) -> None:
    assert "links, which tar keeps" in line


def test_a_pack_becomes_a_tar_and_the_same_pack_again(folder: Path, tmp_path: Path) -> None:
    source = pack(folder)
    done = fffs.convert(source, tmp_path / "x.tar", verify=True, warn=silent)
    assert done[:2] == ("ffrecord", "tar")
    assert done.items == sum(path.is_file() and not path.is_symlink() for path in folder.rglob("*"))
    fffs.convert(tmp_path / "x.tar", tmp_path / "back.ffr", verify=True)
    assert (tmp_path / "back.ffr").read_bytes() == source.read_bytes()


def test_names_of_one_symbolic_link_stay_together(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    os.symlink("x" * 200, tmp_path / "f/a")
    os.link(tmp_path / "f/a", tmp_path / "f/b", follow_symlinks=False)
    fffs.convert(pack(tmp_path / "f"), tmp_path / "x.tar", verify=True, warn=silent)
    fffs.convert(tmp_path / "x.tar", tmp_path / "again.ffr")
    assert (tmp_path / "again.ffr").read_bytes() == (tmp_path / "f.ffr").read_bytes()
    subprocess.run(["tar", "-xf", tmp_path / "x.tar", "-C", tmp_path], check=True)
    assert (tmp_path / "a").lstat().st_ino == (tmp_path / "b").lstat().st_ino


def test_other_programs_read_the_tar(folder: Path, tmp_path: Path) -> None:
    fffs.convert(pack(folder), tmp_path / "x.tar", warn=silent)
    expected = contents(folder)
    found = members(tmp_path / "x.tar")
    assert found.pop(b".") is None
    assert found.keys() == expected.keys() - {b""}
    assert all(found[name] == data for name, data in expected.items() if data is not None and name != b"link")
    (tmp_path / "unpacked").mkdir()
    subprocess.run(["tar", "-xpf", tmp_path / "x.tar", "-C", tmp_path / "unpacked"], check=True)
    assert contents(tmp_path / "unpacked") == expected
    assert (tmp_path / "unpacked/README").stat().st_mtime_ns == -1_500_000_001


def test_a_set_of_packs_becomes_one_tar(folder: Path, tmp_path: Path) -> None:
    fffs.pack_folder(folder, tmp_path / "set", parts=3)
    fffs.convert(tmp_path / "set", tmp_path / "x.tar", warn=silent)
    fffs.convert(pack(folder), tmp_path / "y.tar", warn=silent)
    assert members(tmp_path / "x.tar") == members(tmp_path / "y.tar")


@pytest.mark.parametrize("options", [{"part_size": 4000}, {"parts": 5}, {"parts": 1000}])
def test_webdataset_reads_whole_samples_from_shards(folder: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    done = fffs.convert(pack(folder), tmp_path / "shards", to="tar", verify=True, warn=silent, **options)
    names = left_in(tmp_path / "shards")
    assert names == [f"shards-{k:06}.tar" for k in range(done.parts)]
    found: dict[str, dict[str, bytes]] = {}
    for name in names:
        sizes = [len(data or b"") for data in members(tmp_path / "shards" / name).values()]
        assert sum(sizes) <= options.get("part_size", 10 * MIB) or len(sizes) == 1
    for sample in samples_of([tmp_path / "shards" / name for name in names]):
        key = sample.pop("__key__")
        assert key not in found, key
        found[key] = {name: data for name, data in sample.items() if not name.startswith("__")}
    expected: dict[str, dict[str, bytes]] = {}
    for path in folder.rglob("*.*"):
        if path.is_file() and not path.is_symlink() and (stem := path.name.partition(".")[0]):
            key = os.path.relpath(path.with_name(stem), folder)
            if not path.name.endswith("other.cls"):
                expected.setdefault(key, {})[path.name.partition(".")[2]] = path.read_bytes()
    found.pop("deep/other", None)  # a hard link, or a copy in its place
    assert found == expected


def test_a_hard_link_to_another_shard_is_a_copy(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    for name in ("a.x", "b.x", "c.x"):
        (tmp_path / "f" / name).write_bytes(stretched(5000, ord(name[0])))
    os.link(tmp_path / "f/a.x", tmp_path / "f/d.x")
    fffs.convert(pack(tmp_path / "f"), tmp_path / "shards", to="tar", part_size=6000, verify=True, warn=silent)
    first, last = (members(tmp_path / f"shards/shards-00000{k}.tar") for k in (0, 3))
    assert (first[b"a.x"], last) == (stretched(5000, ord("a")), {b"d.x": stretched(5000, ord("a"))})


def test_hard_links_that_would_fill_a_disk_are_refused_in_shards(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f/a.x").write_bytes(bytes(1000))
    for k in range(3):
        os.link(tmp_path / "f/a.x", tmp_path / f"f/b{k}.x")
    fffs.convert(pack(tmp_path / "f"), tmp_path / "x.tar", warn=silent)
    with pytest.raises(UnsupportedError, match=r"f\.ffr: its hard links would become copies"):
        fffs.convert(tmp_path / "f.ffr", tmp_path / "shards", to="tar", parts=2)
    assert left_in(tmp_path) == ["f", "f.ffr", "x.tar"]


@pytest.mark.parametrize("name", ["x.ffr", "x.tfrecord", "set"])
def test_records_get_numbers_as_names(tmp_path: Path, name: str) -> None:
    records = [b"", b"one", stretched(5 * MIB), b"last"]
    write_ffr(tmp_path / "source.ffr", records)
    fffs.convert(tmp_path / "source.ffr", tmp_path / name, to={"set": "granular"}.get(name))
    fffs.convert(tmp_path / name, tmp_path / "x.tar", key="jpg", verify=True)
    assert members(tmp_path / "x.tar") == {b"%06d.jpg" % k: record for k, record in enumerate(records)}
    fffs.convert(tmp_path / name, tmp_path / "shards", to="tar", part_size=2000, verify=True)
    assert [len(members(tmp_path / "shards" / part)) for part in left_in(tmp_path / "shards")] == [2, 1, 1]


def test_the_records_of_a_pack_on_request(folder: Path, tmp_path: Path) -> None:
    source = pack(folder)
    fffs.convert(source, tmp_path / "x.tar", from_="ffrecord")
    assert list(members(tmp_path / "x.tar").values()) == records_of(source)


@pytest.mark.parametrize("damaged", [600, 5000, -1])
def test_verify_finds_a_flipped_byte_before_the_tar_is_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: int
) -> None:
    source = write_ffr(tmp_path / "source.ffr", [stretched(1000, k) for k in range(6)])
    when_reread(monkeypatch, lambda file: flip(file.fd, damaged))
    with pytest.raises(RecordError, match=r"x\.tar: record \d differs"):
        fffs.convert(source, tmp_path / "x.tar", verify=True)
    assert left_in(tmp_path) == ["source.ffr"]


def test_verify_compares_every_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_ffr(tmp_path / "source.ffr", [stretched(1000, k) for k in range(6)])
    commit = AtomicFile.commit

    def damage(file: AtomicFile) -> None:
        if file.path.endswith("-000001.tar"):
            flip(file.fd, 700)
        commit(file)

    monkeypatch.setattr(AtomicFile, "commit", damage)
    with pytest.raises(RecordError, match=r"shards/shards-000001\.tar: record 0 differs"):
        fffs.convert(source, tmp_path / "shards", to="tar", parts=3, verify=True)
    assert left_in(tmp_path) == ["source.ffr"]


def test_what_is_there_is_replaced_only_with_force(tmp_path: Path) -> None:
    source = write_ffr(tmp_path / "source.ffr", [b"one"])
    (tmp_path / "x.tar").write_bytes(b"old")
    with pytest.raises(UsageError, match=r"x\.tar: already exists"):
        fffs.convert(source, tmp_path / "x.tar")
    fffs.convert(source, tmp_path / "x.tar", force=True)
    assert members(tmp_path / "x.tar") == {b"000000.data": b"one"}


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("folder", {}, "a folder can only become a packed folder"),
        ("x.tar", {}, "an archive can only become a packed folder"),
        ("x.tar", {"parts": 2}, "an archive can only become a packed folder"),
        ("x.ffr", {"align": True}, "--align is for packed folders only"),
        ("x.ffr", {"parts": 2, "executor": "processes:2"}, "written by one process only"),
        ("x.ffr", {"key": "a/b"}, "cannot be the ending of a file name"),
        ("x.ffr", {"key": ""}, "cannot be the ending of a file name"),
    ],
)
def test_what_cannot_become_a_tar_is_refused(
    tmp_path: Path, source: str, options: dict[str, Any], message: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(b"")
    write_ffr(tmp_path / "x.ffr", [b"one"])
    fffs.convert(tmp_path / "x.ffr", tmp_path / "x.tar")
    before = left_in(tmp_path)
    with pytest.raises(UsageError, match=message):
        fffs.convert(tmp_path / source, tmp_path / "y.tar", to="tar", **options)
    with pytest.raises(UsageError, match="written by one process only"):
        fffs.plan_convert(tmp_path / "x.ffr", tmp_path / "y", 2, to="tar")
    assert left_in(tmp_path) == before


def test_a_full_disk_and_damage_leave_nothing_behind(tmp_path: Path) -> None:
    source = write_ffr(tmp_path / "x.ffr", [stretched(MIB, k) for k in range(8)])
    with small_disk(tmp_path / "small", 4 * MIB) as disk:
        for name, options in (("x.tar", {}), ("shards", {"to": "tar", "part_size": MIB})):
            with pytest.raises(WriteError, match=f"^{disk}/{name}"):
                fffs.convert(source, disk / name, **options)
            assert left_in(disk) == []
    data = bytearray(source.read_bytes())
    data[-5] ^= 1
    source.write_bytes(data)
    with pytest.raises(RecordError, match=r"x\.ffr: record 7"):
        fffs.convert(source, tmp_path / "x.tar")
    assert left_in(tmp_path) == ["small", "x.ffr"]


def test_the_command_counts_files(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f/a.x").write_bytes(b"abc")
    done = run("convert", pack(tmp_path / "f"), tmp_path / "s", "--to", "tar", "--parts", "3")
    assert (done.code, done.err) == (0, "")
    assert b"s: 1 file in 1 part, 3 B in" in done.out


def test_an_archive_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    fffs.convert(pack(tmp_path / "f"), tmp_path / "x.tar", verify=True)
    assert members(tmp_path / "x.tar") == {b".": None}
    write_ffr(tmp_path / "none.ffr", [])
    fffs.convert(tmp_path / "none.ffr", tmp_path / "y.tar", verify=True)
    assert members(tmp_path / "y.tar") == {}


@pytest.mark.parametrize(
    "entry",
    [
        {"path": b"short"},
        {"path": b"n" * 100},
        {"path": b"n" * 101},
        {"path": b"d/" * 60 + b"name"},
        {"path": "größe".encode()},
        {"path": b"\xff\xfe" * 70},
        {"path": b"x" * 90, "size": 8**11 - 1},
        {"path": b"x", "size": 8**11},
        {"path": b"x", "mtime": 1},
        {"path": b"x", "mtime": -1},
        {"path": b"x", "mtime": 10**9 * 8**11},
        {"path": b"x", "mode": stat.S_IFREG | 0o7777},
        {"path": b"x", "mode": stat.S_IFLNK | 0o777, "target": b"t" * 300, "size": 0},
        {"path": b"folder", "mode": stat.S_IFDIR | 0o755, "size": 0},
    ],
)
def test_tarfile_reads_what_the_headers_say(entry: dict[str, Any]) -> None:
    given = ExportEntry(**({"mode": stat.S_IFREG | 0o644, "size": 7, "mtime": 10**18, "node": 1} | entry))
    data = io.BytesIO(header_of(given))
    with tarfile.open(fileobj=data, encoding="utf-8", errors="surrogateescape") as archive:
        member = archive.next()
    assert member is not None
    assert os.fsencode(member.name) == given.path
    assert (member.size, member.mode, member.linkname.encode()) == (given.size, given.mode & 0o7777, given.target)
    assert member.mtime == pytest.approx(given.mtime / 10**9, abs=1e-6)
    assert (member.isfile(), member.isdir(), member.issym()) == tuple(
        stat.S_IFMT(given.mode) == kind for kind in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
    )
