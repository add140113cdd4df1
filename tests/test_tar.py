"""Tar archives: any order and any pieces give the same pack, and what is wrong is said in the same words."""

from __future__ import annotations

import errno
import gzip
import itertools
import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from archives import END, extended, padded, tar_file, tar_header
from builders import stretched
from fuzz import fuzz_archive
from inside import lib, load_source, streams
from test_convert import LONG, MIB, left_in, measured, sample, shared
from test_pack import tree_snapshot

import fffs
from fffs.errors import FffsError, FormatError

NAMES = (b"a", b"b", b"c/d", b"c/e", b"e/f/g", b"./a", b"h/", b"c", b"/a", b"n" * 99, b"a//b", b"../a")
KINDS = (b"0", b"0", b"0", b"1", b"2", b"5", b"3", b"7", b"V", b"Z")


def random_archive(chance: random.Random) -> bytes:
    """Return an archive of members of all kinds, many with one name, and possibly damaged."""
    out = b""
    for _ in range(chance.randrange(20)):
        kind, name, target = (
            chance.choice(KINDS),
            chance.choice(NAMES[: chance.choice((3, 9, 12))]),
            chance.choice(NAMES),
        )
        content = chance.randbytes(chance.choice((0, 1, 511, 512, 513, 3000))) if kind in b"0Z" else b""
        if chance.random() < 0.3:
            out += chance.choice((LONG, shared(mtime=b"7"), extended(path=b"x/" * 300 + b"y", mtime=b"-1.5"), b""))
        out += tar_header(name, len(content), kind, target) + padded(content)
    out += chance.choice((END, END, bytes(512), END + b"more", b""))
    if chance.random() < 0.4:
        broken = bytearray(out[: chance.randrange(len(out) + 1)] if chance.random() < 0.5 else out)
        if broken and chance.random() < 0.7:
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        out = bytes(broken)
    return out


def outcome(folder: Path, data: bytes) -> tuple[Any, list[str]]:
    """Return the pack that an archive becomes, or why it is refused; and the warnings."""
    (folder / "x").write_bytes(data)
    warnings: list[str] = []
    try:
        fffs.convert(folder / "x", folder / "x.ffr", from_="tar", warn=warnings.append, force=True)
    except FffsError as error:
        return f"{type(error).__name__}: {error}", warnings
    return (folder / "x.ffr").read_bytes(), warnings


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_pieces_of_any_size_give_the_same_pack_warnings_and_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes]
) -> None:
    chance = random.Random(1)
    for _ in range(40):
        data = pack(random_archive(chance))
        monkeypatch.undo()
        whole = outcome(tmp_path, data)
        for size in (1, 511, 512, 513, chance.randrange(1, 5000)):
            monkeypatch.setattr(streams, "READ" if pack is bytes else "PIECE", size)
            assert outcome(tmp_path, data) == whole, size


def test_random_archives_become_what_tarfile_finds() -> None:
    chance = random.Random(2)
    for _ in range(150):
        fuzz_archive.one_input(bytes([fuzz_archive.RECIPE, *chance.randbytes(3 * chance.randrange(9))]))


@pytest.mark.parametrize("options", [["--format=gnu"], ["--format=oldgnu"], ["--format=ustar"], ["--format=posix"]])
def test_what_tar_writes_in_any_format_becomes_what_packing_the_folder_gives(
    tmp_path: Path, options: list[str]
) -> None:
    folder = sample(tmp_path / "folder")
    subprocess.run(["tar", *options, "-cf", tmp_path / "x.tar", "-C", folder, "."], check=True)
    fffs.pack_folder(folder, tmp_path / "packed.ffr")
    fffs.convert(tmp_path / "x.tar", tmp_path / "x.ffr", verify=True)
    assert (tmp_path / "x.ffr").read_bytes() == (tmp_path / "packed.ffr").read_bytes()


@pytest.mark.parametrize(("pack", "align"), [(bytes, False), (gzip.compress, False), (bytes, True)])
def test_the_order_of_the_members_changes_nothing(tmp_path: Path, pack: Callable[[bytes], bytes], align: bool) -> None:
    """There are more small files than are written at once, and large ones between them."""
    chance = random.Random(3)
    members = [(b"%d/%d" % (k % 3, k), b"%d" % k * (k % 50)) for k in range(1500)]
    members += [(b"1/large", stretched(2 * MIB + 5)), (b"block", stretched(MIB)), (b"2/more", stretched(MIB + 1))]
    results = set()
    for _ in range(2):
        chance.shuffle(members)
        # What is replaced is left out of a run of members.
        whole = tar_file(b"block", b"old") + b"".join(tar_file(name, data) for name, data in members) + END
        (tmp_path / "x").write_bytes(pack(whole))
        options: dict[str, Any] = {"warn": lambda _: None, "jobs": 2, "align": align}
        fffs.convert(tmp_path / "x", tmp_path / "x.ffr", verify=True, force=True, **options)
        results.add((tmp_path / "x.ffr").read_bytes())
    assert len(results) == 1
    with fffs.PackedFolder(tmp_path / "x.ffr") as packed:
        assert {name: bytes(packed.read_one(os.fsdecode(name))) for name, _ in members} == dict(members)


