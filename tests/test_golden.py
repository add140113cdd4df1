"""Files of ffrecord are read exactly; damage in each damaged variant is detected, and affects nothing else."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_files import GOLDEN, Golden, sha256

import fffs
from fffs.errors import (
    ChecksumError,
    EntryNotFoundError,
    FffsError,
    FormatError,
    MetadataError,
    RecordError,
    TruncatedError,
    UnfinishedFileError,
)

RECORD_FILES = GOLDEN.of_kind("records", "packed")
PACKED_FILES = GOLDEN.of_kind("packed")
LEGACY = "legacy-zero-crc.ffr"

Corrupted = Callable[[str], Path]


def expect_legacy_warning(expected: bool) -> AbstractContextManager[Any]:
    return pytest.warns(fffs.LegacyFileWarning) if expected else nullcontext()


# ---------------------------------------------------------------- record files


@pytest.fixture(params=RECORD_FILES)
def record_file(request: pytest.FixtureRequest) -> str:
    """The name of each golden file in turn."""
    name: str = request.param
    return name


@pytest.fixture(params=[True, False], ids=["checked", "unchecked"])
def check_data(request: pytest.FixtureRequest) -> bool:
    """Readers with and without checksums."""
    return bool(request.param)


def test_every_record_has_the_listed_content(golden: Golden, record_file: str, check_data: bool) -> None:
    entry = golden.files[record_file]
    with expect_legacy_warning(record_file == LEGACY):
        reader = fffs.FileReader(golden.path(record_file), check_data=check_data)
    with reader:
        assert reader.n == entry["n"]
        records = reader.read(range(reader.n))
    assert sha256(b"".join(records)) == entry["concat_sha256"]
    assert sha256("\n".join(str(len(record)) for record in records).encode()) == entry["lengths_sha256"]
    for listed in entry["records"]:
        assert len(records[listed["index"]]) == listed["len"]
        assert sha256(records[listed["index"]]) == listed["sha256"]


def test_read_one_gives_what_read_gives(golden: Golden, record_file: str) -> None:
    with expect_legacy_warning(record_file == LEGACY):
        reader = fffs.FileReader(golden.path(record_file))
    with reader:
        for listed in golden.files[record_file]["records"]:
            assert sha256(reader.read_one(listed["index"])) == listed["sha256"]


def test_offsets_are_those_in_the_file(golden: Golden, record_file: str) -> None:
    raw = golden.raw(record_file)
    with expect_legacy_warning(record_file == LEGACY):
        reader = fffs.FileReader(golden.path(record_file))
    with reader:
        offsets = reader.get_offsets(0)
    assert offsets.dtype == np.int64
    assert offsets.tolist() == raw.offsets
    for listed in golden.files[record_file]["records"]:
        assert offsets[listed["index"]] == listed["offset"]


def test_checksums_are_those_in_the_file(golden: Golden, record_file: str) -> None:
    raw = golden.raw(record_file)
    with expect_legacy_warning(record_file == LEGACY):
        reader = fffs.FileReader(golden.path(record_file))
    with reader:
        checksums = reader.get_checksums(0)
    assert checksums.dtype == np.uint32
    assert checksums.tolist() == raw.checksums
    for listed in golden.files[record_file]["records"]:
        assert checksums[listed["index"]] == int(listed["crc32"], 16)


def test_validate_accepts_a_good_file(golden: Golden, record_file: str) -> None:
    with expect_legacy_warning(record_file == LEGACY):
        reader = fffs.FileReader(golden.path(record_file))
    with reader, warnings.catch_warnings():
        warnings.simplefilter("ignore", fffs.LegacyFileWarning)
        reader.validate()


def test_pickled_records_are_the_tuples_that_were_written(golden: Golden) -> None:
    with fffs.FileReader(golden.path("pickled-50.ffr")) as reader:
        assert [pickle.loads(record) for record in reader.read(range(50))] == [(2 * i, 3 * i) for i in range(50)]


# ---------------------------------------------------------------- a folder of parts


def test_a_folder_of_parts_is_one_reader(golden: Golden) -> None:
    entry = golden.files["parts/"]
    with fffs.FileReader(golden.path("parts")) as reader:
        assert reader.n == entry["n"]
        assert [os.path.basename(name) for name in reader.fnames] == [os.path.basename(part) for part in entry["files"]]
        records = reader.read(range(reader.n))
    assert [sha256(record) for record in records] == [listed["sha256"] for listed in entry["records"]]
    assert sha256(b"".join(records)) == entry["concat_sha256"]


def test_each_part_keeps_its_own_tables(golden: Golden) -> None:
    with fffs.FileReader(golden.path("parts")) as reader:
        for number, part in enumerate(golden.files["parts/"]["files"]):
            assert reader.get_offsets(number).tolist() == golden.raw(part).offsets
            assert reader.get_checksums(number).tolist() == golden.raw(part).checksums


def test_a_list_of_parts_is_read_in_the_order_given(golden: Golden) -> None:
    parts = golden.files["parts/"]["files"][::-1]
    with fffs.FileReader([golden.path(part) for part in parts]) as reader:
        records = reader.read(range(reader.n))
    assert [record.tobytes() for record in records] == [record for part in parts for record in golden.raw(part).records]


def test_one_batch_reaches_across_parts(golden: Golden) -> None:
    entry = golden.files["parts/"]
    with fffs.FileReader(golden.path("parts")) as reader:
        batch = reader.read([9, 0, 5, 3, 9])
    assert [sha256(record) for record in batch] == [entry["records"][i]["sha256"] for i in (9, 0, 5, 3, 9)]


# ---------------------------------------------------------------- unusual files


def test_a_legacy_file_opens_with_a_warning_that_names_it(golden: Golden) -> None:
    with pytest.warns(fffs.LegacyFileWarning, match=r"legacy-zero-crc\.ffr"):
        fffs.FileReader(golden.path(LEGACY)).close()
    assert issubclass(fffs.LegacyFileWarning, UserWarning)


def test_a_legacy_file_is_still_checked_record_by_record(golden: Golden, tmp_path: Path) -> None:
    damaged = bytearray(golden.bytes(LEGACY))
    damaged[golden.raw(LEGACY).offsets[2]] ^= 1
    path = tmp_path / "legacy.ffr"
    path.write_bytes(damaged)
    with pytest.warns(fffs.LegacyFileWarning):
        reader = fffs.FileReader(path)
    with reader:
        with pytest.raises(ChecksumError):
            reader.read_one(2)
        assert reader.read_one(1).tobytes() == golden.raw(LEGACY).records[1]


def test_an_unfinished_file_is_refused_as_such(golden: Golden, check_data: bool) -> None:
    with pytest.raises(UnfinishedFileError, match=r"unfinished\.ffr"):
        fffs.FileReader(golden.path("unfinished.ffr"), check_data=check_data)


def test_twelve_zero_bytes_are_an_old_writers_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "zeros.ffr"
    path.write_bytes(bytes(12))
    with pytest.warns(fffs.LegacyFileWarning):
        reader = fffs.FileReader(path)
    with reader:
        assert (reader.n, reader.read([])) == (0, [])


def test_thirteen_zero_bytes_are_an_unfinished_file(tmp_path: Path) -> None:
    path = tmp_path / "zeros.ffr"
    path.write_bytes(bytes(13))
    with pytest.raises(UnfinishedFileError):
        fffs.FileReader(path)


@pytest.mark.parametrize("size", range(12))
def test_less_than_a_header_is_refused(golden: Golden, tmp_path: Path, size: int) -> None:
    path = tmp_path / "short.ffr"
    path.write_bytes(golden.bytes("empty.ffr")[:size])
    with pytest.raises(FormatError):
        fffs.FileReader(path)


# ---------------------------------------------------------------- packed folders


@pytest.fixture(params=PACKED_FILES)
def packed_file(request: pytest.FixtureRequest) -> str:
    """The name of each golden packed folder in turn."""
    name: str = request.param
    return name


def tree_of(name: str) -> list[dict[str, Any]]:
    tree: list[dict[str, Any]] = GOLDEN.files[name]["tree"]
    return tree


def test_a_packed_folder_lists_exactly_its_tree_in_preorder(golden: Golden, packed_file: str) -> None:
    with fffs.PackedFolder(golden.path(packed_file)) as folder:
        assert list(folder.list(recursive=True)) == [entry["path"] for entry in tree_of(packed_file)]


@pytest.mark.parametrize(("list_file", "list_dir"), [(True, False), (False, True), (False, False)])
def test_list_can_leave_out_files_or_folders(golden: Golden, packed_file: str, list_file: bool, list_dir: bool) -> None:
    wanted = {"file": list_file, "dir": list_dir}
    expected = [entry["path"] for entry in tree_of(packed_file) if wanted[entry["type"]]]
    with fffs.PackedFolder(golden.path(packed_file)) as folder:
        assert list(folder.list(list_file=list_file, list_dir=list_dir, recursive=True)) == expected


def test_the_root_listing_is_the_manifests(golden: Golden, packed_file: str) -> None:
    with fffs.PackedFolder(golden.path(packed_file)) as folder:
        for root in (None, "", "."):
            assert list(folder.list(root)) == golden.files[packed_file]["root_listing"]


def test_each_folder_lists_its_children(golden: Golden, packed_file: str) -> None:
    with fffs.PackedFolder(golden.path(packed_file)) as folder:
        for entry in tree_of(packed_file):
            if entry["type"] == "dir":
                assert list(folder.list(entry["path"])) == entry["children"]


def test_a_recursive_listing_is_relative_to_its_folder(golden: Golden) -> None:
    expected = [entry["path"][2:] for entry in tree_of("packed/tree.ffr") if entry["path"].startswith("a/")]
    with fffs.PackedFolder(golden.path("packed/tree.ffr")) as folder:
        assert list(folder.list("a", recursive=True)) == expected


def test_each_entry_is_what_it_is(golden: Golden, packed_file: str) -> None:
    with fffs.PackedFolder(golden.path(packed_file)) as folder:
        for entry in tree_of(packed_file):
            assert folder.exists(entry["path"])
            assert folder.is_file(entry["path"]) == (entry["type"] == "file")
            assert folder.is_dir(entry["path"]) == (entry["type"] == "dir")


def test_each_file_has_the_listed_content(golden: Golden, packed_file: str) -> None:
    files = [entry for entry in tree_of(packed_file) if entry["type"] == "file"]
    with fffs.PackedFolder(golden.path(packed_file)) as folder:
        assert folder.num_files() == golden.files[packed_file]["num_files"] == len(files)
        for entry in files:
            data = folder.read_one(entry["path"])
            assert (len(data), sha256(data)) == (entry["size"], entry["sha256"])
        batch = folder.read([entry["path"] for entry in files])
    assert [sha256(data) for data in batch] == [entry["sha256"] for entry in files]


def test_the_packs_reader_reads_the_same_records(golden: Golden, packed_file: str) -> None:
    with fffs.PackedFolder(golden.path(packed_file)) as folder:
        assert folder.reader.n == golden.files[packed_file]["n"]
        for entry in tree_of(packed_file):
            if entry["type"] == "file":
                assert sha256(folder.reader.read_one(entry["index"])) == entry["sha256"]


def test_names_that_are_not_utf8_are_found_by_their_bytes(golden: Golden) -> None:
    with fffs.PackedFolder(golden.path("packed/byte-names.ffr")) as folder:
        for entry in golden.files["packed/byte-names.ffr"]["source_tree"]:
            name = bytes.fromhex(entry["path_hex"])
            assert os.fsencode(entry["path"]) == name
            assert folder.exists(os.fsdecode(name))


def test_normal_forms_of_a_name_are_two_names(golden: Golden) -> None:
    with fffs.PackedFolder(golden.path("packed/tree.ffr")) as folder:
        assert folder.exists("\u00e9")
        assert folder.exists("e\u0301")
        names = list(folder.list())
    assert names.index("e\u0301") < names.index("\u00e9")


@pytest.mark.parametrize("path", ["./a", "a/", "a//", "./a/.", "a/./", ".//a"])
def test_paths_are_normalised(golden: Golden, path: str) -> None:
    with fffs.PackedFolder(golden.path("packed/tree.ffr")) as folder:
        assert folder.is_dir(path)
        assert list(folder.list(path)) == list(folder.list("a"))


@pytest.mark.parametrize("path", ["", "."])
def test_the_root_is_a_folder(golden: Golden, path: str) -> None:
    with fffs.PackedFolder(golden.path("packed/tree.ffr")) as folder:
        assert folder.exists(path)
        assert folder.is_dir(path)
        assert not folder.is_file(path)


@pytest.mark.parametrize("path", ["/a", "..", "../a", "nowhere", "a/nowhere", "readme.txt/x", "A", "a\0", "/"])
def test_what_is_not_there_does_not_exist(golden: Golden, path: str) -> None:
    with fffs.PackedFolder(golden.path("packed/tree.ffr")) as folder:
        assert not folder.exists(path)
        assert not folder.is_file(path)
        assert not folder.is_dir(path)
        with pytest.raises(EntryNotFoundError):
            folder.read_one(path)


def test_reading_a_folder_as_a_file_is_refused(golden: Golden) -> None:
    with fffs.PackedFolder(golden.path("packed/tree.ffr")) as folder, pytest.raises(FffsError):
        folder.read_one("a")


def test_listing_a_file_is_refused(golden: Golden) -> None:
    with fffs.PackedFolder(golden.path("packed/tree.ffr")) as folder, pytest.raises(FffsError):
        folder.list("readme.txt")


def test_listing_what_is_not_there_is_refused(golden: Golden) -> None:
    with fffs.PackedFolder(golden.path("packed/tree.ffr")) as folder, pytest.raises(EntryNotFoundError):
        folder.list("nowhere")


def test_read_accepts_a_single_path(golden: Golden) -> None:
    with fffs.PackedFolder(golden.path("packed/tree.ffr")) as folder:
        assert folder.read("readme.txt").tobytes() == folder.read_one("readme.txt").tobytes()


def test_several_packs_are_one_folder_with_the_right_bytes(golden: Golden) -> None:
    names = ["packed/byte-names.ffr", "packed/deep.ffr", "packed/tree.ffr"]
    files = [entry for name in names for entry in tree_of(name) if entry["type"] == "file"]
    with fffs.PackedFolder([golden.path(name) for name in names]) as folder:
        assert sorted(folder.list(list_dir=False, recursive=True)) == sorted(entry["path"] for entry in files)
        assert [sha256(data) for data in folder.read([entry["path"] for entry in files])] == [
            entry["sha256"] for entry in files
        ]


def test_a_plain_record_file_is_no_packed_folder(golden: Golden) -> None:
    for name in ("mixed-100.ffr", "empty.ffr", "one.ffr", "pickled-50.ffr"):
        with pytest.raises(FormatError, match=name):
            fffs.PackedFolder(golden.path(name))


# ---------------------------------------------------------------- damaged variants

METADATA = ["meta-crc", "count", "record-crc", "offset", "truncate-header", "truncate-12"]
UNFINISHED = ["header-zeroed"]
ZEROED_CRC = ["meta-crc-zeroed", "meta-crc-zeroed-and-offset"]
DATA = [
    "data-first-byte",
    "data-last-byte",
    "data-other-record",
    "append",
    "append-other",
    "truncate-tail",
    "truncate-mid-data",
    "truncate-mid-data-earlier",
    "tree-record-byte",
    "tree-magic",
]
TREE = ["tree-record-byte", "tree-magic"]


def records_hit(identity: str) -> dict[int, type[RecordError]]:
    """Return which records an edit damages, with the expected errors, from the offsets of the undamaged file."""
    corruption = GOLDEN.corruptions[identity]
    offsets = GOLDEN.raw(corruption["base"]).offsets
    n = len(offsets) - 1
    hit: dict[int, type[RecordError]] = {}
    for edit in corruption["edits"]:
        if edit["op"] == "xor" and edit["offset"] >= offsets[0]:
            hit |= {i: ChecksumError for i in range(n) if offsets[i] <= edit["offset"] < offsets[i + 1]}
        elif edit["op"] == "append":
            hit[n - 1] = ChecksumError
        elif edit["op"] == "truncate":
            hit |= {i: TruncatedError for i in range(n) if offsets[i + 1] > edit["size"]}
            if offsets[n - 1] > edit["size"]:  # the file ends before the last record begins
                hit[n - 1] = TruncatedError
    return hit


def test_every_corruption_of_the_manifest_is_tested(golden: Golden) -> None:
    assert sorted(METADATA + UNFINISHED + ZEROED_CRC + DATA) == sorted(golden.corruptions)


@pytest.mark.parametrize("identity", METADATA)
def test_damaged_metadata_is_refused_at_open(corrupted: Corrupted, identity: str) -> None:
    path = corrupted(identity)
    with pytest.raises(MetadataError, match=path.name) as caught:
        fffs.FileReader(path)
    assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize("installed", [True, False])
def test_ffrecords_words_are_used_where_it_is_stood_in_for(corrupted: Corrupted, installed: bool) -> None:
    """Programs compare the text of the error. Without the replacement, the message is in plain words."""
    code = (
        "import sys, fffs\n"
        f"{'fffs.install_as_ffrecord()' if installed else ''}\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n        fffs.FileReader(path).read(range(100))\n"
        "    except RuntimeError as error:\n        print(error)\n"
    )
    command = [sys.executable, "-c", code, corrupted("meta-crc"), corrupted("data-first-byte")]
    header, record = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert ("checksum of metadata mismached!" in header) == ("Sample 49: checksum mismached!" in record) == installed
    assert (": checksum mismatch of the header (" in header) == (": checksum mismatch (" in record) != installed


@pytest.mark.parametrize("identity", ["meta-crc", "record-crc", "offset"])
def test_a_wrong_checksum_of_the_header_is_named(corrupted: Corrupted, identity: str) -> None:
    with pytest.raises(RuntimeError, match=r"checksum mismatch of the header|checksum of metadata mismached!"):
        fffs.FileReader(corrupted(identity))


@pytest.mark.parametrize("identity", ["count", "truncate-header", "truncate-12"])
def test_metadata_that_contradicts_itself_is_refused_unchecked_too(corrupted: Corrupted, identity: str) -> None:
    with pytest.raises(MetadataError):
        fffs.FileReader(corrupted(identity), check_data=False)


@pytest.mark.parametrize("identity", ["meta-crc", "record-crc"])
def test_an_unchecked_reader_does_not_mind_a_wrong_checksum(
    golden: Golden, corrupted: Corrupted, identity: str
) -> None:
    with fffs.FileReader(corrupted(identity), check_data=False) as reader:
        assert sha256(b"".join(reader.read(range(reader.n)))) == golden.files["mixed-100.ffr"]["concat_sha256"]


@pytest.mark.parametrize("identity", ["meta-crc", "record-crc", "offset"])
def test_validate_finds_what_an_unchecked_open_let_pass(corrupted: Corrupted, identity: str) -> None:
    with fffs.FileReader(corrupted(identity), check_data=False) as reader, pytest.raises(MetadataError):
        reader.validate()


@pytest.mark.parametrize("n", [100 + 10**6, 2**31, 2**40, 2**62, 2**63 - 1, -1, -(2**63)])
def test_a_count_that_the_file_cannot_hold_is_refused(golden: Golden, tmp_path: Path, n: int, check_data: bool) -> None:
    data = bytearray(golden.bytes("mixed-100.ffr"))
    data[4:12] = n.to_bytes(8, "little", signed=True)
    path = tmp_path / "count.ffr"
    path.write_bytes(data)
    with pytest.raises(MetadataError):
        fffs.FileReader(path, check_data=check_data)


@pytest.mark.parametrize("identity", UNFINISHED)
def test_a_zeroed_header_is_refused_as_unfinished(corrupted: Corrupted, identity: str, check_data: bool) -> None:
    with pytest.raises(UnfinishedFileError):
        fffs.FileReader(corrupted(identity), check_data=check_data)


def test_a_zeroed_metadata_checksum_opens_with_a_warning(golden: Golden, corrupted: Corrupted) -> None:
    with pytest.warns(fffs.LegacyFileWarning):
        reader = fffs.FileReader(corrupted("meta-crc-zeroed"))
    with reader:
        assert sha256(b"".join(reader.read(range(reader.n)))) == golden.files["mixed-100.ffr"]["concat_sha256"]


def test_a_wrong_offset_under_a_zeroed_checksum_hits_both_its_neighbours(golden: Golden, corrupted: Corrupted) -> None:
    with pytest.warns(fffs.LegacyFileWarning):
        reader = fffs.FileReader(corrupted("meta-crc-zeroed-and-offset"))
    with reader:
        assert_exactly_these_fail(reader, golden.raw("mixed-100.ffr").records, {48: ChecksumError, 49: ChecksumError})


def assert_exactly_these_fail(reader: Any, records: list[bytes], hit: dict[int, type[RecordError]]) -> None:
    assert reader.n == len(records)
    for i, content in enumerate(records):
        if i in hit:
            with pytest.raises(hit[i]) as caught:
                reader.read_one(i)
            assert caught.value.record == i
            assert reader.fnames[0] in str(caught.value)
        else:
            assert reader.read_one(i).tobytes() == content, f"record {i}"


@pytest.mark.parametrize("identity", DATA)
def test_damaged_data_hits_exactly_the_records_it_is_in(golden: Golden, corrupted: Corrupted, identity: str) -> None:
    hit = records_hit(identity)
    assert hit
    with fffs.FileReader(corrupted(identity)) as reader:
        assert_exactly_these_fail(reader, golden.raw(golden.corruptions[identity]["base"]).records, hit)


@pytest.mark.parametrize("identity", DATA)
def test_a_batch_without_the_damaged_records_is_good(golden: Golden, corrupted: Corrupted, identity: str) -> None:
    hit = records_hit(identity)
    records = golden.raw(golden.corruptions[identity]["base"]).records
    others = [i for i in range(len(records)) if i not in hit]
    with fffs.FileReader(corrupted(identity)) as reader:
        assert [data.tobytes() for data in reader.read(others)] == [records[i] for i in others]


@pytest.mark.parametrize("identity", DATA)
def test_a_batch_with_a_damaged_record_fails_and_the_next_one_is_good(
    golden: Golden, corrupted: Corrupted, identity: str
) -> None:
    hit = records_hit(identity)
    records = golden.raw(golden.corruptions[identity]["base"]).records
    good = next(i for i in range(len(records) - 1, -1, -1) if i not in hit and records[i])
    bad = min(hit)
    with fffs.FileReader(corrupted(identity)) as reader:
        for _ in range(3):
            with pytest.raises(hit[bad]) as caught:
                reader.read([good, bad, good])
            assert caught.value.record == bad
            assert [data.tobytes() for data in reader.read([good, 0, good])] == [records[i] for i in (good, 0, good)]


@pytest.mark.parametrize("identity", ["data-first-byte", "data-last-byte"])
def test_a_checksum_error_tells_all(golden: Golden, corrupted: Corrupted, identity: str) -> None:
    path = corrupted(identity)
    listed = golden.files["mixed-100.ffr"]["records"][49]
    with fffs.FileReader([golden.path("one.ffr"), path]) as reader:
        with pytest.raises(RuntimeError, match=r"checksum mism(atch|ached!)") as caught:
            reader.read_one(50)
    error = caught.value
    assert isinstance(error, ChecksumError)
    assert (error.path, error.record, error.number) == (os.fspath(path), 49, 50)
    assert error.expected == int(listed["crc32"], 16) != error.actual


@pytest.mark.parametrize("identity", [name for name in DATA if not name.startswith("truncate")])
def test_an_unchecked_reader_gives_damaged_bytes_as_they_are(
    golden: Golden, corrupted: Corrupted, identity: str
) -> None:
    path = corrupted(identity)
    offsets = golden.raw(golden.corruptions[identity]["base"]).offsets
    data = path.read_bytes()
    offsets[-1] = len(data)
    with fffs.FileReader(path, check_data=False) as reader:
        for i in records_hit(identity):
            assert reader.read_one(i).tobytes() == data[offsets[i] : offsets[i + 1]]


@pytest.mark.parametrize("identity", [name for name in DATA if name.startswith("truncate")])
def test_a_record_past_the_end_is_an_error_unchecked_too(golden: Golden, corrupted: Corrupted, identity: str) -> None:
    with fffs.FileReader(corrupted(identity), check_data=False) as reader:
        assert_exactly_these_fail(reader, golden.raw("mixed-100.ffr").records, records_hit(identity))


@pytest.mark.parametrize("identity", TREE)
def test_a_damaged_tree_is_refused_as_a_packed_folder(corrupted: Corrupted, identity: str) -> None:
    path = corrupted(identity)
    with pytest.raises((FormatError, ChecksumError), match=path.name):
        fffs.PackedFolder(path)


def test_a_damaged_tree_magic_is_refused_unchecked_too(corrupted: Corrupted) -> None:
    with pytest.raises(FormatError):
        fffs.PackedFolder(corrupted("tree-magic"), check_data=False)


def test_a_damaged_file_in_a_pack_leaves_its_siblings_readable(golden: Golden, tmp_path: Path) -> None:
    name = "packed/tree.ffr"
    damaged = bytearray(golden.bytes(name))
    damaged[golden.raw(name).offsets[4]] ^= 1
    path = tmp_path / "pack.ffr"
    path.write_bytes(damaged)
    with fffs.PackedFolder(path) as folder:
        for entry in tree_of(name):
            if entry.get("index") == 4:
                with pytest.raises(ChecksumError):
                    folder.read_one(entry["path"])
            elif entry["type"] == "file":
                assert sha256(folder.read_one(entry["path"])) == entry["sha256"]
