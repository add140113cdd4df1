"""verify: each problem of a source is found and named."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import MAGIC, MIB, Pack, dictionary, number, record_file, split_records, stretched, text, whole
from golden_files import GOLDEN
from inside import BadRecord, keep_checksums, load_records, load_source, native, verify

import fffs
from fffs.errors import SourceChangedError


def check(*paths: Path) -> list[BadRecord]:
    with load_source(paths) as source:
        return verify(source)


def damage(path: Path, position: int, mask: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(data)


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    folder = tmp_path / "f"
    (folder / "sub").mkdir(parents=True)
    (folder / "a").write_bytes(b"first")
    (folder / "big").write_bytes(stretched(3 * MIB + 1))
    (folder / "sub" / "one").write_bytes(b"one")
    (folder / "sub" / "other name").hardlink_to(folder / "sub" / "one")
    (folder / "z").touch()
    (folder / "link").symlink_to("sub/one")
    fffs.pack_folder(folder, tmp_path / "pack.ffr")
    return tmp_path / "pack.ffr"


def start(path: Path, record: int) -> int:
    with fffs.FileReader(path) as reader:
        return int(reader.get_offsets()[record])


def test_a_good_pack_has_no_bad_records(pack: Path) -> None:
    assert check(pack) == []


@pytest.mark.parametrize("name", GOLDEN.of_kind("packed", "records"))
@pytest.mark.filterwarnings("ignore::fffs.LegacyFileWarning")
def test_golden_files_have_no_bad_records(name: str) -> None:
    assert check(GOLDEN.path(name)) == []


def test_a_damaged_record_is_named_by_number_name_and_offset(pack: Path) -> None:
    at = start(pack, 2)
    damage(pack, at)
    (bad,) = check(pack)
    assert (bad.source, bad.record, bad.number, bad.offset, bad.name) == (str(pack), 2, 2, at, "sub/one")
    assert bad.problem.startswith("checksum mismatch (expected 0x")
    assert str(pack) not in bad.problem


def test_every_damaged_record_is_named(pack: Path) -> None:
    for record in (0, 1, 2):
        damage(pack, start(pack, record))
    assert [(bad.number, bad.name) for bad in check(pack)] == [(0, "a"), (1, "big"), (2, "sub/one")]


@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_file_that_changes_meanwhile_hides_no_damage_of_others(tmp_path: Path, is_damaged: bool) -> None:
    for name in ("a.bag", "b.bag"):
        with fffs.granular.BagWriter(tmp_path / name) as bag:
            bag.append(b"record")
    keep_checksums(str(tmp_path / "a.bag"), "bag")
    if is_damaged:
        times = (tmp_path / "a.bag").stat()
        damage(tmp_path / "a.bag", 2)
        os.utime(tmp_path / "a.bag", ns=(times.st_atime_ns, times.st_mtime_ns))
    with load_source([tmp_path / "a.bag", tmp_path / "b.bag"]) as source:
        touch = lambda done, total: os.utime(tmp_path / "b.bag", (0, done))  # noqa: E731
        if is_damaged:
            [bad] = verify(source, touch)
            assert (bad.source, bad.record) == (str(tmp_path / "a.bag"), 0)
        else:
            with pytest.raises(SourceChangedError, match=r"b\.bag: "):
                verify(source, touch)


def test_a_wrong_checksum_of_a_record_without_bytes_is_found(pack: Path) -> None:
    """The stored checksum is covered by that of the header, so only intention leads to this state."""
    pieces = Pack.parse(pack.read_bytes())
    records = [*pieces.records, split_records(pack.read_bytes())[-1]]
    data = bytearray(record_file(records))
    data[12 + 4 * 3] = 1
    data[0:4] = bytes(4)  # no checksum of the metadata
    pack.write_bytes(data)
    with pytest.warns(fffs.LegacyFileWarning):
        assert [(bad.number, bad.name) for bad in check(pack)] == [(3, "z")]


def test_records_behind_a_cut_are_named(tmp_path: Path) -> None:
    path = tmp_path / "plain.ffr"
    path.write_bytes(record_file([b"zero", b"first", b"second", b"third"])[:-7])
    assert [(bad.number, bad.name, bad.problem) for bad in check(path)] == [
        (2, "000002", "the file ends before the record does"),
        (3, "000003", "the file ends before the record does"),
    ]


def test_bytes_behind_the_end_are_found(tmp_path: Path) -> None:
    path = tmp_path / "plain.ffr"
    path.write_bytes(record_file([b"zero", b"first"]) + b"x")
    assert [bad.number for bad in check(path)] == [1]


def test_records_of_several_files_are_counted_through_and_named_by_their_own_number(tmp_path: Path) -> None:
    for k in range(3):
        (tmp_path / f"{k}.ffr").write_bytes(record_file([b"a", b"b"]))
    damage(tmp_path / "1.ffr", 12 + 24 + 1)
    (bad,) = check(tmp_path)
    assert (bad.source, bad.record, bad.number, bad.name) == (str(tmp_path / "1.ffr"), 1, 3, "000003")


def test_a_damaged_tree_is_found_in_a_union_of_packs_that_opens(pack: Path, tmp_path: Path) -> None:
    """The damage is in the pickle, after the magic bytes, which readers of the trailer do not read."""
    for k in range(2):
        (tmp_path / f"{k}.ffr").write_bytes(pack.read_bytes())
    damage(tmp_path / "1.ffr", start(pack, 4) + 50)
    (bad,) = check(tmp_path / "0.ffr", tmp_path / "1.ffr")
    assert (bad.source, bad.record, bad.number, bad.name) == (str(tmp_path / "1.ffr"), 4, 9, None)


def test_a_pickle_that_says_something_else_than_the_trailer_is_found(pack: Path) -> None:
    pieces = Pack.parse(pack.read_bytes())
    for pickle in (whole(dictionary(text("evil"), number(0))), pieces.pickle.replace(b"sub", b"bus"), b"x"):
        pack.write_bytes(Pack(pieces.records, pickle, pieces.trailer).build())
        (bad,) = check(pack)
        assert (bad.number, bad.name) == (4, None)
        assert bad.problem == "the tree that ffrecord sees differs from the one in the trailer"


def test_block_checksums_that_do_not_add_up_are_found(pack: Path) -> None:
    pieces = Pack.parse(pack.read_bytes())
    assert pieces.trailer
    pieces.trailer.arrays["block_checksums"][2] ^= 1
    pack.write_bytes(pieces.build())
    (bad,) = check(pack)
    assert bad.problem == "the block checksums of record 1 do not combine to its checksum"


def test_records_can_be_verified_where_their_tree_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "evil.ffr"
    path.write_bytes(record_file([b"zero", b"one", MAGIC + b"cos\nsystem\n."]))
    damage(path, 12 + 36)
    with load_records([path]) as source:
        assert [(bad.number, bad.problem[:8]) for bad in verify(source)] == [(0, "checksum")]


@pytest.fixture
def failing_disk() -> Iterator[Any]:
    """``failing_disk(n, count)``: ``count`` reads from the n-th on fail."""
    lib = native.lib
    yield lambda n, count: lib.fffs_fault_set(lib.FFFS_FAULT_PREAD, n, count, -errno.EIO)
    lib.fffs_fault_set(lib.FFFS_FAULT_NONE, 1, 1, 0)


def test_what_the_disk_cannot_read_is_named_and_the_rest_is_verified(tmp_path: Path, failing_disk: Any) -> None:
    path = tmp_path / "plain.ffr"
    path.write_bytes(record_file([b"%d" % i for i in range(50)]))
    damage(path, start(path, 37))
    with load_source([path]) as source:
        assert [entry.number for entry in verify(source)] == [37]
        failing_disk(1, 1)
        bad = {entry.number: entry.problem for entry in verify(source)}
    assert "cannot be read: Input/output error" in bad.values()
    assert 37 in bad
    assert len(bad) < 50


def test_progress_goes_up_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "plain.ffr"
    path.write_bytes(record_file([b"x" * 10] * 10_000))
    seen: list[tuple[int, int]] = []
    with load_source([path]) as source:
        verify(source, lambda *at: seen.append(at))
    assert len(seen) == 3
    assert seen == sorted(seen)
    assert seen[-1][0] == 100_000
    assert seen[-1][1] == os.path.getsize(path)