@pytest.mark.parametrize(
    ("members", "line"),
    [
        (tar_header(b"x").replace(b"00000000000\0", b"\xff" + b"\0" * 11, 1), "checksum of its header is wrong"),
        (tar_header(b"a", 1 << 86, b"x"), f"an extended header of {1 << 86} bytes; the archive is damaged"),
        (tar_header(b"q'\"" * 20, 1 << 86), "the archive ends inside"),
        (tar_header(b"n" * 100, 0, b"1", b""), "a hard link to '', which is not a file before it in the archive"),
        (tar_file(b"a") + tar_header(b"a/b" + b"/c" * 40, 0, b"5"), "'a' is a file, not a folder"),
        (
            extended(path=b"d/" * 300 + b"..") + tar_file(b"x"),
            "…': a name with '..', which would lead out of the folder",
        ),
        (extended(mtime=b"9" * 21) + tar_file(b"a"), "its extended header has an invalid time; the archive is damaged"),
        (extended(size=b"9" * 18) + tar_file(b"a"), "the archive ends inside 'a'; it is truncated, copy it again"),
        (tar_header(b"x", 6, b"x") + padded(b"6 a=b\n"), None),
        (tar_header(b"x", 4, b"x") + padded(b"4 =\n"), None),
        (
            tar_header(b"x", 5, b"x") + padded(b"5 ab\n"),
            "a key of its extended header has no value; the archive is dam",
        ),
        (tar_header(b"x", 6, b"x") + padded(b" 6 a=\n"), "its extended header is not a list of keys and values"),
        (tar_header(b"x", 30, b"x") + padded(b"9999999999999999999 path=ab\n\n\n"), "is not a list of keys and values"),
        (shared(GNU__sparse__major=b"1") + extended(GNU__sparse__major=b"") + tar_file(b"s\n"), r"'s\n' is a sparse"),
        (extended(path=b"a") * 8, "more than 8 extended headers; the archive is damaged"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, members: bytes, line: str | None) -> None:
    result, warnings = outcome(tmp_path, members + (END if b"path" not in members[512:530] else b""))
    assert warnings == []
    assert isinstance(result, bytes) if line is None else line in result, result


@pytest.mark.parametrize(
    ("number", "seconds"),
    [
        (b"        777 ", 0o777),
        (b"777\0garbage!", 0o777),
        (b"\0" * 12, 0),
        (b"\x80" + bytes(10) + b"\x07", 7),
        (b"\xff" * 11 + b"\xfe", -2),
        (b"\xbf" + b"\xff" * 11, None),
        (b"\xc0" + bytes(11), None),
    ],
)
def test_numbers_are_octal_or_binary_and_may_be_too_large_for_a_tree(
    tmp_path: Path, number: bytes, seconds: int | None
) -> None:
    header = bytearray(tar_header(b"a"))
    header[136:148], header[148:156] = number, b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    result, warnings = outcome(tmp_path, bytes(header) + END)
    assert isinstance(result, bytes)
    with load_source([tmp_path / "x.ffr"]) as source:
        time = int(source.tree.mtime[source.tree.find(b"a")])
    if seconds is not None:
        assert (time, warnings) == (seconds * 10**9, [])
        return
    assert time == (-(2**63) if number[0] == 0xC0 else 2**63 - 1)
    assert "the nearest possible time was packed" in warnings[0]


def test_bytes_of_a_member_with_a_slash_at_its_end_are_left_out_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(tar_file(b"a/", b"lost") + tar_file(b"b/", b"") + END)
    warnings: list[str] = []
    fffs.convert(tmp_path / "x.tar", tmp_path / "x.ffr", warn=warnings.append)
    why = "a folder, because of the slash at its end; its bytes are left out"
    assert warnings == [f"{tmp_path}/x.tar: 'a/': {why}"]
    with fffs.PackedFolder(tmp_path / "x.ffr") as pack:
        assert pack.list() == ["a", "b"]


def test_warnings_are_in_the_order_of_the_members_however_many(tmp_path: Path) -> None:
    data = b"".join(tar_header(b"%d" % (k // 2), 0, b"34"[k % 2 : k % 2 + 1]) for k in range(400))
    _, warnings = outcome(tmp_path, data + END)
    said = [line.split(": ", 1)[1] for line in warnings]
    assert said[:3] == ["'0': a device, left out"] * 2 + [
        "'0': several members have this name; only the last one is packed"
    ]
    assert said == [line.replace("'0'", f"'{k}'") for k in range(200) for line in said[:3]]


def test_a_name_that_is_replaced_leaves_its_content_to_its_other_names(tmp_path: Path) -> None:
    data = [
        tar_file(b"a", b"1"),
        tar_header(b"z", 0, b"1", b"a"),
        tar_header(b"y", 0, b"1", b"z"),
        tar_file(b"a", b"2"),
        tar_header(b"b", 0, b"1", b"a"),
        tar_header(b"a", 0, b"1", b"y"),
        tar_header(b"z", 0, b"2", b"soft"),
        tar_header(b"w", 0, b"1", b"z"),
        tar_header(b"z", 0, b"5"),
        END,
    ]
    result, _ = outcome(tmp_path, b"".join(data[:-2]) + END)
    assert isinstance(result, bytes)
    with load_source([tmp_path / "x.ffr"]) as source:
        found = {path: entry[2:] for path, entry in tree_snapshot(source).items() if path}
    first, second = (b"a", b"y"), (b"w", b"z")
    assert found == {
        **dict.fromkeys(first, (b"1", first)),
        b"b": (b"2", (b"b",)),
        **dict.fromkeys(second, (b"soft", second)),
    }
    assert "'z' is a link, which would be followed, not a folder" in outcome(tmp_path, b"".join(data))[0]


def test_a_lack_of_memory_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    names = [extended(path=b"d%d/" % k + b"n" * (k % 250)) + tar_file(b"x") for k in range(1200)]
    data = b"".join(names) + tar_header(b"l", 0, b"2", b"target") + END
    (tmp_path / "x").write_bytes(data)
    for allocation in itertools.count(1):
        lib.fffs_fault_set(lib.FFFS_FAULT_MEMORY, allocation, 1, -errno.ENOMEM)
        try:
            fffs.convert(tmp_path / "x", tmp_path / "x.ffr", jobs=1)
            break
        except MemoryError:
            assert left_in(tmp_path) == ["x"]
        finally:
            lib.fffs_fault_set(lib.FFFS_FAULT_NONE, 0, 0, 0)
    assert allocation > 20


def test_a_file_takes_little_memory(tmp_path: Path) -> None:
    count = 60_000
    (tmp_path / "many").write_bytes(b"".join(tar_header(b"%d/%d" % (k % 9, k)) for k in range(count)) + END)
    (tmp_path / "one").write_bytes(tar_header(b"a") + END)
    least = measured("convert", "-q", "--from", "tar", tmp_path / "one", tmp_path / "x.ffr")
    most = measured("convert", "-q", "--force", "--from", "tar", tmp_path / "many", tmp_path / "x.ffr")
    assert least[:2] == most[:2] == (0, "")
    assert most[2] - least[2] < 16, "MiB"


def test_damaged_archives_are_refused_or_become_a_pack(tmp_path: Path) -> None:
    chance = random.Random(4)
    refused = 0
    for _ in range(150):
        result, _ = outcome(tmp_path, random_archive(chance))
        refused += isinstance(result, str)
        if isinstance(result, str):
            assert issubclass(getattr(fffs.errors, result.split(":")[0]), FormatError), result
            assert "\n" not in result
    assert 30 < refused < 140


@pytest.mark.parametrize("magic", [b"ustar\x0000", b"ustar\0\0\0", b"ustar\0  ", b"ustar\0 0"])
def test_names_continue_in_the_prefix_whatever_the_version_of_the_header(magic: bytes, tmp_path: Path) -> None:
    headers = b""
    for folder in (b"one", b"two"):
        block = bytearray(tar_header(b"file"))
        block[257:265], block[345:348], block[148:156] = magic, folder, b" " * 8
        block[148:156] = b"%06o\0 " % sum(block)
        headers += block
    (tmp_path / "x.tar").write_bytes(headers + END)
    listed = subprocess.run(["tar", "tf", tmp_path / "x.tar"], capture_output=True, text=True, check=True).stdout
    assert listed.split() == ["one/file", "two/file"]
    fffs.convert(tmp_path / "x.tar", tmp_path / "x.ffr")
    with fffs.PackedFolder(tmp_path / "x.ffr") as packed:
        assert sorted(packed.list(recursive=True)) == ["one", "one/file", "two", "two/file"]
