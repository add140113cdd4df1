"""Packing: nothing is lost, the same folder gives the same bytes, and failures leave nothing behind."""

from __future__ import annotations

import errno
import fcntl
import itertools
import logging
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import unicodedata
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import (
    MIB,
    Pack,
    Snapshot,
    as_nobody,
    differences,
    once,
    small_disk,
    snapshot,
    split_records,
    stretched,
    unpickle,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import TreeView, leftovers, lib, load_source, remove_content, temporary_files

import fffs
from fffs.errors import (
    ChecksumError,
    ReadError,
    SourceChangedError,
    SourceNotFoundError,
    UnsupportedError,
    UsageError,
    WriteError,
)

# For hundreds of small trees, because a disk would need most of the time for syncing.
FAST = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def tree_snapshot(source: TreeView) -> Snapshot:
    """Return what ``builders.snapshot`` returns, from the tree and the records of a source."""
    tree = source.tree
    entries = [(b"", 0), *tree.walk()]
    names: dict[int, list[bytes]] = {}
    for path, node in entries:
        names.setdefault(node, []).append(path)
    result: Snapshot = {}
    for path, node in entries:
        content: bytes | None = None
        if tree.is_symlink(node):
            content = tree.target(node)
        elif tree.is_file(node):
            content = source.store.read_one(tree.record(node)).tobytes()
            assert len(names[node]) == tree.nlink[node]
        result[path] = (oct(tree.mode[node]), int(tree.mtime[node]), content, tuple(sorted(names[node])))
    return result


def assert_lossless(folder: Path | bytes, room: Path) -> None:
    """Pack a folder; its tree, and the unpacked folder, must equal it."""
    pack, copy = room / "pack.ffr", room / "copy"
    warnings: list[str] = []
    fffs.pack_folder(folder, pack, warn=warnings.append)
    expected = snapshot(folder)
    with load_source([pack]) as source:
        assert differences(tree_snapshot(source), expected) == {}
        fffs.unpack(source, copy, special_bits=True, warn=warnings.append)
    assert differences(snapshot(copy), expected) == {}
    assert warnings == []


def test_a_range_of_a_large_file_costs_its_blocks_alone(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    data = stretched(5 * MIB)
    (tmp_path / "f" / "large").write_bytes(data)
    fffs.pack_folder(tmp_path / "f", tmp_path / "p.ffr")
    packed = bytearray((tmp_path / "p.ffr").read_bytes())
    packed[packed.index(data[:4096]) + 2 * MIB + 5] ^= 1
    (tmp_path / "p.ffr").write_bytes(packed)
    with fffs.PackedFolder(tmp_path / "p.ffr") as folder:
        assert folder.read_range("large", 100, 2 * MIB).tobytes() == data[100 : 2 * MIB]
        assert folder.read_range("large", 3 * MIB, 9 * MIB).tobytes() == data[3 * MIB :]
        assert folder.read_range("large", 7, 7).tobytes() == b""
        with pytest.raises(ChecksumError):
            folder.read_range("large", 2 * MIB, 2 * MIB + 1)
    with fffs.FileReader(tmp_path / "p.ffr") as reader, pytest.raises(ChecksumError):
        reader.read_range(0, 0, 1)  # a FileReader knows only records


# ---------------------------------------------------------------- nothing is lost


def modes(folder: Path) -> None:
    for mode in (0o000, 0o400, 0o644, 0o777, 0o4755, 0o2755, 0o1644, 0o7777):
        (folder / f"file-{mode:o}").write_bytes(b"x")
        (folder / f"file-{mode:o}").chmod(mode)
        (folder / f"folder-{mode:o}").mkdir()
        (folder / f"folder-{mode:o}" / "inside").touch()
        (folder / f"folder-{mode:o}").chmod(mode)
    folder.chmod(0o3750)


TIMES = {
    "nanosecond": 1_700_000_000_123_456_789,
    "epoch": 0,
    "just-before-1970": -1,
    "1969": -31_536_000_000_000_001,
    "1902": -(2**31) * 10**9 + 7,
    "2106": 2**32 * 10**9 + 999_999_999,
    "2250": 8_835_000_000_000_000_001,
}


def times(folder: Path) -> None:
    for name, mtime in TIMES.items():
        (folder / f"folder-{name}").mkdir()
        (folder / f"folder-{name}" / "file").touch()
        (folder / f"folder-{name}" / "link").symlink_to("file")
        for path in ("file", "link", "."):
            os.utime(folder / f"folder-{name}" / path, ns=(mtime, mtime), follow_symlinks=False)
    os.utime(folder, ns=(5, 5))


def symlinks(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "file").write_bytes(b"content")
    for name, target in {
        "relative": "sub/file",
        "absolute": "/etc/hostname",
        "dangling": "nowhere/at/all",
        "to-folder": "sub",
        "to-parent": "..",
        "to-itself": "to-itself",
        "loop-a": "loop-b",
        "loop-b": "loop-a",
        "odd": "  //sub/./../\n\t*",
        "long": "x/" * 2047 + "y",
    }.items():
        (folder / name).symlink_to(target)
    (folder / "sub" / "up").symlink_to("../sub/file")
    os.symlink(b"\xff\xfe", os.fsencode(folder / "bytes"))


def hard_links(folder: Path) -> None:
    for name in ("a", "b/c", "d"):
        (folder / name).mkdir(parents=True)
    (folder / "a" / "one").write_bytes(b"shared")
    (folder / "b" / "c" / "two").hardlink_to(folder / "a" / "one")
    (folder / "zero").hardlink_to(folder / "a" / "one")
    (folder / "a" / "empty").touch()
    (folder / "d" / "empty").hardlink_to(folder / "a" / "empty")
    (folder / "d" / "link").symlink_to("../a/one")
    os.link(folder / "d" / "link", folder / "a" / "link", follow_symlinks=False)
    (folder / "same-bytes").write_bytes(b"shared")


def hard_link_from_outside(folder: Path) -> None:
    (folder.parent / "outside").write_bytes(b"outside")
    (folder / "inside").hardlink_to(folder.parent / "outside")


def empty_folders(folder: Path) -> None:
    (folder / "a" / "b" / "c").mkdir(parents=True)
    (folder / "z").mkdir()


def nothing(folder: Path) -> None:
    """Pack an empty folder."""


def byte_names(folder: Path) -> None:
    root = os.fsencode(folder)
    for byte in set(range(1, 256)) - {ord("/"), ord(".")}:
        os.close(os.open(os.path.join(root, bytes([byte])), os.O_CREAT))
    # Encoded surrogates, an overlong '/', an incomplete sequence.
    for name in (b"\xed\xb2\x80", b"\xed\xa0\x80", b"\xc0\xaf", b"caf\xe9", b"\xf0\x9f\x98"):
        os.mkdir(os.path.join(root, name))
        os.symlink(b"caf\xe9", os.path.join(root, name, name))


def odd_names(folder: Path) -> None:
    for name in (
        "new\nline",
        "-rf",
        " ",
        "...",
        ".hidden",
        "\\",
        "a\\b",
        "*",
        "\x1b[31m",
        "$(id)",
        '"',
        "é",
        "😀",
        "a" * 255,
    ):
        (folder / name).write_bytes(name.encode())
    (folder / ("d" * 255)).mkdir()
    (folder / ("d" * 255) / ("é" * 127)).touch()


def normal_forms(folder: Path) -> None:
    for form in ("NFC", "NFD"):
        (folder / unicodedata.normalize(form, "Ångström")).write_bytes(form.encode())


def sorting(folder: Path) -> None:
    """Make names whose orders by bytes, by code points and as paths differ."""
    for name in ("a", "a-b", "a.b", "aa", "A", "\uffff", "\U00010000"):
        (folder / name).mkdir()
        (folder / name / "x").write_bytes(name.encode())
    (folder / "a!").write_bytes(b"a!")
    os.mkdir(os.path.join(os.fsencode(folder), b"\xff"))


def many_files(folder: Path) -> None:
    for i in range(1000):
        if i % 100 == 0:
            (folder / f"{i // 100}").mkdir()
        (folder / f"{i // 100}" / f"{i}").write_bytes(b"%d" % i)


def deep(folder: Path) -> None:
    path = folder.joinpath(*["d"] * 500)
    path.mkdir(parents=True)
    (path / "file").write_bytes(b"deep")


def block_sizes(folder: Path) -> None:
    for size in (0, 1, MIB - 1, MIB, MIB + 1, 2 * MIB, 3 * MIB + 5, 17 * MIB + 1):
        (folder / f"{size}").write_bytes(stretched(size))


def sparse(folder: Path) -> None:
    with (folder / "sparse").open("wb") as file:
        file.write(b"begin")
        file.seek(40 * MIB + 3)
        file.write(b"end")
    with (folder / "hole").open("wb") as file:
        file.truncate(2 * MIB)


@pytest.mark.parametrize(
    "make",
    [
        modes,
        times,
        symlinks,
        hard_links,
        hard_link_from_outside,
        empty_folders,
        nothing,
        byte_names,
        odd_names,
        normal_forms,
        sorting,
        many_files,
        deep,
        block_sizes,
        sparse,
    ],
)
def test_comes_back_exactly(tmp_path: Path, make: Callable[[Path], None]) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    make(folder)
    assert_lossless(folder, tmp_path)


def test_a_time_beyond_the_year_2262_is_packed_as_the_latest_there_is_with_a_warning() -> None:
    with tempfile.TemporaryDirectory(dir=FAST) as room:
        folder = Path(room, "folder")
        folder.mkdir()
        (folder / "far").touch()
        later = 2**33 * 10**9 * 2
        os.utime(folder / "far", ns=(later, later))
        if (folder / "far").stat().st_mtime_ns != later:
            pytest.skip("this file system cannot keep such a time")
        warnings: list[str] = []
        fffs.pack_folder(folder, f"{room}/pack.ffr", warn=warnings.append)
        assert [str(folder / "far") in line and "2262" in line for line in warnings] == [True]
        with load_source([f"{room}/pack.ffr"]) as source:
            assert source.tree.mtime[source.tree.find(b"far")] == 2**63 - 1


def test_a_hard_linked_file_is_one_record(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    hard_links(tmp_path / "folder")
    summary = fffs.pack_folder(tmp_path / "folder", tmp_path / "pack.ffr")
    assert summary.files == 3
    assert Pack.parse((tmp_path / "pack.ffr").read_bytes()).records == [b"", b"shared", b"shared"]


def test_records_are_the_files_depth_first_by_the_bytes_of_their_names(tmp_path: Path) -> None:
    for name in ("b/z", "b/a/x", "a", "c", "B"):
        (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / name).write_text(name)
    fffs.pack_folder(tmp_path / "folder", tmp_path / "pack.ffr")
    assert Pack.parse((tmp_path / "pack.ffr").read_bytes()).records == [b"B", b"a", b"b/a/x", b"b/z", b"c"]


def test_large_records_have_the_crc_of_each_block_and_others_have_none(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    block_sizes(tmp_path / "folder")
    fffs.pack_folder(tmp_path / "folder", tmp_path / "pack.ffr")
    pack = Pack.parse((tmp_path / "pack.ffr").read_bytes())
    assert pack.trailer
    arrays = pack.trailer.arrays
    large = [i for i, record in enumerate(pack.records) if len(record) > MIB]
    blocks = [
        [record[at : at + MIB] for at in range(0, len(record), MIB)] for record in map(pack.records.__getitem__, large)
    ]
    assert arrays["big_records"].tolist() == large
    assert arrays["big_first_blocks"].tolist() == np.cumsum([0, *map(len, blocks)]).tolist()
    assert arrays["block_checksums"].tolist() == [zlib.crc32(block) for record in blocks for block in record]


# ---------------------------------------------------------------- the same folder, the same bytes


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A folder with all kinds of nodes, and the bytes of its pack."""
    room = tmp_path_factory.mktemp("reference")
    folder = room / "folder"
    for make in (many_files, symlinks, hard_links, byte_names, times):
        (folder / make.__name__).mkdir(parents=True)
        make(folder / make.__name__)
    (folder / "large").write_bytes(stretched(5 * MIB + 1))
    fffs.pack_folder(folder, room / "pack.ffr")
    return folder, (room / "pack.ffr").read_bytes()


@pytest.mark.parametrize("jobs", [1, 2, 7])
def test_any_number_of_jobs_gives_the_same_bytes(tmp_path: Path, reference: tuple[Path, bytes], jobs: int) -> None:
    fffs.pack_folder(reference[0], tmp_path / "pack.ffr", jobs=jobs)
    assert (tmp_path / "pack.ffr").read_bytes() == reference[1]


@pytest.mark.parametrize("name", ["folder", "./folder/", "../{parent}/folder//.", b"folder", b"folder/"])
def test_any_way_to_name_the_folder_gives_the_same_bytes(
    tmp_path: Path, reference: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch, name: str | bytes
) -> None:
    monkeypatch.chdir(reference[0].parent)
    folder = name.format(parent=reference[0].parent.name) if isinstance(name, str) else name
    fffs.pack_folder(folder, tmp_path / "pack.ffr")
    assert (tmp_path / "pack.ffr").read_bytes() == reference[1]


def test_what_was_unpacked_packs_to_the_same_bytes(tmp_path: Path, reference: tuple[Path, bytes]) -> None:
    (tmp_path / "pack.ffr").write_bytes(reference[1])
    fffs.unpack(tmp_path / "pack.ffr", tmp_path / "copy")
    fffs.pack_folder(tmp_path / "copy", tmp_path / "again.ffr")
    assert (tmp_path / "again.ffr").read_bytes() == reference[1]


def test_a_folder_given_as_a_symbolic_link_is_the_folder(tmp_path: Path, reference: tuple[Path, bytes]) -> None:
    (tmp_path / "link").symlink_to(reference[0])
    fffs.pack_folder(tmp_path / "link", tmp_path / "pack.ffr")
    assert (tmp_path / "pack.ffr").read_bytes() == reference[1]


# ---------------------------------------------------------------- output inside the folder


def names_in(pack: Path) -> list[str]:
    with fffs.PackedFolder(pack) as folder:
        return folder.list(recursive=True)


def test_an_output_inside_the_folder_is_not_packed_into_itself(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "sub").mkdir()
    for _ in range(2):  # the second time it replaces an older one
        fffs.pack_folder(tmp_path, tmp_path / "sub" / "pack.ffr")
        assert names_in(tmp_path / "sub" / "pack.ffr") == ["a", "sub"]


def test_an_output_inside_is_recognised_however_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder" / "sub").mkdir(parents=True)
    (tmp_path / "other").symlink_to("folder/sub")
    monkeypatch.chdir(tmp_path / "other")
    for _ in range(2):
        fffs.pack_folder("..", "pack.ffr")
        assert names_in(tmp_path / "folder" / "sub" / "pack.ffr") == ["sub"]


def test_files_of_the_outputs_name_in_other_folders_are_packed(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "pack.ffr").write_bytes(b"another")
    fffs.pack_folder(tmp_path, tmp_path / "pack.ffr")
    assert names_in(tmp_path / "pack.ffr") == ["sub", "sub/pack.ffr"]


def test_other_names_of_an_older_output_are_packed(tmp_path: Path) -> None:
    (tmp_path / "pack.ffr").write_bytes(b"old")
    (tmp_path / "backup").hardlink_to(tmp_path / "pack.ffr")
    fffs.pack_folder(tmp_path, tmp_path / "pack.ffr")
    assert names_in(tmp_path / "pack.ffr") == ["backup"]


def test_what_an_output_that_is_a_link_points_to_is_packed_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old").write_bytes(b"old")
    (tmp_path / "folder" / "pack.ffr").symlink_to("old")
    fffs.pack_folder(tmp_path / "folder", tmp_path / "folder" / "pack.ffr")
    assert names_in(tmp_path / "folder" / "pack.ffr") == ["old"]
    assert (tmp_path / "folder" / "old").read_bytes() == b"old"
    assert not (tmp_path / "folder" / "pack.ffr").is_symlink()


# ---------------------------------------------------------------- what cannot be packed


def fifo(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("no device can be made here")


SPECIAL_FILES = {"FIFO": fifo, "socket": unix_socket, "device": device}


@pytest.mark.parametrize("kind", SPECIAL_FILES)
def test_special_files_are_left_out_with_a_warning_that_names_them(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    (folder / "file").write_bytes(b"x")
    SPECIAL_FILES[kind](folder / "odd")
    warnings: list[str] = []
    fffs.pack_folder(folder, tmp_path / "pack.ffr", warn=warnings.append)
    assert names_in(tmp_path / "pack.ffr") == ["file"]
    assert len(warnings) == 1
    assert str(folder / "odd") in warnings[0]
    assert kind in warnings[0]


def test_warnings_are_logged_unless_somebody_takes_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "folder" / "pipe")
    with caplog.at_level(logging.WARNING, "fffs.pack"):
        fffs.pack_folder(tmp_path / "folder", tmp_path / "pack.ffr")
    assert "pipe" in caplog.text


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_may_not_be_read_is_an_error_that_names_it(tmp_path: Path, what: str) -> None:
    (tmp_path / "folder").mkdir()
    secret = tmp_path / "folder" / "secret"
    secret.touch() if what == "file" else secret.mkdir()
    secret.chmod(0)
    os.chown(secret, 1, 1)
    with as_nobody(tmp_path), pytest.raises(ReadError, match="folder/secret: cannot read: Permission denied") as caught:
        fffs.pack_folder("folder", "pack.ffr")
    assert caught.value.errno == errno.EACCES
    assert os.listdir(tmp_path) == ["folder"]


def test_a_path_too_long_for_the_system_is_an_error_and_no_lost_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    for _ in range(20):
        os.mkdir("d" * 250)
        os.chdir("d" * 250)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnsupportedError, match="its path is longer than 4095 bytes"):
        fffs.pack_folder("folder", "pack.ffr")
    assert os.listdir(tmp_path) == ["folder"]


@pytest.mark.parametrize("name", ["nowhere", "file"])
def test_what_is_no_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises((SourceNotFoundError, UsageError), match=name):
        fffs.pack_folder(tmp_path / name, tmp_path / "pack.ffr")
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("name", ["pack", "pack.ffr.gz", "ffr", "sub/"])
def test_an_output_of_another_suffix_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"must end in \.ffr"):
        fffs.pack_folder(tmp_path, f"{tmp_path}/{name}")
    assert os.listdir(tmp_path) == []


def test_an_output_in_no_folder_is_an_error_before_anything_is_scanned(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match=r"nowhere/pack\.ffr"):
        fffs.pack_folder(tmp_path / "not-looked-at", tmp_path / "nowhere" / "pack.ffr")


# ---------------------------------------------------------------- files that change while they are packed


def replace(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def rewrite_without_a_trace_in_size(path: Path) -> None:
    path.write_bytes(b"X" * path.stat().st_size)


def replace_by_a_copy(path: Path) -> None:
    status = path.stat()
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(status.st_mtime_ns, status.st_mtime_ns))
    other.rename(path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "grows": append,
    "shrinks": lambda path: os.truncate(path, 3),
    "is emptied": lambda path: os.truncate(path, 0),
    "is rewritten": rewrite_without_a_trace_in_size,
    "is touched": lambda path: os.utime(path, ns=(1, 1)),
    "vanishes": lambda path: path.unlink(),
    "is replaced by a copy": replace_by_a_copy,
    "becomes a link": lambda path: replace(path, lambda p: p.symlink_to("a")),
    "becomes a link to itself": lambda path: replace(path, lambda p: p.symlink_to(p.name)),
    "becomes a FIFO": lambda path: replace(path, fifo),
    "becomes a socket": lambda path: replace(path, unix_socket),
    "becomes a folder": lambda path: replace(path, lambda p: p.mkdir()),
}


@pytest.fixture(params=[False, True], ids=["no-output-yet", "older-output"])
def room(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder ``f`` with files to pack, beside an older output or none; after the test it must be unchanged."""
    (tmp_path / "f" / "sub").mkdir(parents=True)
    (tmp_path / "f" / "a").write_bytes(b"first")
    (tmp_path / "f" / "sub" / "victim").write_bytes(b"the victim's bytes")
    if request.param:
        (tmp_path / "pack.ffr").write_bytes(b"older")
    return tmp_path


def assert_as_before(room: Path) -> None:
    older = room / "pack.ffr"
    assert sorted(os.listdir(room)) == ["f", "pack.ffr"][: 1 + older.exists()]
    assert not older.exists() or older.read_bytes() == b"older"


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_before_its_turn_is_named(room: Path, change: str) -> None:
    existed = (room / "pack.ffr").exists()
    action = once(lambda: CHANGES[change](room / "f" / "sub" / "victim"))
    with pytest.raises(SourceChangedError, match="f/sub/victim: changed"):
        fffs.pack_folder(room / "f", room / "pack.ffr", jobs=1, progress=action)
    assert (room / "pack.ffr").exists() == existed
    assert_as_before(room)


@pytest.mark.parametrize("change", ["grows", "shrinks", "is rewritten", "is rewritten and set back"])
def test_a_file_that_changes_while_it_is_copied_is_named(room: Path, change: str) -> None:
    victim = room / "f" / "sub" / "victim"
    os.truncate(victim, 20 * MIB)  # more than one piece, so that there is progress in the middle
    moments: list[int] = []

    def progress(done: int, _total: int) -> None:
        moments.append(done)
        if len(moments) == 2:
            assert 5 < done < 20 * MIB
            os.truncate(victim, 20 * MIB + 1) if change == "grows" else None
            os.truncate(victim, MIB) if change == "shrinks" else None
            before = victim.stat().st_mtime_ns
            with victim.open("r+b") as file:
                file.write(b"rewritten")
            if change == "is rewritten and set back":
                os.utime(victim, ns=(before, before))

    with pytest.raises(SourceChangedError, match="f/sub/victim: changed"):
        fffs.pack_folder(room / "f", room / "pack.ffr", jobs=1, progress=progress)
    assert len(moments) >= 2
    assert_as_before(room)


def test_a_file_that_changes_is_named_by_parallel_jobs_too(room: Path) -> None:
    for i in range(2000):
        (room / "f" / "sub" / f"{i}").write_bytes(b"x")
    os.mkfifo(room / "f" / "pipe")  # its warning comes when all files are listed, and none is read
    with pytest.raises(SourceChangedError, match="f/sub/victim: changed"):
        fffs.pack_folder(room / "f", room / "pack.ffr", jobs=4, warn=lambda _: append(room / "f" / "sub" / "victim"))
    assert_as_before(room)


def test_a_folder_that_becomes_a_file_is_named(room: Path) -> None:
    def change() -> None:
        (room / "f" / "sub" / "victim").unlink()
        (room / "f" / "sub").rmdir()
        (room / "f" / "sub").write_bytes(b"")

    with pytest.raises(SourceChangedError, match="f/sub/victim"):
        fffs.pack_folder(room / "f", room / "pack.ffr", jobs=1, progress=once(change))
    assert_as_before(room)


def test_a_folder_that_vanishes_after_it_was_listed_is_named(room: Path) -> None:
    os.mkfifo(room / "f" / "pipe")  # its warning comes when all folders are listed
    with pytest.raises(SourceChangedError, match="f/sub/victim: changed"):
        fffs.pack_folder(room / "f", room / "pack.ffr", warn=lambda _: shutil.rmtree(room / "f" / "sub"))
    assert_as_before(room)


def before_opening(monkeypatch: pytest.MonkeyPatch, wanted: bytes, action: Callable[[], object]) -> None:
    """Call ``action`` once, before a file of that name is opened."""
    original, todo = os.open, [action]

    def act_and_open(path: Any, *arguments: Any, **options: Any) -> int:
        if path == wanted and todo:
            todo.pop()()
        return original(path, *arguments, **options)

    monkeypatch.setattr(os, "open", act_and_open)


@pytest.mark.parametrize("becomes", ["nothing", "a file"])
def test_a_folder_that_vanishes_before_it_is_listed_is_named(
    room: Path, monkeypatch: pytest.MonkeyPatch, becomes: str
) -> None:
    def vanish() -> None:
        (room / "f" / "sub" / "victim").unlink()
        (room / "f" / "sub").rmdir()
        if becomes == "a file":
            (room / "f" / "sub").touch()

    before_opening(monkeypatch, b"sub", vanish)
    with pytest.raises(SourceChangedError, match="f/sub: vanished"):
        fffs.pack_folder(room / "f", room / "pack.ffr")
    assert_as_before(room)


# ---------------------------------------------------------------- folders replaced by links


def exchange(folder: Path, outside: Path) -> None:
    """Replace a folder by a symbolic link to another place."""
    folder.rename(folder.with_name("aside"))
    folder.symlink_to(outside)


def test_a_folder_exchanged_for_a_link_before_it_is_listed_is_not_followed(
    room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_opening(monkeypatch, b"sub", lambda: exchange(room / "f" / "sub", Path("/etc")))
    with pytest.raises(SourceChangedError, match="f/sub: vanished"):
        fffs.pack_folder(room / "f", room / "pack.ffr")
    assert_as_before(room)


def test_a_folder_exchanged_for_another_has_the_mode_of_the_one_that_was_listed(
    room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def another() -> None:
        (room / "f" / "sub").rename(room / "f" / "aside")
        (room / "f" / "sub").mkdir()
        (room / "f" / "sub" / "new").touch()
        (room / "f" / "sub").chmod(0o710)

    before_opening(monkeypatch, b"sub", another)
    fffs.pack_folder(room / "f", room / "pack.ffr")
    with load_source([room / "pack.ffr"]) as source:
        assert stat.S_IMODE(int(source.tree.mode[source.tree.find(b"sub")])) == 0o710
        source.tree.find(b"sub/new")


def test_a_folder_exchanged_for_a_link_before_its_files_are_copied_is_not_followed(room: Path) -> None:
    """This includes links to the same files, which are no longer in the folder."""

    def move_out() -> None:
        (room / "f" / "sub").rename(room / "elsewhere")
        (room / "f" / "sub").symlink_to(room / "elsewhere")

    with pytest.raises(SourceChangedError, match="f/sub/victim: changed"):
        fffs.pack_folder(room / "f", room / "pack.ffr", jobs=1, progress=once(move_out))


def test_a_file_exchanged_for_a_link_to_it_is_not_followed(room: Path) -> None:
    def move_out() -> None:
        (room / "f" / "sub" / "victim").rename(room / "elsewhere")
        (room / "f" / "sub" / "victim").symlink_to(room / "elsewhere")

    with pytest.raises(SourceChangedError, match="f/sub/victim: changed"):
        fffs.pack_folder(room / "f", room / "pack.ffr", jobs=1, progress=once(move_out))


def test_a_folder_that_is_renamed_as_a_whole_is_packed_as_it_was_opened(room: Path) -> None:
    def move() -> None:
        (room / "f").rename(room / "g")
        (room / "f").symlink_to("/etc")

    fffs.pack_folder(room / "f", room / "pack.ffr", jobs=1, progress=once(move))
    assert names_in(room / "pack.ffr") == ["a", "sub", "sub/victim"]


def test_nothing_from_outside_is_packed_while_an_adversary_exchanges_folders(tmp_path: Path) -> None:
    folder, outside = tmp_path / "f", tmp_path / "outside"
    for part in (folder / "sub", outside):
        part.mkdir(parents=True)
        for i in range(20):
            (part / f"{i}").write_bytes(b"secret" if part == outside else b"inside")
    ended = threading.Event()

    def adversary() -> None:
        while not ended.is_set():
            exchange(folder / "sub", outside)
            (folder / "sub").unlink()
            (folder / "aside").rename(folder / "sub")

    thread = threading.Thread(target=adversary)
    thread.start()
    outcomes = set()
    try:
        for _ in range(60):
            try:
                fffs.pack_folder(folder, tmp_path / "pack.ffr", jobs=1)
            except SourceChangedError:
                outcomes.add("refused")
                continue
            outcomes.add("packed")
            assert b"secret" not in (tmp_path / "pack.ffr").read_bytes()
    finally:
        ended.set()
        thread.join()
    assert outcomes


def test_a_folder_far_deeper_than_descriptors_reach_comes_back() -> None:
    """There are 1200 nested folders, each with a sibling, and the process may open 128 files."""
    code = """
        import os, resource, sys, fffs
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
        os.chdir("folder")
        for _ in range(1200):
            os.mkdir("d")
            os.mkdir("e")
            open("e/file", "w").close()
            os.chdir("d")
        os.chdir(sys.argv[1])
        fffs.pack_folder("folder", "pack.ffr", jobs=2)
        fffs.unpack("pack.ffr", "copy", jobs=2)
        fffs.pack_folder("copy", "again.ffr", jobs=2)
    """
    with tempfile.TemporaryDirectory(dir=FAST) as room:
        Path(room, "folder").mkdir()
        subprocess.run([sys.executable, "-c", textwrap.dedent(code), room], check=True, cwd=room)
        assert Path(room, "again.ffr").read_bytes() == Path(room, "pack.ffr").read_bytes()
        for name in ("folder", "copy"):  # nested too deeply for shutil
            fd = os.open(f"{room}/{name}", os.O_RDONLY)
            remove_content(fd)
            assert os.listdir(fd) == []
            os.close(fd)


def test_a_lack_of_memory_is_an_error_and_leaves_nothing(room: Path) -> None:
    for i in range(300):
        (room / "f" / f"{i}").write_bytes(b"x")
    for allocation in itertools.count(1):
        lib.fffs_fault_set(lib.FFFS_FAULT_MEMORY, allocation, 1, -errno.ENOMEM)
        try:
            fffs.pack_folder(room / "f", room / "pack.ffr", jobs=1)
            break
        except MemoryError:
            assert_as_before(room)
        finally:
            lib.fffs_fault_set(lib.FFFS_FAULT_NONE, 0, 0, 0)
    assert allocation > 6


def test_symbolic_links_with_several_names_and_long_targets_come_back(tmp_path: Path) -> None:
    """The targets are stored depth first, in the order of names, whatever order the folders were listed in."""
    (tmp_path / "f" / "a").mkdir(parents=True)
    (tmp_path / "f" / "z").symlink_to("t" * 4000)
    os.link(tmp_path / "f" / "z", tmp_path / "f" / "a" / "also z", follow_symlinks=False)
    (tmp_path / "f" / "b").symlink_to("second")
    (tmp_path / "f" / "a" / "first").symlink_to("x")
    os.mkfifo(tmp_path / "f" / "aa")  # what is left out in between moves nothing
    fffs.pack_folder(tmp_path / "f", tmp_path / "p.ffr", warn=lambda _: None)
    before = (tmp_path / "f").stat().st_mtime_ns
    (tmp_path / "f" / "aa").unlink()
    os.utime(tmp_path / "f", ns=(before, before))
    with load_source([tmp_path / "p.ffr"]) as source:
        assert bytes(source.tree.targets) == b"t" * 4000 + b"x" + b"second"
    fffs.unpack(tmp_path / "p.ffr", tmp_path / "g")
    assert differences(snapshot(tmp_path / "f"), snapshot(tmp_path / "g")) == {}
    assert os.lstat(tmp_path / "g" / "z").st_ino == os.lstat(tmp_path / "g" / "a" / "also z").st_ino


def test_an_interrupt_leaves_nothing_behind(room: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    for jobs in (1, 4):
        with pytest.raises(KeyboardInterrupt):
            fffs.pack_folder(room / "f", room / "pack.ffr", jobs=jobs, progress=once(interrupt))
        assert_as_before(room)


# ---------------------------------------------------------------- the output


def test_an_older_output_is_replaced_by_a_new_file(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "pack.ffr").write_bytes(b"older")
    with (tmp_path / "pack.ffr").open("rb") as reader:
        fffs.pack_folder(tmp_path / "f", tmp_path / "pack.ffr")
        assert reader.read() == b"older", "an older file that is open stays"
    assert split_records((tmp_path / "pack.ffr").read_bytes())[-1].startswith(b"piouhjgbr")


def test_the_output_is_there_only_when_it_is_complete(room: Path) -> None:
    seen: list[bool] = []
    existed = (room / "pack.ffr").exists()
    fffs.pack_folder(
        room / "f", room / "pack.ffr", progress=lambda *_: seen.append(existed or not (room / "pack.ffr").exists())
    )
    assert seen
    assert all(seen)


def test_a_full_disk_is_an_error_that_names_the_output_and_leaves_the_older_one(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "large").write_bytes(stretched(3 * MIB))
    with small_disk(tmp_path / "disk", 2 * MIB) as disk:
        (disk / "pack.ffr").write_bytes(b"older" * 1000)
        with pytest.raises(WriteError, match=r"disk/pack\.ffr: cannot write: No space left") as caught:
            fffs.pack_folder(tmp_path / "f", disk / "pack.ffr")
        assert caught.value.errno == errno.ENOSPC
        assert os.listdir(disk) == ["pack.ffr"]
        assert (disk / "pack.ffr").read_bytes() == b"older" * 1000
        (tmp_path / "f" / "large").write_bytes(b"small")
        fffs.pack_folder(tmp_path / "f", disk / "pack.ffr")
        assert names_in(disk / "pack.ffr") == ["large"]


def test_a_disk_that_is_full_only_for_the_tree_is_an_error_too(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    for i in range(3000):
        (tmp_path / "f" / f"{i:0200}").touch()
    with small_disk(tmp_path / "disk", MIB) as disk:
        with pytest.raises(WriteError, match=r"disk/pack\.ffr: cannot write: No space left"):
            fffs.pack_folder(tmp_path / "f", disk / "pack.ffr")
        assert os.listdir(disk) == []


LEFTOVER = ".pack.ffr.0123456789ab.fffs-tmp"


def test_the_leftovers_of_a_killed_writer_are_removed_by_the_next(room: Path) -> None:
    code = """
        import os, signal, sys, fffs
        fffs.pack_folder(sys.argv[1], sys.argv[2], progress=lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(room / "f"), str(room / "pack.ffr")]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    (left,) = [name for name in os.listdir(room) if name.endswith(".fffs-tmp")]
    assert not (room / "pack.ffr").exists() or (room / "pack.ffr").read_bytes() == b"older"
    fffs.pack_folder(room / "f", room / "pack.ffr")
    assert left not in os.listdir(room)
    assert names_in(room / "pack.ffr") == ["a", "sub", "sub/victim"]


def test_a_large_folder_is_not_listed_for_each_file_that_is_written_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "LARGE", 3)
    monkeypatch.setattr(leftovers, "SHARE", 1e-9)  # a list stays valid for a very long time
    left = tmp_path / f".3.ffr.{'1' * 12}{temporary_files.SUFFIX}"
    for name in ("a", "b", left.name):
        (tmp_path / name).touch()
    listed: list[object] = []
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda place: listed.append(place) or listdir(place))
    for k in range(5):
        fffs.FileWriter(tmp_path / f"{k}.ffr", 0).close()
    assert len(listed) == 1
    assert not left.exists()


def test_a_large_folder_is_listed_again_for_a_hundredth_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").touch()
    now, listed = 1000.0, 0
    listdir = os.listdir

    def slow(place: Any) -> list[str]:
        nonlocal now, listed
        now, listed = now + 2, listed + 1
        return listdir(place)

    monkeypatch.setattr(leftovers, "LARGE", 1)
    monkeypatch.setattr(leftovers, "_large_folders", {})
    monkeypatch.setattr(leftovers.time, "monotonic", lambda: now)
    monkeypatch.setattr(os, "listdir", slow)
    left = tmp_path / f".x.ffr.{'1' * 12}{temporary_files.SUFFIX}"
    fffs.FileWriter(tmp_path / "x.ffr", 0).close()
    left.touch()
    for _ in range(100):
        now += 1.9
        fffs.FileWriter(tmp_path / "x.ffr", 0).close()
    assert (listed, left.exists()) == (1, True)
    now += 11
    fffs.FileWriter(tmp_path / "x.ffr", 0).close()
    assert (listed, left.exists()) == (2, False)


def test_leftovers_inside_the_packed_folder_are_neither_packed_nor_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (tmp_path / LEFTOVER).write_bytes(b"left")
    fffs.pack_folder(tmp_path, tmp_path / "pack.ffr")
    assert sorted(os.listdir(tmp_path)) == ["a", "pack.ffr"]
    assert names_in(tmp_path / "pack.ffr") == ["a"]


def test_the_temporary_file_of_a_living_writer_is_left_alone(room: Path) -> None:
    with (room / LEFTOVER).open("wb") as living:
        fcntl.flock(living, fcntl.LOCK_EX)
        fffs.pack_folder(room / "f", room / "pack.ffr")
        assert (room / LEFTOVER).exists()


@pytest.mark.parametrize(
    "name", [".pack.ffr.notes.fffs-tmp", ".other.ffr.0123456789ab.fffs-tmp", "pack.ffr.0123456789ab.fffs-tmp"]
)
def test_what_only_looks_like_a_leftover_is_left_alone(room: Path, name: str) -> None:
    (room / name).write_bytes(b"mine")
    fffs.pack_folder(room / "f", room / "pack.ffr")
    assert (room / name).read_bytes() == b"mine"


@pytest.mark.parametrize("make", [fifo, Path.mkdir, lambda path: path.symlink_to("f/a")])
def test_what_lies_in_the_place_of_a_leftover_stops_nobody(room: Path, make: Callable[[Path], object]) -> None:
    make(room / LEFTOVER)
    fffs.pack_folder(room / "f", room / "pack.ffr")
    assert names_in(room / "pack.ffr") == ["a", "sub", "sub/victim"]
    assert (room / "f" / "a").read_bytes() == b"first"


def test_two_writers_of_one_output_both_succeed(room: Path) -> None:
    inner: list[Any] = []
    fffs.pack_folder(
        room / "f",
        room / "pack.ffr",
        progress=once(lambda: inner.append(fffs.pack_folder(room / "f", room / "pack.ffr"))),
    )
    assert len(inner) == 1
    assert names_in(room / "pack.ffr") == ["a", "sub", "sub/victim"]
    assert sorted(os.listdir(room)) == ["f", "pack.ffr"]


def test_progress_goes_up_to_all_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    many_files(tmp_path / "f")
    (tmp_path / "f" / "large").write_bytes(bytes(40 * MIB))
    for jobs in (1, 4):
        seen: list[tuple[int, int]] = []
        summary = fffs.pack_folder(
            tmp_path / "f",
            tmp_path / "pack.ffr",
            jobs=jobs,
            progress=lambda done, total, seen=seen: seen.append((done, total)),
        )
        assert max(seen) == (summary.total_bytes, summary.total_bytes)
        done = sorted(first for first, _ in seen)
        assert max(b - a for a, b in itertools.pairwise([0, *done])) <= 16 * MIB and len(done) >= 10


# ---------------------------------------------------------------- what ffrecord sees


def nested(root: Any, prefix: str = "") -> dict[str, int | None]:
    """Return path -> record, or None for a folder."""
    found: dict[str, int | None] = {}
    for name, value in root.items():
        found[prefix + name] = None if isinstance(value, dict) else value
        if isinstance(value, dict):
            found |= nested(value, f"{prefix}{name}/")
    return found


def test_the_pickle_before_the_trailer_is_the_tree_that_ffrecord_expects(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    (folder / "sub" / "empty").mkdir(parents=True)
    (folder / "file").write_bytes(b"file")
    (folder / "sub" / "other").write_bytes(b"other")
    (folder / "hard").hardlink_to(folder / "file")
    os.close(os.open(os.fsencode(folder) + b"/caf\xe9", os.O_CREAT))
    for name, target in {
        "to-file": "sub/other",
        "via-link": "to-folder/other",
        "to-link": "to-file",
        "to-folder": "sub",
        "dangling": "nowhere",
        "outside": "../f/file",
        "absolute": str(folder / "file"),
        "loop": "loop",
    }.items():
        (folder / name).symlink_to(target)
    (folder / "sub" / "up").symlink_to("../file")
    fffs.pack_folder(folder, tmp_path / "pack.ffr")
    pack = Pack.parse((tmp_path / "pack.ffr").read_bytes())
    assert pack.records == [b"", b"file", b"other"]
    assert nested(unpickle(pack.pickle)) == {
        "caf\udce9": 0,
        "file": 1,
        "hard": 1,
        "sub": None,
        "sub/empty": None,
        "sub/other": 2,
        "sub/up": 1,
        "to-file": 2,
        "to-link": 2,
        "via-link": 2,
    }
    # ffrecord loads it from the bytes of the whole record, with the trailer.
    whole = split_records((tmp_path / "pack.ffr").read_bytes())[-1]
    assert nested(unpickle(whole[9:])) == nested(unpickle(pack.pickle))


@pytest.mark.parametrize(
    "make", [byte_names, odd_names, normal_forms, sorting, hard_links, empty_folders, many_files, deep]
)
def test_without_the_trailer_the_same_names_lead_to_the_same_bytes(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    make(folder)
    for link in [path for path in folder.rglob("*") if path.is_symlink()]:
        link.unlink()  # ffrecord packs none
    fffs.pack_folder(folder, tmp_path / "pack.ffr")
    pack = Pack.parse((tmp_path / "pack.ffr").read_bytes())
    pack.trailer = None
    (tmp_path / "bare.ffr").write_bytes(pack.build())
    os.utime(tmp_path / "bare.ffr", ns=(12345, 12345))
    expected = {
        path: (oct(0o40755 if content is None else 0o100644), 12345, content, names)
        for path, (_, _, content, names) in snapshot(folder).items()
    }
    with load_source([tmp_path / "bare.ffr"]) as source:
        assert differences(tree_snapshot(source), expected) == {}


# ---------------------------------------------------------------- random folders


@given(records=st.lists(st.binary(max_size=3000), max_size=30), indices=st.lists(st.integers(0, 10**6), max_size=50))
@settings(max_examples=40)
def test_any_records_come_back_from_a_record_file(records: list[bytes], indices: list[int]) -> None:
    with tempfile.TemporaryDirectory(dir=FAST) as room:
        path = Path(room, "a.ffr")
        with fffs.FileWriter(path, len(records)) as writer:
            for record in records:
                writer.write_one(record)
        assert split_records(path.read_bytes()) == records
        numbers = [i % len(records) for i in indices] if records else []
        with fffs.FileReader(path) as reader:
            assert [data.tobytes() for data in reader.read(numbers)] == [records[i] for i in numbers]
            assert [data.tobytes() for data in reader.read(range(reader.n))] == records


NAMES = st.one_of(
    st.binary(min_size=1, max_size=12),
    st.text(min_size=1, max_size=6).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.sampled_from([b"a", b"b", b"a" * 255]),
).filter(lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b".."))
MODES = st.integers(0, 0o7777)
MTIMES = st.integers(-(10**18), 9 * 10**18)
TARGETS = st.binary(min_size=1, max_size=40).filter(lambda target: b"\0" not in target)
LEAVES = st.one_of(
    st.tuples(st.just("file"), st.binary(max_size=100), MODES, MTIMES),
    st.tuples(st.just("link"), TARGETS, MODES, MTIMES),
    st.tuples(st.just("another name"), st.integers(0, 100), MODES, MTIMES),
)
TREES = st.recursive(
    LEAVES,
    lambda children: st.tuples(st.just("folder"), st.dictionaries(NAMES, children, max_size=6), MODES, MTIMES),
    max_leaves=25,
)


def make_tree(path: bytes, items: dict[bytes, Any], names: list[bytes]) -> None:
    """Make a random tree; ``names`` collects files that can get another name."""
    for name, (kind, value, mode, mtime) in items.items():
        full = os.path.join(path, name)
        if kind == "another name":
            if names:
                os.link(names[value % len(names)], full, follow_symlinks=False)
            continue
        if kind == "folder":
            os.mkdir(full)
            make_tree(full, value, names)
        elif kind == "file":
            Path(os.fsdecode(full)).write_bytes(value)
        else:
            os.symlink(value, full)
        if kind != "folder":
            names.append(full)
        if kind != "link":
            os.chmod(full, mode)
        os.utime(full, ns=(mtime, mtime), follow_symlinks=False)


@given(items=st.dictionaries(NAMES, TREES, max_size=6))
@settings(max_examples=60)
def test_any_tree_comes_back(items: dict[bytes, Any]) -> None:
    with tempfile.TemporaryDirectory(dir=FAST) as room:
        folder = Path(room, "folder")
        folder.mkdir()
        make_tree(os.fsencode(folder), items, [])
        assert_lossless(folder, Path(room))


def test_text_that_can_be_no_name_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    fffs.pack_folder(tmp_path / "x", tmp_path / "x.ffr")
    with fffs.PackedFolder(tmp_path / "x.ffr") as folder:
        assert not folder.exists("\ud800")
        for call in (folder.read_one, folder.list):
            with pytest.raises(fffs.errors.EntryNotFoundError):
                call("\ud800")
