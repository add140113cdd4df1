"""Converting: records keep their bytes in every format, hostile archives are refused, results are all or nothing."""

from __future__ import annotations

import bz2
import errno
import gzip
import itertools
import json
import lzma
import os
import shutil
import stat
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from archives import END, extended, padded, tar_file, tar_folder, tar_header, zip_folder, zip_of
from builders import MIB, differences, small_disk, snapshot, split_records, stretched
from frame_files import OFRECORD, TFRECORD
from golden_files import GOLDEN
from granular_golden import DATASETS, FILES, matches_row
from granular_golden import FOLDER as GRANULAR
from hypothesis import given
from hypothesis import strategies as st
from inside import IN_PLACE, AtomicFile, format_named, load_source, names, record_sources, sidecars, streams, verifying
from inside import cut_parts as cut
from test_cli import run
from test_pack import tree_snapshot

import fffs
from fffs import granular
from fffs.errors import (
    ChecksumError,
    FormatError,
    MetadataError,
    RecordError,
    SourceChangedError,
    SourceNotFoundError,
    UnfinishedFileError,
    UnsupportedError,
    UsageError,
    WriteError,
)

NAMES = {"ffrecord": "records.ffr", "tfrecord": "records.tfrecord", "ofrecord": "part-00000", "bag": "records.bag"}
ODD = ("legacy", "unfinished", "parts")
WHOLE = [name for name in GOLDEN.files if name.endswith(".ffr") and not name.startswith(ODD)]
RECORDS = [b"", b"\n\0one", b"x" * 511, stretched(100_000, 2), stretched(3 * MIB + 5, 3), b"", b"last"]
NO_WARNING: Callable[[str], None] = pytest.fail


def write_ffr(path: Path, records: list[bytes]) -> Path:
    with fffs.FileWriter(path, len(records)) as writer:
        for record in records:
            writer.write_one(record)
    return path


def records_of(path: Path | str, **options: Any) -> list[bytes]:
    with fffs.open(path, **options) as reader:
        return [bytes(record) for record in reader.read(range(len(reader)))]


@pytest.fixture(autouse=True)
def _threads_end_with_the_conversion(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A generator that the garbage collector closes may wait for ever for its threads."""
    pools: list[Any] = []

    class Noted(record_sources.ThreadPoolExecutor):  # type: ignore[misc]
        def __init__(self, threads: int) -> None:
            super().__init__(threads)
            pools.append(self)

    monkeypatch.setattr(record_sources, "ThreadPoolExecutor", Noted)
    real = fffs.convert

    def convert(*arguments: Any, **options: Any) -> Any:
        try:
            return real(*arguments, **options)
        except BaseException:
            assert all(pool._shutdown for pool in pools)
            raise

    monkeypatch.setattr(fffs, "convert", convert)
    yield
    assert all(pool._shutdown for pool in pools)


def left_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


# ---------------------------------------------------------------- record files


@pytest.mark.parametrize("first", NAMES)
@pytest.mark.parametrize("second", NAMES)
def test_records_are_the_same_in_every_format(tmp_path: Path, first: str, second: str) -> None:
    source = write_ffr(tmp_path / "source.ffr", RECORDS)
    one, two = tmp_path / "one" / NAMES[first], tmp_path / "two" / NAMES[second]
    one.parent.mkdir()
    two.parent.mkdir()
    done = fffs.convert(source, one, verify=True, warn=lambda _: None)
    assert done == ("ffrecord", first, len(RECORDS), sum(map(len, RECORDS)), 1)
    # The first record of this OFRecord file is empty, so only its name shows the format.
    assert fffs.convert(one, two, verify=True, warn=lambda _: None).source == first
    fffs.convert(two, tmp_path / "back.ffr", verify=True)
    assert (tmp_path / "back.ffr").read_bytes() == source.read_bytes()
    assert split_records(source.read_bytes()) == RECORDS


@pytest.mark.parametrize("form", NAMES)
@pytest.mark.parametrize("name", WHOLE)
def test_golden_record_files_come_back_as_they_were(tmp_path: Path, name: str, form: str) -> None:
    there = tmp_path / NAMES[form]
    fffs.convert(GOLDEN.path(name), there, warn=lambda _: None)
    fffs.convert(there, tmp_path / "back.ffr", verify=True)
    assert (tmp_path / "back.ffr").read_bytes() == GOLDEN.bytes(name)


@pytest.mark.parametrize("name", TFRECORD.single(compression=None))
def test_golden_tfrecord_files_come_back_as_they_were(tmp_path: Path, name: str) -> None:
    fffs.convert(TFRECORD.path(name), tmp_path / "there.ffr", verify=True)
    fffs.convert(tmp_path / "there.ffr", tmp_path / "back.tfrecord")
    assert (tmp_path / "back.tfrecord").read_bytes() == TFRECORD.bytes(name)
    assert split_records((tmp_path / "there.ffr").read_bytes()) == TFRECORD.records(name)


def test_compressed_tfrecord_files_are_read_in_sequence(tmp_path: Path) -> None:
    expected = TFRECORD.records("example.tfrecord")
    for name in ("example.tfrecord.gz", "example.tfrecord.zlib"):
        done = fffs.convert(TFRECORD.path(name), tmp_path / f"{name}.ffr", verify=True)
        assert done.source == "tfrecord"
        assert split_records((tmp_path / f"{name}.ffr").read_bytes()) == expected


def test_golden_parts_of_ofrecord_become_one_file(tmp_path: Path) -> None:
    fffs.convert(OFRECORD.path("unpadded"), tmp_path / "all.ffr", verify=True)
    parts = [OFRECORD.records(f"unpadded/part-{k}") for k in range(12)]
    assert split_records((tmp_path / "all.ffr").read_bytes()) == list(itertools.chain(*parts))


def test_shards_are_found_by_their_folder_pattern_and_stem(tmp_path: Path) -> None:
    folder = TFRECORD.path("shards")
    for k, source in enumerate((folder, folder / "demo-train.tfrecord@3", folder / "demo-train.tfrecord")):
        assert fffs.convert(source, tmp_path / f"{k}.ffr").source == "tfrecord"
    assert len({(tmp_path / f"{k}.ffr").read_bytes() for k in range(3)}) == 1


def test_a_bag_in_layout_v3_has_its_table_beside_it(tmp_path: Path) -> None:
    source = write_ffr(tmp_path / "source.ffr", RECORDS)
    fffs.convert(source, tmp_path / "x.bag", layout="v3", verify=True)
    ends = list(itertools.accumulate(map(len, RECORDS)))
    assert (tmp_path / "x.idx").read_bytes() == struct.pack(f"<{len(ends)}Q", *ends)
    assert (tmp_path / "x.bag").read_bytes() == b"".join(RECORDS)
    with pytest.raises(UsageError, match=r"x\.bag: already exists; --force"):
        fffs.convert(source, tmp_path / "x.bag", layout="v3")
    fffs.convert(write_ffr(tmp_path / "other.ffr", [b"other"]), tmp_path / "x.bag", layout="v3", force=True)
    assert records_of(tmp_path / "x.bag") == [b"other"]


def test_a_bagz_is_decompressed(tmp_path: Path) -> None:
    zstd = pytest.importorskip("backports.zstd" if sys.version_info < (3, 14) else "compression.zstd")
    frames = [zstd.compress(record) if record else b"" for record in RECORDS]
    ends = itertools.accumulate(map(len, frames))
    (tmp_path / "x.bagz").write_bytes(b"".join(frames) + struct.pack(f"<{len(frames)}Q", *ends))
    fffs.convert(tmp_path / "x.bagz", tmp_path / "x.ffr", verify=True)
    assert split_records((tmp_path / "x.ffr").read_bytes()) == RECORDS


@pytest.mark.parametrize("batch", [1, 600, 1 << 20])
def test_the_size_of_batches_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    monkeypatch.setattr(record_sources, "BATCH_BYTES", batch)
    source = write_ffr(tmp_path / "source.ffr", RECORDS * 3)
    fffs.convert(source, tmp_path / "x.tfrecord", verify=True)
    fffs.convert(gzipped(tmp_path / "x.tfrecord"), tmp_path / "x.ffr", verify=True)
    assert (tmp_path / "x.ffr").read_bytes() == source.read_bytes()


def gzipped(path: Path) -> Path:
    target = path.with_name(path.name + ".gz")
    target.write_bytes(gzip.compress(path.read_bytes()))
    return target


def test_empty_ofrecords_are_warned_of_and_very_many_refused(tmp_path: Path) -> None:
    warnings: list[str] = []
    fffs.convert(write_ffr(tmp_path / "few.ffr", [b"", b"a", b""]), tmp_path / "part-0", warn=warnings.append)
    assert warnings == [f"{tmp_path / 'few.ffr'}: 2 empty records: OneFlow stops reading a file at such a record"]
    many = write_ffr(tmp_path / "many.ffr", [b"a", *[b""] * 65_537])
    with pytest.raises(UnsupportedError, match="more than 65536 empty records in a row"):
        fffs.convert(many, tmp_path / "part-1")
    assert left_in(tmp_path) == ["few.ffr", "many.ffr", "part-0"]


# Runs the command, then prints its peak memory: VmHWM does not include that of the parent.
MEASURED = """
import re, sys
from fffs.cli import program
from fffs.converting import verifying
from fffs.packing import names
names.FREE, names.available_memory = 64 << 20, lambda: 0  # as if there were so little
code = program.run(sys.argv[1:])
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1], "KiB")
sys.exit(code)
"""


def measured(*arguments: str | Path) -> tuple[int, str, int]:
    """Run a command in a process of its own. Returns its exit code, stderr and peak memory in MiB."""
    done = subprocess.run([sys.executable, "-c", MEASURED, *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr, int(done.stdout.split()[-2]) >> 10


def test_a_large_record_takes_the_memory_of_one(tmp_path: Path) -> None:
    size = 128 * MIB
    large = np.zeros(size, np.uint8)
    write_ffr(tmp_path / "small.ffr", [b"a"])
    write_ffr(tmp_path / "large.ffr", [b"a", large, large, b"b"])  # type: ignore[list-item]
    _, _, least = measured("convert", "-q", tmp_path / "small.ffr", tmp_path / "small.tfrecord")
    code, _, most = measured("convert", "-q", tmp_path / "large.ffr", tmp_path / "large.tfrecord")
    assert code == 0
    assert most - least < 1.5 * size / MIB
    for target in ("other.tfrecord", "large.tar", "set"):
        options = ("--verify", *(("--to", "granular") if target == "set" else ()))
        code, _, most = measured("convert", "-q", *options, tmp_path / "large.ffr", tmp_path / target)
        assert code == 0
        assert most - least < 2.5 * size / MIB, target


def test_the_source_stays_as_it_is_and_may_not_be_the_destination(tmp_path: Path) -> None:
    source = write_ffr(tmp_path / "x.ffr", RECORDS)
    with pytest.raises(UsageError, match="is the source itself"):
        fffs.convert(source, source, force=True)
    assert split_records(source.read_bytes()) == RECORDS
    parts = tmp_path / "parts"
    parts.mkdir()
    for k in range(2):
        shutil.copy(source, parts / f"PART_0000{k}.ffr")
    with pytest.raises(UsageError, match="is the source itself, or a part of it"):
        fffs.convert(parts, parts / "PART_00000.ffr", force=True)
    assert split_records((parts / "PART_00000.ffr").read_bytes()) == RECORDS


def test_what_a_data_set_or_an_archive_is_made_of_may_not_be_replaced_under_any_name(tmp_path: Path) -> None:
    records = write_ffr(tmp_path / "x.ffr", [b"a", b"b"])
    fffs.convert(records, tmp_path / "set", to="granular")
    fffs.convert(records, tmp_path / "old", to="granular", layout="v3")
    fffs.convert(records, tmp_path / "shards", to="granular", parts=2)
    fffs.convert(records, tmp_path / "v3.bag", layout="v3")
    (tmp_path / "x.tar").write_bytes(tar_file(b"a") + END)
    (tmp_path / "alias").symlink_to("set")
    for name, target in (
        ("hard.bag", "set/data.bag"),
        ("hard.ffr", "set/refs.bag"),
        ("part-0", "old/data.idx"),
        ("spec.tfrecord", "set/spec.json"),
        ("hard.tar.ffr", "x.tar"),
        ("table.ffr", "v3.idx"),
    ):
        (tmp_path / name).hardlink_to(tmp_path / target)
    (tmp_path / "link.ffr").symlink_to("x.tar")
    (tmp_path / "soft.bag").symlink_to("set/data.bag")
    before = contents_of(tmp_path)
    for source, target, options in (
        ("set", "set/data.bag", {}),
        ("set", "alias/new.bag", {}),
        ("alias", "set/new.bag", {}),
        ("set", "set/new", {"to": "granular"}),
        ("shards", "shards/000000/data.bag", {}),
        ("shards", "shards/000002", {"to": "granular"}),
        ("shards", "shards/missing/data.bag", {}),
        ("set", "hard.bag", {}),
        ("set", "soft.bag", {}),
        ("set", "hard.ffr", {"to": "bag"}),
        ("set", "spec.tfrecord", {}),
        ("old", "part-0", {}),
        ("x.tar", "hard.tar.ffr", {}),
        ("x.tar", "link.ffr", {}),
        ("v3.bag", "table.ffr", {}),
        ("v3.bag", "v3.idx", {"to": "ffrecord"}),
    ):
        with pytest.raises(UsageError, match=r"is the source itself, or a part of it|is in the source, "):
            fffs.convert(tmp_path / source, tmp_path / target, force=True, verify=True, **options)
        assert contents_of(tmp_path) == before, (source, target)


def test_checksums_that_go_with_a_file_that_is_replaced_are_not_the_source(tmp_path: Path) -> None:
    source = write_ffr(tmp_path / "y.ffr", [b"a"]).rename(tmp_path / "x.ffr.fffs-crc")
    with pytest.raises(UsageError, match="is the source itself"):
        fffs.convert(source, tmp_path / "x.ffr")
    assert left_in(tmp_path) == ["x.ffr.fffs-crc"]


SINGLE = ("part-0", "x.bag", "v3.bag", "x.ffr", "x.tfrecord", "y.tfrecord.gz", "x.tar")


TIMES = itertools.count(1)


def rewrite_once(path: Path) -> Callable[[int, int], None]:
    """Return a progress callback that writes to a source after its first batch was read."""
    done: list[bool] = []

    def progress(_done: int, _total: int) -> None:
        if not done:
            done.append(True)
            content = path.read_bytes()
            with path.open("r+b") as file:
                file.write(content)
            mtime = next(TIMES)
            os.utime(path, ns=(mtime, mtime))  # with a clock of any resolution

    return progress


@pytest.mark.parametrize("name", [*SINGLE, "parts", "set", "old", "shards"])
def test_a_source_that_changes_while_it_is_converted_gives_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """All records keep their lengths, so that without checksums a mixture would look valid."""
    source = write_ffr(tmp_path / "source.ffr", [b"%04d" % k for k in range(20)])
    for there, options in (("set", {"to": "granular"}), ("old", {"to": "granular", "layout": "v3"})):
        fffs.convert(source, tmp_path / there, **options)
    fffs.convert(source, tmp_path / "shards", to="granular", parts=2)
    fffs.convert(source, tmp_path / "parts", to="ofrecord", parts=2)
    for there in ("part-0", "x.bag", "x.ffr", "x.tfrecord"):
        fffs.convert(source, tmp_path / there)
    fffs.convert(source, tmp_path / "v3.bag", layout="v3")
    (tmp_path / "y.tfrecord.gz").write_bytes(gzip.compress((tmp_path / "x.tfrecord").read_bytes()))
    (tmp_path / "x.tar").write_bytes(b"".join(tar_file(b"%d" % k) for k in range(20)) + END)
    monkeypatch.setattr(record_sources, "BATCH_BYTES", 8)
    path = tmp_path / name
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    if name == "v3.bag":
        files.append(tmp_path / "v3.idx")
    for file in files:
        for target, options in (("out.ffr", {}), ("out", {"to": "granular"}), ("out", {"to": "tfrecord", "parts": 3})):
            if name == "x.tar" and target != "out.ffr":
                continue
            with pytest.raises(SourceChangedError, match=f"^{file}: (its modification time or size )?changed while"):
                fffs.convert(path, tmp_path / target, progress=rewrite_once(file), **options)
            assert not [left for left in left_in(tmp_path) if left.startswith(("out", "."))]


def renamed_by_a_link(path: Path) -> None:
    os.link(path, path.with_name("link"))
    path.unlink()
    path.with_name("link").rename(path)


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def overwrite(path: Path) -> None:
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(1, 1))


def replace_by_one_of_another_time(path: Path) -> None:
    shutil.copy(path, path.with_name("link"))
    os.utime(path.with_name("link"), ns=(1, 1))
    path.with_name("link").rename(path)


def replace_by_one_of_another_size(path: Path) -> None:
    other, status = path.with_name("link"), path.stat()
    other.write_bytes(path.read_bytes() + b"more")
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.rename(path)


def replace_by_one_like_it(path: Path) -> None:
    shutil.copy2(path, path.with_name("link"))
    path.with_name("link").rename(path)


UNCHANGING = {"mode": lambda path: path.chmod(0o400), "link": lambda path: os.link(path, path.with_name("link"))}
UNCHANGING["rename"] = renamed_by_a_link
CHANGING = [
    append,
    overwrite,
    replace_by_one_of_another_time,
    replace_by_one_of_another_size,
    replace_by_one_like_it,
]


def once(act: Callable[[Path], object], path: Path) -> Callable[[int, int], None]:
    """Return a progress callback that calls ``act`` on a source after some of it was read."""
    left = [act]
    return lambda done, _: left.pop()(path) if left and done else None


@pytest.mark.parametrize("name", ["part-0", "x.bag", "x.ffr", "x.tar"])
def test_a_source_changes_by_its_size_or_modification_time_and_not_by_names_or_modes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = tmp_path / "in" / name
    path.parent.mkdir()
    records = [b"%04d" % k for k in range(20)]
    if name == "x.tar":
        path.write_bytes(b"".join(tar_file(b"%d" % k) for k in range(20)) + END)
    else:
        fffs.convert(write_ffr(tmp_path / "x.ffr", records), path)
    monkeypatch.setattr(record_sources, "BATCH_BYTES", 8)
    for what, act in UNCHANGING.items():
        fffs.convert(path, tmp_path / f"{what}.ffr", progress=once(act, path))
        assert len(records_of(tmp_path / f"{what}.ffr")) >= 20
        (path.with_name("link")).unlink(missing_ok=True)
    path.chmod(0o600)
    good = path.read_bytes()
    # Only the open file of an archive is read, so a new file of its name is not noticed.
    for act in CHANGING[:2] if name == "x.tar" else CHANGING:
        with pytest.raises(SourceChangedError, match=rf"{name}: .*changed"):
            fffs.convert(path, tmp_path / "out.ffr", progress=once(act, path))
        path.write_bytes(good)
    assert "out.ffr" not in left_in(tmp_path)


# ---------------------------------------------------------------- parts


def test_parts_are_named_as_their_readers_expect(tmp_path: Path) -> None:
    source = write_ffr(tmp_path / "x.ffr", [b"%d" % k for k in range(10)])
    names = {
        "ffrecord": [f"ffrecord-{k:05}-of-00003.ffr" for k in range(3)],
        "ofrecord": [f"part-{k:05}" for k in range(3)],
        "tfrecord": [f"tfrecord-{k:05}-of-00003.tfrecord" for k in range(3)],
    }
    for form, expected in names.items():
        done = fffs.convert(source, tmp_path / form, to=form, parts=3, verify=True)
        assert done.parts == 3
        assert left_in(tmp_path / form) == expected
        assert records_of(tmp_path / form, format=form) == [b"%d" % k for k in range(10)]
        assert [
            stat.S_IMODE((tmp_path / form).stat().st_mode),
            os.stat(tmp_path / form / expected[0]).st_mode & 0o777,
        ] == [
            0o755,
            0o644,
        ]
        fffs.convert(tmp_path / form, tmp_path / f"{form}.ffr")
        assert (tmp_path / f"{form}.ffr").read_bytes() == source.read_bytes()


@given(st.lists(st.integers(0, 20), max_size=30), st.integers(1, 40))
def test_parts_have_the_number_asked_for_and_at_least_a_record_each(lengths: list[int], parts: int) -> None:
    bounds = [0, *cut(np.array(lengths, np.int64), parts, None), len(lengths)]
    assert len(bounds) - 1 == max(min(parts, len(lengths)), 1)
    assert all(a < b for a, b in itertools.pairwise(bounds)) or not lengths


@given(st.lists(st.integers(0, 20), max_size=30), st.integers(1, 40))
def test_parts_are_as_large_as_allowed_and_no_larger(lengths: list[int], size: int) -> None:
    bounds = [0, *cut(np.array(lengths, np.int64), None, size), len(lengths)]
    for a, b in itertools.pairwise(bounds):
        assert sum(lengths[a:b]) <= size or b - a == 1
        assert b == len(lengths) or sum(lengths[a : b + 1]) > size


def test_parts_need_a_new_folder_and_a_format(tmp_path: Path) -> None:
    source = write_ffr(tmp_path / "x.ffr", RECORDS)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept").touch()
    for force in (False, True):
        with pytest.raises(UsageError, match=r"full: already exists and is not empty \(it has kept\); name a new"):
            fffs.convert(source, tmp_path / "full", to="ffrecord", parts=2, force=force)
    assert fffs.convert(source, tmp_path / "same", parts=2).destination == "ffrecord"
    assert fffs.convert(tmp_path / "same", tmp_path / "again", part_size=1).destination == "ffrecord"
    with pytest.raises(UsageError, match="choose one with --to"):
        fffs.convert(source, tmp_path / "new")
    with pytest.raises(UsageError, match="Bags have no parts"):
        fffs.convert(source, tmp_path / "new", to="bag", parts=2)
    with pytest.raises(UsageError, match="not both"):
        fffs.convert(source, tmp_path / "new", to="ffrecord", parts=2, part_size=3)
    assert left_in(tmp_path) == ["again", "full", "same", "x.ffr"]
    assert left_in(tmp_path / "full") == ["kept"]


def test_parts_of_a_packed_folder_would_lose_its_names(tmp_path: Path) -> None:
    pack = GOLDEN.path("packed/tree.ffr")
    with pytest.raises(UsageError, match="--from ffrecord"):
        fffs.convert(pack, tmp_path / "parts", to="tfrecord", parts=2)
    for options in ({"part_size": 9}, {"from_": "ffrecord", "parts": 2}):
        with pytest.raises(UsageError, match="names would lead to wrong records; omit --parts and --part-size"):
            fffs.convert(pack, tmp_path / "parts", to="ffrecord", **options)
    with pytest.raises(UsageError, match="its names would be lost"):
        fffs.plan_convert(pack, tmp_path / "parts", 2, to="ffrecord", from_="ffrecord")
    assert fffs.convert(pack, tmp_path / "parts", from_="ffrecord", to="tfrecord", parts=2, verify=True).parts == 2


def test_the_names_of_packed_folders_never_lead_to_records_of_others(tmp_path: Path) -> None:
    for name in "ab":
        make(tmp_path / name, {f"{name}{k}": name.encode() * (k + 1) for k in range(3)})
        (tmp_path / "packs").mkdir(exist_ok=True)
        fffs.pack_folder(tmp_path / name, tmp_path / f"packs/{name}.ffr")
    (tmp_path / "mixed").mkdir()
    write_ffr(tmp_path / "mixed/0.ffr", [b"plain"])
    shutil.copy(tmp_path / "packs/b.ffr", tmp_path / "mixed/1.ffr")
    for source in ("packs", "mixed"):
        for options in ({}, {"from_": "ffrecord"}):
            with pytest.raises(UsageError, match="names would lead to wrong records; convert each one separately"):
                fffs.convert(tmp_path / source, tmp_path / "merged.ffr", **options)
        with pytest.raises(UsageError, match="--from ffrecord converts the records"):
            fffs.convert(tmp_path / source, tmp_path / "x.tfrecord")
        fffs.convert(tmp_path / source, tmp_path / f"{source}.tfrecord", from_="ffrecord", verify=True)
        # This looks like a packed folder, except that its tree is for another number of records.
        fffs.convert(tmp_path / f"{source}.tfrecord", tmp_path / f"{source}.ffr")
        with pytest.raises(MetadataError, match=r"its tree is for 3 records, but \d precede it"):
            fffs.PackedFolder(tmp_path / f"{source}.ffr")
        assert run("ls", tmp_path / f"{source}.ffr").code == MetadataError.exit_code
    # A single source may be converted by way of another format.
    warnings: list[str] = []
    fffs.convert(tmp_path / "packs/b.ffr", tmp_path / "b.tfrecord", verify=True, warn=warnings.append)
    assert warnings == [f"{tmp_path}/packs/b.ffr: the last record keeps the names of the files, for converting back"]
    fffs.convert(tmp_path / "b.tfrecord", tmp_path / "back.ffr", verify=True, warn=pytest.fail)
    assert (tmp_path / "back.ffr").read_bytes() == (tmp_path / "packs/b.ffr").read_bytes()


# ---------------------------------------------------------------- data sets

SPECS = ("spec.json", "000000/spec.json")
WITH_SPEC = [path for path in DATASETS if any((GRANULAR / path / spec).exists() for spec in SPECS)]


def rows_of(path: Path, version: str) -> list[dict[str, Any]]:
    decoders = granular.decoders_0_6 if version == "0.6.0" else granular.decoders
    kind = granular.ShardedDatasetReader if (path / "000000").is_dir() else granular.DatasetReader
    with kind(path, decoders) as reader:
        return list(reader.read(range(len(reader))))


@pytest.mark.parametrize("path", WITH_SPEC)
def test_golden_data_sets_go_to_a_packed_folder_and_back(tmp_path: Path, path: str) -> None:
    entry = FILES[path]
    version = path.split("/")[0].removeprefix("granular-")
    fffs.convert(GRANULAR / path, tmp_path / "there.ffr", verify=True)
    has_sequences = any(kind.endswith("[]") for kind in spec_of(GRANULAR / path).values())
    for layout in ("v1",) if has_sequences else ("v1", "v3"):
        fffs.convert(tmp_path / "there.ffr", tmp_path / layout, layout=layout, verify=True)
        rows = rows_of(tmp_path / layout, version)
        assert len(rows) == len(entry["points"])
        assert all(matches_row(row, told) for row, told in zip(rows, entry["points"], strict=True))
        assert spec_of(tmp_path / layout) == spec_of(GRANULAR / path)


def spec_of(path: Path) -> dict[str, str]:
    file = path / "spec.json"
    found: dict[str, str] = json.loads((file if file.exists() else path / "000000" / "spec.json").read_bytes())
    return found


def test_a_data_set_is_shown_as_a_file_for_each_blob(tmp_path: Path) -> None:
    with granular.DatasetWriter(tmp_path / "set", {"id": "bytes", "tags": "utf8[]"}) as writer:
        writer.append({"id": b"zero", "tags": ["a", "b"]})
        writer.append({"id": b"one", "tags": []})
    fffs.convert(tmp_path / "set", tmp_path / "set.ffr", verify=True)
    with fffs.PackedFolder(tmp_path / "set.ffr") as pack:
        assert pack.list(recursive=True) == [
            "000000",
            "000000/id",
            "000000/tags",
            "000000/tags/000000",
            "000000/tags/000001",
            "000001",
            "000001/id",
            "000001/tags",
            "spec.json",
        ]
        assert bytes(pack.read_one("000000/tags/000001")) == b"b"
        assert json.loads(bytes(pack.read_one("spec.json"))) == {"id": "bytes", "tags": "utf8[]"}
    with pytest.raises(UsageError, match="layout v3 has none"):
        fffs.convert(tmp_path / "set.ffr", tmp_path / "v3", layout="v3")
    fffs.convert(tmp_path / "set.ffr", tmp_path / "again", verify=True)
    assert contents_of(tmp_path / "again") == contents_of(tmp_path / "set")
    assert left_in(tmp_path) == ["again", "set", "set.ffr"]


def contents_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("layout", ["v1", "v3"])
def test_records_become_a_data_set_of_one_key_also_in_shards(tmp_path: Path, layout: str) -> None:
    source = write_ffr(tmp_path / "x.ffr", RECORDS)
    fffs.convert(source, tmp_path / "one", to="granular", layout=layout, verify=True)
    fffs.convert(source, tmp_path / "some", to="granular", layout=layout, key="image", parts=3, verify=True)
    assert [row["data"] for row in rows_of(tmp_path / "one", "")] == RECORDS
    assert [row["image"] for row in rows_of(tmp_path / "some", "")] == RECORDS
    assert left_in(tmp_path / "some") == ["000000", "000001", "000002"]
    fffs.convert(tmp_path / "some", tmp_path / "whole", layout="v1" if layout == "v3" else "v3", verify=True)
    assert [row["image"] for row in rows_of(tmp_path / "whole", "")] == RECORDS


@pytest.mark.parametrize("layout", ["v1", "v3"])
def test_a_data_set_of_one_key_becomes_records_again(tmp_path: Path, layout: str) -> None:
    source = write_ffr(tmp_path / "x.ffr", RECORDS)
    fffs.convert(source, tmp_path / "set", to="granular", layout=layout)
    for name in ("x.tfrecord", "x.bag", "part-0"):
        assert fffs.convert(tmp_path / "set", tmp_path / name, verify=True, warn=lambda _: None).items == len(RECORDS)
        assert records_of(tmp_path / name) == RECORDS
    with granular.DatasetWriter(tmp_path / "two", {"a": "bytes", "b": "bytes"}) as writer:
        writer.append({"a": b"a", "b": b"b"})
    with granular.DatasetWriter(tmp_path / "many", {"a": "bytes[]"}) as writer:
        writer.append({"a": [b"a", b"b"]})
    for folder in ("two", "many"):
        with pytest.raises(UsageError, match="a data set of several keys, or with sequences, can only become a packed"):
            fffs.convert(tmp_path / folder, tmp_path / "y.tfrecord")
    with pytest.raises(UsageError) as info:
        fffs.convert(tmp_path / "many", tmp_path / "v3", to="granular", layout="v3")
    assert str(info.value).startswith(f"{tmp_path}/v3") and ".fffs-tmp" not in str(info.value)


def test_names_of_very_many_parts_are_sorted_as_they_are_numbered() -> None:
    for form, name, shorter in (
        ("ffrecord", "x-000007-of-100001.ffr", "x-00007-of-100000.ffr"),
        ("ofrecord", "part-000007", "part-00007"),
    ):
        part_name = format_named(form).part_name
        assert part_name
        assert part_name("x", 7, 100_001) == name
        assert part_name("x", 7, 100_000) == shorter
        names = [part_name("x", k, 100_001) for k in (0, 9, 10_001, 99_999, 100_000)]
        assert names == sorted(names)


def test_shards_in_a_folder_whose_name_begins_with_a_dot_are_found(tmp_path: Path) -> None:
    source = write_ffr(tmp_path / "x.ffr", [b"one", b"two"])
    for name in (".out", "..."):
        fffs.convert(source, tmp_path / name, to="tfrecord", parts=2, verify=True)
        assert records_of(tmp_path / name) == [b"one", b"two"]


@pytest.mark.parametrize("through_a_pack", [False, True])
def test_a_type_that_looks_like_a_sequence_does_not_become_one(tmp_path: Path, through_a_pack: bool) -> None:
    make(
        tmp_path / "3",
        {"spec.json": b'{"data":"utf8[]"}', "data.bag": b"zeroone", "data.idx": struct.pack("<QQ", 4, 7)},
    )
    source = tmp_path / "3"
    if through_a_pack:
        source = tmp_path / "3.ffr"
        fffs.convert(tmp_path / "3", source, verify=True)
    for parts in (None, 2):
        with pytest.raises(UsageError, match=r"1: 'data' of .* has one blob per row, but in layout v1 .* a sequence"):
            fffs.convert(source, tmp_path / "1", to="granular", layout="v1", parts=parts)
    assert left_in(tmp_path) == ["3", "3.ffr"][: 1 + through_a_pack]


def test_only_the_tree_of_a_data_set_becomes_one(tmp_path: Path) -> None:
    with pytest.raises(MetadataError, match=r"it has no spec\.json"):
        fffs.convert(GOLDEN.path("packed/tree.ffr"), tmp_path / "x", to="granular")
    spec = b'{"k": "bytes"}'
    bad: list[tuple[dict[str, Any], str]] = [
        ({"000000": {"other": b""}}, "the keys of row 0 differ from spec.json"),
        ({"000001": {"k": b""}}, "are not numbered"),
        ({"000000": b""}, "the keys of row 0 differ from spec.json"),
        ({"000000": {"k": {"000000": b""}}}, "is not of type bytes"),
        ({"more": b""}, "are not numbered"),
    ]
    for k, (tree, problem) in enumerate(bad):
        folder = tmp_path / f"bad-{k}"
        make(folder, {**tree, "spec.json": spec})
        fffs.convert(folder, tmp_path / f"{k}.ffr")
        with pytest.raises(MetadataError, match=problem):
            fffs.convert(tmp_path / f"{k}.ffr", tmp_path / "x", to="granular")
    assert not (tmp_path / "x").exists()


def make(folder: Path, tree: dict[str, Any]) -> None:
    folder.mkdir()
    for name, value in tree.items():
        if isinstance(value, dict):
            make(folder / name, value)
        else:
            (folder / name).write_bytes(value)


def test_rows_that_share_blobs_are_refused(tmp_path: Path) -> None:
    with granular.DatasetWriter(tmp_path / "set", {"k": "bytes[]"}) as writer:
        for k in range(3):
            writer.append({"k": [b"%d" % k]})
    refs = (tmp_path / "set" / "refs.bag").read_bytes()
    (tmp_path / "set" / "refs.bag").write_bytes(refs.replace(b"\x92\x01\x01", b"\x92\x00\x03"))
    with pytest.raises(MetadataError, match=r"refs\.bag: its sequences have 5 blobs, but only 3 exist"):
        fffs.convert(tmp_path / "set", tmp_path / "x.ffr")
    for name, count in (("three", 3), ("one", 1)):
        with granular.DatasetWriter(tmp_path / name, {"k": "bytes"}) as writer:
            for _ in range(count):
                writer.append({"k": b"large"})
    refs = (tmp_path / "three" / "refs.bag").read_bytes()
    (tmp_path / "one" / "refs.bag").write_bytes(refs.replace(b"\x91\1", b"\x91\0").replace(b"\x91\2", b"\x91\0"))
    with pytest.raises(MetadataError, match=r"refs\.bag: its rows share blobs: they have 3 together, of only 1$"):
        fffs.convert(tmp_path / "one", tmp_path / "x.ffr")
    assert not (tmp_path / "x.ffr").exists()


# ---------------------------------------------------------------- archives

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def sample(folder: Path) -> Path:
    """Make a folder with everything that archives can store, with times of whole seconds."""
    folder.mkdir()
    deep = folder / "deep" / ("long-" * 15) / ("name-" * 8)
    deep.mkdir(parents=True)
    (deep / "file").write_bytes(b"deep down")
    (folder / "large").write_bytes(stretched(2 * MIB + 77))
    (folder / "exact").write_bytes(stretched(MIB))
    (folder / "empty").touch()
    (folder / "none").mkdir(mode=0o700)
    (folder / "ünï").write_bytes(b"utf-8")
    (folder / "run").write_bytes(b"#!/bin/sh")
    (folder / "run").chmod(0o4755)
    os.link(folder / "run", folder / "deep" / "again")
    (folder / "out").symlink_to("/etc/passwd")
    (folder / "up").symlink_to("../../x")
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (1_600_000_000, 1_600_000_000 + len(path.name)), follow_symlinks=False)
    return folder


@pytest.mark.parametrize(
    ("form", "compression"), [("ustar", ""), ("gnu", ""), ("pax", ""), ("gnu", "gz"), ("pax", "bz2"), ("ustar", "xz")]
)
def test_a_tar_becomes_what_packing_the_folder_gives(tmp_path: Path, form: str, compression: str) -> None:
    folder = sample(tmp_path / "folder")
    tar_folder(folder, tmp_path / "x", f"w:{compression}", FORMATS[form])
    fffs.pack_folder(folder, tmp_path / "packed.ffr")
    done = fffs.convert(tmp_path / "x", tmp_path / "x.ffr", verify=True, warn=NO_WARNING)
    assert done[:3] == ("tar", "ffrecord", 6)
    assert (tmp_path / "x.ffr").read_bytes() == (tmp_path / "packed.ffr").read_bytes()


def test_a_dictionary_that_needs_too_much_memory_is_named_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tar_folder(sample(tmp_path / "folder"), tmp_path / "x.tar.xz", "w:xz", tarfile.USTAR_FORMAT)
    monkeypatch.setattr(streams, "XZ_MEMORY", 1 << 20)
    with pytest.raises(UnsupportedError, match=r"x\.tar\.xz: more than 1 MiB of memory .* decompress it with xz"):
        fffs.convert(tmp_path / "x.tar.xz", tmp_path / "x.ffr")


def test_a_name_that_a_header_cuts_behind_a_slash_is_no_folder(tmp_path: Path) -> None:
    folder, name = tmp_path / "folder", "n" * 99
    (folder / name).mkdir(parents=True)
    (folder / name / ("l" * 120)).write_text("content")
    for form in ("gnu", "posix"):
        subprocess.run(["tar", f"--format={form}", "-C", folder, "-cf", tmp_path / "t.tar", name], check=True)
        fffs.convert(tmp_path / "t.tar", tmp_path / "t.ffr", force=True)
        with fffs.PackedFolder(tmp_path / "t.ffr") as packed:
            assert packed.read_one(f"{name}/{'l' * 120}").tobytes() == b"content"


def test_what_tar_itself_writes_keeps_nanoseconds_and_names_of_any_bytes(tmp_path: Path) -> None:
    folder = sample(tmp_path / "folder")
    for k, name in enumerate((b"\xff\xfe", b"new\nline", b" blank ", b"x" * 255, b"-", b"a\\b")):
        path = os.path.join(os.fsencode(folder), name)
        Path(os.fsdecode(path)).write_bytes(name)
        os.utime(path, ns=(0, 1_700_000_000_123_456_789 - 10**18 * 2 * (k % 2)))
    subprocess.run(["tar", "--format=pax", "-cf", tmp_path / "x.tar", "-C", folder, "."], check=True)
    fffs.pack_folder(folder, tmp_path / "packed.ffr")
    fffs.convert(tmp_path / "x.tar", tmp_path / "x.ffr", verify=True, warn=NO_WARNING)
    with load_source([tmp_path / "x.ffr"]) as source:
        assert differences(tree_snapshot(source), snapshot(folder)) == {}
    assert (tmp_path / "x.ffr").read_bytes() == (tmp_path / "packed.ffr").read_bytes()


def test_a_zip_becomes_what_packing_the_folder_gives(tmp_path: Path) -> None:
    folder = sample(tmp_path / "folder")
    (folder / "deep" / "again").unlink()  # zip has no hard links
    os.utime(folder / "deep", (0, 1_600_000_000))
    zip_folder(folder, tmp_path / "x.zip")
    fffs.pack_folder(folder, tmp_path / "packed.ffr")
    fffs.convert(tmp_path / "x.zip", tmp_path / "x.ffr", verify=True, warn=NO_WARNING)
    assert (tmp_path / "x.ffr").read_bytes() == (tmp_path / "packed.ffr").read_bytes()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_the_methods_of_zip(tmp_path: Path, method: int) -> None:
    content = stretched(MIB) + bytes(3 * MIB)
    (tmp_path / "x").write_bytes(zip_of(("a/b", content, 0o100600), ("e", b"", 0o100644), method=method))
    fffs.convert(tmp_path / "x", tmp_path / "x.ffr", verify=True)
    with fffs.PackedFolder(tmp_path / "x.ffr") as pack:
        assert pack.list(recursive=True) == ["a", "a/b", "e"]
        assert bytes(pack.read_one("a/b")) == content


def test_a_folder_is_packed(tmp_path: Path) -> None:
    folder = sample(tmp_path / "folder")
    fffs.pack_folder(folder, tmp_path / "packed.ffr")
    assert fffs.convert(folder, tmp_path / "x.ffr", verify=True).source == "folder"
    assert (tmp_path / "x.ffr").read_bytes() == (tmp_path / "packed.ffr").read_bytes()


def test_a_folder_that_holds_the_output_is_compared_with_what_it_was(tmp_path: Path) -> None:
    make(tmp_path / "folder", {"a": b"a", "sub": {"b": b"b"}})
    first = True
    for output in ("folder/out.ffr", "folder/sub/out.ffr", "folder/out.ffr"):
        fffs.convert(tmp_path / "folder", tmp_path / output, verify=True, force=True, from_="folder")
        with fffs.PackedFolder(tmp_path / output) as packed:
            others = {"folder/sub/out.ffr": {"out.ffr"}, "folder/out.ffr": {"sub/out.ffr"}}
            found = set(packed.list(recursive=True, list_dir=False))
            assert found - {"a", "sub/b"} == (set() if first else others[output])
        first = False


def test_archives_of_several_streams_and_padding_are_read_to_their_end(tmp_path: Path) -> None:
    whole = tar_file(b"a", stretched(100_000)) + tar_file(b"b") + END
    for compress in (gzip.compress, bz2.compress, lzma.compress):
        (tmp_path / "x").write_bytes(compress(whole[:70_000]) + compress(whole[70_000:]) + bytes(512))
        fffs.convert(tmp_path / "x", tmp_path / "x.ffr", verify=True, force=True)
        assert split_records((tmp_path / "x.ffr").read_bytes())[:2] == [stretched(100_000), b"content"]


def test_no_archive_is_unpacked_to_the_disk(tmp_path: Path) -> None:
    folder = sample(tmp_path / "folder")
    tar_folder(folder, tmp_path / "x.tar.gz", "w:gz", tarfile.PAX_FORMAT)
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-e", "trace=openat,mkdirat,symlinkat,linkat,mkdir,symlink,link,creat,open", "-o", trace]
    if shutil.which("strace") is None:
        pytest.skip("there is no strace here")
    subprocess.run(
        [*command, sys.executable, "-m", "fffs", "convert", "-q", tmp_path / "x.tar.gz", tmp_path / "x.ffr"], check=True
    )
    made = [line for line in trace.read_text().splitlines() if "O_CREAT" in line or "mkdir" in line or "link" in line]
    made = [line for line in made if "= -1" not in line and "__pycache__" not in line]
    new, linked = made
    assert "x.ffr" in new and "linkat" in linked and '"x.ffr"' in linked, made
    assert "fffs-tmp" in made[0]


# ---------------------------------------------------------------- hostile archives


def refusal(tmp_path: Path, data: bytes, kind: type[Exception] = FormatError) -> str:
    """Return why an archive is refused: quickly, in one line that names it, without leaving anything behind."""
    (tmp_path / "bad").write_bytes(data)
    before = left_in(tmp_path)
    with pytest.raises(kind) as caught:
        fffs.convert(tmp_path / "bad", tmp_path / "bad.ffr", warn=lambda _: None)
    text = str(caught.value)
    assert text.startswith(f"{tmp_path / 'bad'}: ")
    assert "\n" not in text
    assert left_in(tmp_path) == before
    return text


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        (tar_file(b"a/../../b"), "would lead out"),
        (tar_file(b".."), "would lead out"),
        (extended(path=b"a\0b") + tar_file(b"x"), "NUL"),
        (extended(path=b"n" * 256) + tar_file(b"x"), "more than 255 bytes"),
        (extended(path=b"n/" * 2100 + b"n") + tar_file(b"x"), "more than 4095 bytes"),
        (tar_file(b"."), "without a name"),
        (tar_file(b"a") + tar_file(b"a/b"), "is a file, not a folder"),
        (tar_header(b"a", 0, b"2", b"/tmp") + tar_file(b"a/b"), "which would be followed"),
        (tar_file(b"a/b") + tar_file(b"a"), "a folder that is not empty has the same name"),
        (tar_header(b"a", 0, b"1", b"gone"), "not a file before it in the archive"),
        (tar_header(b"a", 0, b"1", b"a"), "not a file before it in the archive"),
        (tar_header(b"d/", 0, b"5") + tar_header(b"a", 0, b"1", b"d"), "not a file before it in the archive"),
        (tar_header(b"a", 0, b"1", b"../a"), "would lead out"),
        (tar_header(b"a", 0, b"2", b""), "a symbolic link whose target is"),
        (extended(linkpath=b"t" * 5000) + tar_header(b"a", 0, b"2"), "a symbolic link whose target is"),
        (extended(GNU__sparse__major=b"1") + tar_file(b"a"), "sparse"),
        (tar_header(b"a", 0, b"S"), "sparse"),
        (tar_header(b"a", 0, b"M"), "one of several volumes"),
        (tar_header(b"a", 1 << 60), "ends inside 'a'; it is truncated"),
        (tar_header(b"a", 1 << 60, b"L"), "extended header of"),
        (tar_header(b"a", 1 << 30, b"x"), "extended header of"),
        (extended(size=b"9" * 30) + tar_file(b"a"), "an invalid size"),
        (extended(size=b"-5") + tar_file(b"a"), "an invalid size"),
        (extended(mtime=b"soon") + tar_file(b"a"), "an invalid time"),
        (tar_header(b"x", 10, b"x") + padded(b"99 path=ab\n"), "not a list of keys"),
        (extended(path=b"a") * 9 + tar_file(b"a"), "more than 8 extended headers"),
        (tar_file(b"a") + b"garbage!" * 64, "a field of its header is not an octal number"),
        (tar_file(b"a") + b"a" + bytes(511), "its header has no checksum"),
        (tar_file(b"a") + tar_file(b"b").replace(b"b", b"c", 1), "checksum of its header"),
    ],
)
def test_a_hostile_tar_is_refused(tmp_path: Path, members: bytes, problem: str) -> None:
    first = tar_file(b"first")
    assert problem in refusal(tmp_path, first + members + END)
    assert problem in refusal(tmp_path, gzip.compress(first + members + END))


def test_a_cut_archive_is_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    whole = tar_file(b"a", stretched(1000)) + tar_file(b"b") + END
    for size in (513, 1000, 1535, 1536, 2047, 2100, 2560):
        assert "truncated" in refusal(tmp_path, whole[:size])
        assert "truncated" in refusal(tmp_path, gzip.compress(whole[:size]))
    for compress in (gzip.compress, bz2.compress, lzma.compress):
        data = compress(whole)
        assert "truncated" in refusal(tmp_path, data[: len(data) // 2 + 300 if compress is not bz2.compress else -5])
        assert "damaged" in refusal(tmp_path, data[:-12] + bytes([data[-12] ^ 1]) + data[-11:])
    archive = zip_of(("a", stretched(1000), 0o100644), ("b", b"b", 0o100644))
    assert "damaged" in refusal(tmp_path, archive[:-30])
    assert "damaged" in refusal(tmp_path, archive[: len(archive) // 2])


@pytest.mark.parametrize("options", [{}, {"from_": "tar"}], ids=["recognised", "named"])
def test_what_is_compressed_with_zstd_is_refused_as_such(tmp_path: Path, options: dict[str, str]) -> None:
    (tmp_path / "x").write_bytes(b"\x28\xb5\x2f\xfd" + stretched(1000))
    before = os.listdir("/proc/self/fd")
    with pytest.raises((UnsupportedError, MetadataError), match=f"^{tmp_path}/x: .*zstd -d"):
        fffs.convert(tmp_path / "x", tmp_path / "x.ffr", **options)
    assert os.listdir("/proc/self/fd") == before


def warned(tmp_path: Path, data: bytes) -> tuple[list[str], dict[bytes, Any]]:
    """Return the warnings for an archive, and its pack: path -> content or target."""
    (tmp_path / "x").write_bytes(data)
    warnings: list[str] = []
    fffs.convert(tmp_path / "x", tmp_path / "x.ffr", warn=warnings.append, verify=True, force=True)
    with load_source([tmp_path / "x.ffr"]) as source:
        found = {path: entry[2] for path, entry in tree_snapshot(source).items() if path}
    return [line.removeprefix(f"{tmp_path / 'x'}: ") for line in warnings], found


def test_a_leading_slash_is_left_out_with_one_warning(tmp_path: Path) -> None:
    warnings, found = warned(tmp_path, tar_file(b"/etc/a") + tar_file(b"//b") + END)
    assert warnings == ["the leading '/' of names is left out, as in '/etc/a'"]
    assert found == {b"etc": None, b"etc/a": b"content", b"b": b"content"}


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
@pytest.mark.parametrize(
    ("between", "line"),
    [
        (END, "more follows its end mark and is left out, as tar does without --ignore-zeros"),
        (END * 9, "more follows its end mark and is left out, as tar does without --ignore-zeros"),
        (bytes(512), "more follows a lone block of zeros and is left out, as tar does without --ignore-zeros"),
    ],
)
def test_what_follows_the_end_mark_is_left_out_with_a_warning(
    tmp_path: Path, compress: Callable[[bytes], bytes], between: bytes, line: str
) -> None:
    several = compress(tar_file(b"a") + between) + compress(tar_file(b"b") + END)
    assert warned(tmp_path, several) == ([line], {b"a": b"content"})
    (tmp_path / "x.tar").write_bytes(several)
    listed = subprocess.run(["tar", "-tf", tmp_path / "x.tar"], capture_output=True, check=False)
    assert listed.stdout == b"a\n"
    assert warned(tmp_path, compress(tar_file(b"a") + END * 9)) == ([], {b"a": b"content"})
    one = compress(tar_file(b"a") + bytes(512))
    assert warned(tmp_path, one) == (
        ["ends with a lone block of zeros; it may be truncated"],
        {b"a": b"content"},
    )


def shared(**records: bytes) -> bytes:
    """Return an extended header of POSIX for all following members."""
    data = extended(**records)
    return tar_header(b"shared", int(data[124:135], 8), b"g") + data[512:]


LONG = (
    tar_header(b"././@LongLink", 5, b"L")
    + padded(b"gnus\0")
    + tar_header(b"././@LongLink", 5, b"K")
    + padded(b"gnut\0")
)


@pytest.mark.parametrize("before", [b"", shared(path=b"all", linkpath=b"all")], ids=["alone", "shared"])
def test_of_two_long_names_of_a_member_that_of_posix_counts_as_for_tar(tmp_path: Path, before: bytes) -> None:
    posix, link = extended(path=b"posix", linkpath=b"target"), tar_header(b"short", 0, b"2", b"x") + END
    for data in (before + LONG + posix + link, before + posix + LONG + link):
        assert warned(tmp_path, data) == ([], {b"posix": b"target"})
        listed = subprocess.run(["tar", "-tvf", tmp_path / "x"], capture_output=True, check=True)
        assert listed.stdout.endswith(b" posix -> target\n")
    assert warned(tmp_path, before + LONG + link) == ([], {b"all": b"all"} if before else {b"gnus": b"gnut"})
    assert warned(tmp_path, before + extended(path=b"", linkpath=b"") + link)[1] == {b"short": b"x"}


def times(tmp_path: Path, data: bytes) -> dict[bytes, int]:
    (tmp_path / "x").write_bytes(data + END)
    fffs.convert(tmp_path / "x", tmp_path / "x.ffr", warn=NO_WARNING, verify=True, force=True)
    with load_source([tmp_path / "x.ffr"]) as source:
        return {name: int(source.tree.mtime[node]) for name, node in source.tree.entries(0)}


def test_an_empty_value_of_an_extended_header_takes_back_what_was_said(tmp_path: Path) -> None:
    own = 1_600_000_000 * 10**9
    assert times(tmp_path, extended(mtime=b"", size=b"") + tar_file(b"a")) == {b"a": own}
    both = extended(mtime=b"") + tar_file(b"a") + tar_file(b"b")
    assert times(tmp_path, shared(mtime=b"5") + both) == {b"a": own, b"b": 5 * 10**9}
    assert times(tmp_path, shared(mtime=b"5") + shared(mtime=b"") + both) == {b"a": own, b"b": own}


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        (b"-1.0000000001", -1_000_000_001),
        (b"-1.0000000000", -1_000_000_000),
        (b"-0.5", -500_000_000),
        (b"1.9999999999", 1_999_999_999),
        (b"-1.9999999999", -2_000_000_000),
    ],
)
def test_a_time_between_two_nanoseconds_is_the_one_before_as_for_tar(
    tmp_path: Path, text: bytes, nanoseconds: int
) -> None:
    assert times(tmp_path, extended(mtime=text) + tar_file(b"a")) == {b"a": nanoseconds}
    subprocess.run(["tar", "-xf", "x"], cwd=tmp_path, check=True)
    assert (tmp_path / "a").stat().st_mtime_ns == nanoseconds


def test_a_time_that_no_file_can_have_is_the_nearest_with_a_warning(tmp_path: Path) -> None:
    far = extended(mtime=b"1099511627776") + tar_header(b"far")
    lines, contents = warned(tmp_path, far + tar_header(b"near") + END)
    assert set(contents) >= {b"far", b"near"}
    assert lines == ["'far': its time is outside the years 1678 to 2262; the nearest possible time was packed"]


def test_devices_and_fifos_are_left_out_with_a_warning(tmp_path: Path) -> None:
    kinds = {b"3": "device", b"4": "device", b"6": "FIFO", b"Z": "member of type b'Z'"}
    data = b"".join(tar_header(b"n" + kind, 0, kind) for kind in kinds)
    warnings, found = warned(tmp_path, tar_file(b"a") + data + END)
    assert warnings == [f"'n{kind.decode()}': a {what}, left out" for kind, what in kinds.items()]
    assert found == {b"a": b"content"}
    warnings, found = warned(tmp_path, zip_of(("a", b"a", 0o100644), ("p", b"", 0o010644), ("d", b"", 0o060644)))
    assert warnings == ["'p': a FIFO, left out", "'d': a device, left out"]
    assert found == {b"a": b"a"}


def test_hard_links_to_what_is_left_out_are_left_out_too(tmp_path: Path) -> None:
    data = [
        tar_header(b"device", 0, b"3"),
        tar_header(b"fifo", 0, b"6"),
        tar_header(b"d/hard", 0, b"1", b"device"),
        tar_header(b"again", 0, b"1", b"d/hard"),
        tar_header(b"soft", 0, b"2", b"device"),
        tar_header(b"hard to soft", 0, b"1", b"soft"),
        tar_header(b"pipe", 0, b"1", b"./fifo"),
        tar_file(b"a"),
        tar_header(b"a link", 0, b"1", b"a"),
        END,
    ]
    warnings, found = warned(tmp_path, b"".join(data))
    assert warnings == [
        "'device': a device, left out",
        "'fifo': a FIFO, left out",
        "'d/hard': a hard link to a device, left out",
        "'again': a hard link to a device, left out",
        "'pipe': a hard link to a FIFO, left out",
    ]
    kept = {b"a": b"content", b"a link": b"content", b"soft": b"device", b"hard to soft": b"device"}
    assert found == {b"d": None} | kept


def test_of_a_file_and_a_device_with_one_name_the_last_one_counts(tmp_path: Path) -> None:
    device = tar_header(b"a", 0, b"3")
    warnings, found = warned(tmp_path, tar_file(b"a") + device + tar_file(b"b") + END)
    assert warnings == ["'a': a device, left out", "'a': several members have this name; only the last one is packed"]
    assert found == {b"b": b"content"}
    warnings, found = warned(tmp_path, device + tar_file(b"a") + tar_header(b"hard", 0, b"1", b"a") + END)
    assert found == {b"a": b"content", b"hard": b"content"}


def test_of_members_with_one_name_the_last_one_counts_as_for_tar(tmp_path: Path) -> None:
    data = [
        tar_file(b"a", b"old"),
        tar_header(b"hard", 0, b"1", b"a"),
        tar_file(b"./a", b"new"),
        tar_header(b"d/", 0, b"5", mode=0o700),
        tar_file(b"d/x", b"x"),
        tar_header(b"d", 0, b"5", mode=0o711),
        tar_header(b"l", 0, b"2", b"a"),
        tar_file(b"l", b"no link"),
        END,
    ]
    (tmp_path / "real").mkdir()
    warnings, found = warned(tmp_path, b"".join(data))
    subprocess.run(["tar", "xf", tmp_path / "x", "-C", tmp_path / "real"], check=True)
    said = "several members have this name; only the last one is packed"
    assert warnings == [f"'./a': {said}", f"'l': {said}"]
    assert found == {path: entry[2] for path, entry in snapshot(tmp_path / "real").items() if path}
    assert found[b"hard"] == b"old"
    with load_source([tmp_path / "x.ffr"]) as source:
        assert source.tree.mode[source.tree.find(b"d")] == stat.S_IFDIR | 0o711
        assert source.store.n == 4 + 1  # both contents of a, and no third


def test_links_that_lead_outside_are_kept_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    target = os.fsencode(tmp_path / "secret")
    absolute = extended(linkpath=target) + tar_header(b"b", 0, b"2")
    _, found = warned(tmp_path, tar_header(b"a", 0, b"2", b"../../secret") + absolute + END)
    assert found == {b"a": b"../../secret", b"b": target}
    _, found = warned(tmp_path, zip_of(("a", target, 0o120777)))
    assert found == {b"a": target}


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ([("../a", b"x", 0o100644)], "would lead out"),
        ([("n" * 256, b"x", 0o100644)], "more than 255 bytes"),
        ([("l", b"/tmp", 0o120777), ("l/x", b"x", 0o100644)], "which would be followed"),
        ([("l", b"t" * 5000, 0o120777)], "a symbolic link whose target is"),
        ([("l", bytes(100_000), 0o120777)], "a symbolic link whose target is"),
    ],
)
def test_a_hostile_zip_is_refused(tmp_path: Path, members: list[tuple[str, bytes, int]], problem: str) -> None:
    assert problem in refusal(tmp_path, zip_of(("first", b"1", 0o100644), *members))


def edited(data: bytes, local: int, central: int, form: str, value: int) -> bytes:
    """Return a zip with other values in the headers of its last member."""
    room = bytearray(data)
    for magic, at in ((b"PK\3\4", local), (b"PK\1\2", central)):
        struct.pack_into(form, room, data.rindex(magic) + at, value)
    return bytes(room)


def test_a_directory_of_holes_is_refused_before_it_is_in_memory(tmp_path: Path) -> None:
    path, size = tmp_path / "a.zip", 1 << 32
    with path.open("wb") as file:
        file.write(b"PK\3\4")
        file.seek(size)
        file.write(b"PK\5\6" + bytes(8) + struct.pack("<IIH", 0x7FFFFFFF, size - 0x7FFFFFFF, 0))
    with pytest.raises(MetadataError, match=r"central directory of 2147483647 bytes was never"):
        fffs.convert(path, tmp_path / "a.ffr")


def test_a_zip_that_lies_is_refused(tmp_path: Path) -> None:
    good = zip_of(("first", b"1", 0o100644), ("a", bytes(5000), 0o100644))
    for size in (0, 1, 4999, 5001, 9000):
        assert "size or CRC-32 differs" in refusal(tmp_path, edited(good, 22, 24, "<I", size))
    assert "more bytes than it can have" in refusal(tmp_path, edited(good, 22, 24, "<I", 0xFFFFFF00))
    assert "size or CRC-32 differs" in refusal(tmp_path, edited(good, 14, 16, "<I", zlib.crc32(b"other")))
    assert "encrypted" in refusal(tmp_path, edited(good, 6, 8, "<H", 1))
    assert "method 14" in refusal(tmp_path, edited(good, 8, 10, "<H", 14))
    overlapping = bytearray(good)
    struct.pack_into("<I", overlapping, good.rindex(b"PK\1\2") + 42, 3)
    assert "overlaps" in refusal(tmp_path, bytes(overlapping))


def test_bombs_are_streamed_or_stopped_in_bounded_memory(tmp_path: Path) -> None:
    """Each runs in a process of its own, whose memory is measured."""
    names = b"".join(tar_file(b"%06d/" % k + b"n/" * 40 + b"f", b"") for k in range(12_000))
    size = 64 * MIB
    bombs = {
        "zeros": (gzip.compress(tar_header(b"z", size) + bytes(size) + END, 1), 0, size // 2),
        "header": (gzip.compress(tar_header(b"x", size, b"L") + bytes(size) + END, 1), 4, size // 2),
        "bzip": (zip_of(("z", bytes(size), 0o100644), method=zipfile.ZIP_BZIP2), 0, size // 2),
        "keys": (lzma.compress(extended(**{f"k{k}": bytes(1000) for k in range(900)}) * 30 + END), 4, size // 2),
        "names": (gzip.compress(names + END, 1), 4, 150 * MIB),
    }
    (tmp_path / "small").write_bytes(tar_file(b"a") + END)
    _, _, least = measured("convert", "-q", tmp_path / "small", tmp_path / "x.ffr")
    for name, (data, code, limit) in bombs.items():
        (tmp_path / name).write_bytes(data)
        done, error, most = measured("convert", "-q", "--force", tmp_path / name, tmp_path / "x.ffr")
        assert done == code, f"{name}: {error!r}"
        assert error.count("\n") == bool(code)
        assert (most - least) * MIB < limit, f"{name}: {most} MiB, and {least} MiB for a small one"


def test_a_small_archive_may_have_many_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a million names compress to a byte each; only memory limits their number."""
    several = names.Names("x.tar.xz", NO_WARNING)
    for k in range(500_000):
        several.add_file(b"%d" % k, 0, 0, 0o644, 0)
    monkeypatch.setattr(names, "FREE", 10_000)
    for memory, count in ((0, 40), (100_000, 200), (1_000_000, 2000)):
        monkeypatch.setattr(names, "available_memory", lambda memory=memory: memory)
        data = b"".join(tar_header(b"%03d" % k) for k in range(count)) + END
        (tmp_path / "good").write_bytes(data)
        fffs.convert(tmp_path / "good", tmp_path / "good.ffr", force=True)
        longer = b"".join(tar_header(b"%03d" % k + b"n" * 90) for k in range(count)) + END
        assert "more than half of the memory; convert it on" in refusal(tmp_path, longer)


@given(st.data())
def test_any_change_to_a_tar_is_refused_or_harmless(tmp_path_factory: Any, data: st.DataObject) -> None:
    tmp_path = Path(tmp_path_factory.mktemp("tar"))
    whole = bytearray(
        tar_header(b"d/", 0, b"5") + tar_file(b"d/a", b"a" * 600) + extended(path=b"d/" + b"b" * 120) + tar_file(b"b")
        + tar_header(b"l", 0, b"2", b"d/a") + tar_header(b"h", 0, b"1", b"d/a") + END
    )  # fmt: skip
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "x.tar").write_bytes(whole)
    try:
        fffs.convert(tmp_path / "x.tar", tmp_path / "x.ffr", from_="tar", warn=lambda _: None)
    except FormatError:
        assert left_in(tmp_path) == ["x.tar"]
    else:
        with load_source([tmp_path / "x.ffr"]) as source:
            assert source.store.verify(np.arange(source.store.n)) == []


# ---------------------------------------------------------------- what a source is


def test_a_source_is_known_by_its_content(tmp_path: Path) -> None:
    for content, kind in (
        (tar_file(b"a") + END, "tar"),
        (gzip.compress(tar_file(b"a") + END), "tar"),
        (zip_of(("a", b"a", 0o100644)), "zip"),
        (TFRECORD.bytes("example.tfrecord"), "tfrecord"),
        (GOLDEN.bytes("mixed-100.ffr"), "ffrecord"),
    ):
        (tmp_path / "thing.ffr").write_bytes(content)
        assert fffs.convert(tmp_path / "thing.ffr", tmp_path / "x.ffr", force=True).source == kind
    (tmp_path / "thing.ffr").write_bytes(b"neither fish nor fowl")
    with pytest.raises(FormatError, match=r"thing\.ffr"):
        fffs.convert(tmp_path / "thing.ffr", tmp_path / "x.ffr", force=True)
    with pytest.raises(SourceNotFoundError):
        fffs.convert(tmp_path / "missing", tmp_path / "x.ffr", force=True)


def test_records_that_begin_with_zeros_are_no_tar_archive(tmp_path: Path) -> None:
    """A blank checksum field matches the sum over such a header, in one of two thousand such files."""
    for record in (bytes(4088) + k.to_bytes(8, "little") for k in range(1, 20_000)):
        body = struct.pack("<qIq", 1, zlib.crc32(record), 24)
        data = struct.pack("<I", zlib.crc32(body)) + body + record
        if 256 + sum(data[:512]) == 256 * sum(byte > 127 for byte in data[:512]) and data[0]:
            break
    for name in ("x.ffr", "nameless"):
        (tmp_path / name).write_bytes(data)
        assert fffs.convert(tmp_path / name, tmp_path / "y.tfrecord", force=True, verify=True).source == "ffrecord"
        assert records_of(tmp_path / "y.tfrecord") == [record]
    with pytest.raises(MetadataError, match="no checksum"):
        fffs.convert(tmp_path / "x.ffr", tmp_path / "y.ffr", from_="tar")


def old_tar(member: bytes) -> bytes:
    """Return a member as tar wrote it before it had a magic number."""
    block = member[:148] + b" " * 8 + member[156:257] + bytes(255)
    return block[:148] + b"%06o\0 " % sum(block) + block[156:] + member[512:]


def test_an_old_tar_without_a_magic_number_is_known_by_all_of_its_header(tmp_path: Path) -> None:
    good = old_tar(tar_file(b"a")) + END
    (tmp_path / "nameless").write_bytes(good)
    assert fffs.convert(tmp_path / "nameless", tmp_path / "y.ffr", force=True).source == "tar"
    assert records_of(tmp_path / "y.ffr")[0] == b"content"
    assert subprocess.run(["tar", "-tf", tmp_path / "nameless"], check=True, capture_output=True).stderr == b""
    for block in (
        good[:50] + b"x" + good[51:],  # after the end of its name
        good[:100] + bytes(8) + good[108:],  # no mode
        good[:124] + b"77777777777\0" + good[136:],  # longer than the file
        good[:156] + b"z" + good[157:],
    ):
        (tmp_path / "nameless").write_bytes(old_tar(block[:512]) + block[512:])
        with pytest.raises(FormatError):
            fffs.convert(tmp_path / "nameless", tmp_path / "y.ffr", force=True)
    for name in ("x.ffr", "part-0", "x.tfrecord"):
        (tmp_path / name).write_bytes(good)
        with pytest.raises(FormatError):
            fffs.convert(tmp_path / name, tmp_path / "z.bag", force=True)


@pytest.mark.parametrize("compressed", [False, True])
def test_an_old_tar_of_gnu_may_begin_with_a_label(compressed: bool, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    options = ["--format=gnu", "--label=volume 1", *(["-z"] if compressed else [])]
    subprocess.run(["tar", *options, "-cf", tmp_path / "x", "-C", tmp_path, "a"], check=True)
    assert fffs.convert(tmp_path / "x", tmp_path / "y.ffr").source == "tar"
    with fffs.PackedFolder(tmp_path / "y.ffr") as folder:
        assert [files for _, _, files in folder.walk()] == [["a"]]
    good = (tmp_path / "x").read_bytes()
    if not compressed:
        for at in (100, 124, 160):  # a mode, a size, a target
            (tmp_path / "x").write_bytes(old_tar(good[:at] + b"1" + good[at + 1 :]))
            with pytest.raises(FormatError):
                fffs.convert(tmp_path / "x", tmp_path / "z.ffr")


def test_an_unfinished_record_file_is_no_empty_archive(tmp_path: Path) -> None:
    (tmp_path / "x.tar.ffr").write_bytes(bytes(1024))
    with pytest.raises(UnfinishedFileError):
        fffs.convert(tmp_path / "x.tar.ffr", tmp_path / "y.ffr")
    (tmp_path / "x.tar").write_bytes(bytes(1024))
    assert fffs.convert(tmp_path / "x.tar", tmp_path / "y.ffr").items == 0


@pytest.mark.parametrize("first", [b"PK\3\4", b"\x1f\x8b\x08\0", b"BZh9"])
def test_a_record_file_whose_checksum_looks_like_an_archive_is_none(tmp_path: Path, first: bytes) -> None:
    """Four bytes in the table of checksums suffice to give the header any checksum."""

    def body(checksum: int) -> bytes:
        return struct.pack("<qIq", 1, checksum, 24)

    base, wanted = zlib.crc32(body(0)), int.from_bytes(first, "little")
    # A CRC is linear: each bit of those four bytes flips a fixed set of its bits.
    rows = [(zlib.crc32(body(1 << at)) ^ base, 1 << at) for at in range(32)]
    left, bits = wanted ^ base, 0
    for bit in range(32):
        pivot = next(k for k, (column, _) in enumerate(rows) if column >> bit & 1)
        column, mask = rows.pop(pivot)
        rows = [(c ^ column, m ^ mask) if c >> bit & 1 else (c, m) for c, m in rows]
        if left >> bit & 1:
            left, bits = left ^ column, bits ^ mask
    assert zlib.crc32(body(bits)) == wanted
    (tmp_path / "x").write_bytes(first + body(bits) + b"record")
    with pytest.raises(ChecksumError):  # of the record, which cannot be chosen at the same time
        fffs.convert(tmp_path / "x", tmp_path / "y.bag")


@pytest.mark.parametrize("layout", ["v1", "v3"])
def test_a_bag_is_one_whatever_its_first_record_is(tmp_path: Path, layout: str) -> None:
    make(tmp_path / "folder", {"a": b"a", "b": b"b"})
    tar_folder(tmp_path / "folder", tmp_path / "x.tar", "w", tarfile.PAX_FORMAT)
    tar_folder(tmp_path / "folder", tmp_path / "x.tar.gz", "w:gz", tarfile.PAX_FORMAT)
    zip_folder(tmp_path / "folder", tmp_path / "x.zip")
    fffs.convert(write_ffr(tmp_path / "x.ffr", RECORDS), tmp_path / "x.tfrecord")
    for name in ("x.tar", "x.tar.gz", "x.zip", "x.tfrecord", "x.ffr"):
        records = 3 * [(tmp_path / name).read_bytes()]
        with granular.BagWriter(tmp_path / f"{name}.bag", layout) as bag:
            for record in records:
                bag.append(record)
        fffs.convert(tmp_path / f"{name}.bag", tmp_path / "out.ffr", verify=True, force=True)
        assert records_of(tmp_path / "out.ffr") == records


def stored_zip(*members: tuple[bytes, bytes, int, int, bytes]) -> bytes:
    """Return a zip archive of (name, content, method, mode with type, extra field in the directory), not compressed."""
    data = directory = b""
    for name, content, method, mode, extra in members:
        sizes = (zlib.crc32(content), len(content), len(content), len(name))
        directory += struct.pack("<4s6H3I", b"PK\1\2", 0x314, 20, 0, method, 0, 0x5821, *sizes[:3])
        directory += struct.pack("<5H2I", len(name), len(extra), 0, 0, 0, mode << 16, len(data)) + name + extra
        data += struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, method, 0, 0x5821, *sizes, 0) + name + content
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, len(members), len(members), len(directory), len(data), 0)
    return data + directory + end


def test_a_zip_with_too_many_names_is_refused_before_they_are_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the archive has the size of the directory, and possibly a wrong number of names."""
    members = [(b"%d" % k, b"", 0, 0o100644, b"") for k in range(30)]
    data = bytearray(stored_zip(*members))
    struct.pack_into("<HH", data, len(data) - 14, 1, 1)
    made: list[zipfile.ZipInfo] = []

    class Info(zipfile.ZipInfo):
        def __init__(self, name: str) -> None:
            super().__init__(name)
            made.append(self)

    monkeypatch.setattr(zipfile, "ZipInfo", Info)
    monkeypatch.setattr(names, "FREE", 10_000)
    monkeypatch.setattr(names, "available_memory", lambda: 0)
    assert len(warned(tmp_path, stored_zip(*members[:15]))[1]) == len(made) == 15
    made.clear()
    assert "so many names" in refusal(tmp_path, bytes(data), UnsupportedError)
    monkeypatch.setattr(names, "FREE", 1000)
    assert "so many names" in refusal(tmp_path, bytes(data), UnsupportedError)
    assert not made


@pytest.mark.parametrize(
    "extra", [b"\x99\x99\x05\0abcd", b"ab\1\0xUT\xff\xffabc", b"UT\5\0\0abcdUT\1\0", b"\1\0\x08\0"]
)
def test_an_extra_field_that_was_cut_is_ignored_as_by_unzip(tmp_path: Path, extra: bytes) -> None:
    data = stored_zip((b"first", b"1", 0, 0o100644, extra), (b"b", b"2", 0, 0o100644, b""))
    assert warned(tmp_path, data) == ([], {b"first": b"1", b"b": b"2"})


def test_an_empty_member_of_a_zip_needs_no_compressed_data(tmp_path: Path) -> None:
    data = stored_zip((b"empty", b"", 8, 0o100644, b""), (b"b", b"b", 0, 0o100644, b""))
    assert warned(tmp_path, data) == ([], {b"empty": b"", b"b": b"b"})


@pytest.mark.parametrize("mode", [0o100755, 0o040755, 0o120777, 0])
def test_a_name_in_a_zip_that_ends_with_a_slash_is_a_folder_whatever_its_mode(tmp_path: Path, mode: int) -> None:
    inside = (b"d/x", b"x", 0, 0o100644, b"")
    assert warned(tmp_path, stored_zip((b"d/", b"", 0, mode, b""), inside)) == ([], {b"d": None, b"d/x": b"x"})
    lines, found = warned(tmp_path, stored_zip((b"d/", b"abc", 0, mode, b""), inside))
    assert (lines, found) == (["'d/': a folder with 3 bytes, left out"], {b"d": None, b"d/x": b"x"})


def test_the_unicode_name_of_a_zip_member_counts_if_it_was_made_for_the_stored_one(tmp_path: Path) -> None:
    for version, made_for, expected in ((1, b"caf?", "caf\xe9"), (1, b"other", "caf?"), (2, b"caf?", "caf?")):
        field = struct.pack("<BI", version, zlib.crc32(made_for)) + "caf\xe9".encode()
        extra = b"UX\1\0x" + struct.pack("<HH", 0x7075, len(field)) + field
        data = stored_zip((b"caf?", b"x", 0, 0o100644, extra))
        assert warned(tmp_path, data) == ([], {expected.encode(): b"x"})


def test_backslashes_in_a_zip_from_windows_separate_folders_as_by_unzip(tmp_path: Path) -> None:
    names_ = (b"a\\cat\\1", b"a\\dog\\2", b"e\\", b"x/y\\z")
    unix = stored_zip(*((name, b"" if name == b"e\\" else b"x", 0, 0, b"") for name in names_))
    dos = unix.replace(b"PK\1\2\x14\3", b"PK\1\2\x14\0")
    nested = {b"a": None, b"a/cat": None, b"a/cat/1": b"x", b"a/dog": None, b"a/dog/2": b"x", b"e": None}
    lines = ["names from Windows: '\\' separates folders, as in 'a\\\\cat\\\\1'"]
    assert warned(tmp_path, dos) == (lines, {**nested, b"x": None, b"x/y\\z": b"x"})
    assert warned(tmp_path, unix)[1].keys() == {b"x", *names_}


def test_what_is_in_front_of_a_zip_is_left_out_with_a_warning(tmp_path: Path) -> None:
    make(tmp_path / "folder", {"a": b"a"})
    zip_folder(tmp_path / "folder", tmp_path / "x.zip")
    (tmp_path / "y.zip").write_bytes(2 * (tmp_path / "x.zip").read_bytes())
    lines: list[str] = []
    fffs.convert(tmp_path / "y.zip", tmp_path / "y.ffr", warn=lines.append)
    assert [line.partition(": ")[2] for line in lines] == [
        f"the archive begins after {(tmp_path / 'x.zip').stat().st_size} other bytes, which are left out"
    ]


def test_a_format_can_be_forced(tmp_path: Path) -> None:
    (tmp_path / "x.bag").write_bytes(GOLDEN.bytes("mixed-100.ffr"))
    fffs.convert(tmp_path / "x.bag", tmp_path / "x.ffr", from_="ffrecord")
    assert (tmp_path / "x.ffr").read_bytes() == GOLDEN.bytes("mixed-100.ffr")
    with pytest.raises(FormatError):
        fffs.convert(tmp_path / "x.bag", tmp_path / "y.ffr", from_="zip")
    with pytest.raises(UsageError, match="there is no format 'rar'"):
        fffs.convert(tmp_path / "x.bag", tmp_path / "y.ffr", from_="rar")


def test_a_folder_of_other_things_is_no_folder_of_parts(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    write_ffr(tmp_path / "folder" / "PART_00000.ffr", RECORDS)
    assert fffs.convert(tmp_path / "folder", tmp_path / "parts.ffr").source == "ffrecord"
    (tmp_path / "folder" / "README").touch()
    with pytest.raises(UsageError, match="--from"):
        fffs.convert(tmp_path / "folder", tmp_path / "packed.ffr")
    assert fffs.convert(tmp_path / "folder", tmp_path / "packed.ffr", from_="folder").source == "folder"


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(tar_file(b"a") + END)
    for name, problem in (
        ("x.tfrecord", "can only become a packed folder"),
        ("x.bagz", "compressed Bags cannot be written"),
        ("x.tfrecord.gz", "compressed files cannot be written"),
    ):
        with pytest.raises(UsageError, match=problem):
            fffs.convert(tmp_path / "x.tar", tmp_path / name)
    with pytest.raises(UsageError, match="without parts"):
        fffs.convert(tmp_path / "x.tar", tmp_path / "x.ffr", part_size=100)
    with pytest.raises(UsageError, match="at most --parts 1"):
        fffs.convert(tmp_path / "x.tar", tmp_path / "x.ffr", parts=2)
    assert left_in(tmp_path) == ["x.tar"]


# ---------------------------------------------------------------- all or nothing


def when_reread(monkeypatch: pytest.MonkeyPatch, act: Callable[[AtomicFile], None]) -> None:
    """Call ``act`` on each written file before it is compared."""
    real = AtomicFile.reread

    def reread(file: AtomicFile) -> int:
        fd = real(file)
        assert not file.in_place
        act(file)
        return fd

    monkeypatch.setattr(AtomicFile, "reread", reread)


def flip(fd: int, at: int, bits: int = 1) -> None:
    """Damage an open file as a disk does, without changing its times. at: negative from the end."""
    before = os.fstat(fd)
    at %= before.st_size
    os.pwrite(fd, bytes([os.pread(fd, 1, at)[0] ^ bits]), at)
    os.utime(fd, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("old", [None, b"old"])
@pytest.mark.parametrize("name", ["x.bag", "part-0", "x.ffr", "x.tfrecord"])
def test_verify_finds_a_flipped_byte_before_the_result_is_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, old: bytes | None
) -> None:
    source = write_ffr(tmp_path / "source.ffr", [stretched(1000, k) for k in range(20)])
    if old is not None:
        (tmp_path / name).write_bytes(old)
    there = contents_of(tmp_path)

    def damage(file: AtomicFile) -> None:
        assert {key: data for key, data in contents_of(tmp_path).items() if "fffs-tmp" not in key} == there
        flip(file.fd, 15_000)

    monkeypatch.setattr(record_sources, "BATCH_BYTES", 3000)
    when_reread(monkeypatch, damage)
    with pytest.raises(RecordError, match=rf"{name}: record 1\d\b"):
        fffs.convert(source, tmp_path / name, verify=True, force=True)
    assert contents_of(tmp_path) == there


@pytest.mark.parametrize(("name", "at"), [("x.ffr", 13), ("x.tfrecord", 3), ("x.bag", -8), ("x.idx", 1)])
def test_verify_finds_a_damaged_index_before_the_result_is_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, at: int
) -> None:
    source = write_ffr(tmp_path / "source.ffr", [stretched(1000, k) for k in range(20)])

    def damage(file: AtomicFile) -> None:
        if file.path == str(tmp_path / name):
            flip(file.fd, at, 0xFF)

    when_reread(monkeypatch, damage)
    target, layout = ("x.bag", "v3") if name == "x.idx" else (name, None)
    with pytest.raises((FormatError, RecordError), match=f"^{tmp_path}/x"):
        fffs.convert(source, tmp_path / target, layout=layout, verify=True)
    assert left_in(tmp_path) == ["source.ffr"]


def test_verify_finds_a_flipped_byte_of_an_archive_a_folder_and_a_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    make(folder, {"a": stretched(100_000), "b": stretched(100_000, 2)})
    tar_folder(folder, tmp_path / "x.tar", "w", tarfile.PAX_FORMAT)
    zip_folder(folder, tmp_path / "x.zip")
    fffs.convert(write_ffr(tmp_path / "x.ffr", [stretched(100_000), b"b"]), tmp_path / "set", to="granular")
    there = left_in(tmp_path)
    when_reread(monkeypatch, lambda file: flip(file.fd, 90_000))
    for source in ("x.tar", "x.zip", "folder", "set"):
        with pytest.raises(RecordError, match=r"to\.ffr"):
            fffs.convert(tmp_path / source, tmp_path / "to.ffr", verify=True)
        assert left_in(tmp_path) == there, source


@pytest.mark.parametrize(
    "options",
    [
        {"to": "ffrecord", "parts": 2},
        {"to": "tfrecord", "parts": 2},
        {"to": "ofrecord", "parts": 2},
        {"to": "granular"},
        {"to": "granular", "layout": "v3"},
        {"to": "granular", "parts": 2},
    ],
)
@pytest.mark.parametrize("at", [10_000, -8])
def test_verify_finds_a_flipped_byte_of_a_folder_before_it_is_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], at: int
) -> None:
    source = write_ffr(tmp_path / "source.ffr", [stretched(1000, k) for k in range(40)])

    def damage(here: str) -> None:
        assert left_in(tmp_path) == [os.path.basename(here), "source.ffr"]
        largest = max((path for path in Path(here).rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
        with largest.open("r+b") as file:
            flip(file.fileno(), at, 0xFF)

    monkeypatch.setattr(verifying, "forget", damage)
    with pytest.raises((FormatError, RecordError), match=f"^{tmp_path}/to") as caught:
        fffs.convert(source, tmp_path / "to", verify=True, **options)
    assert "fffs-tmp" not in str(caught.value)
    assert left_in(tmp_path) == ["source.ffr"]


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("y.ffr", []),
        ("y.bag", ["--layout", "v3"]),
        ("parts", ["--to", "tfrecord", "--parts", "2"]),
        ("set", ["--to", "granular"]),
    ],
)
def test_a_result_that_the_umask_lets_nobody_read_is_compared_all_the_same(
    tmp_path: Path, target: str, options: list[str]
) -> None:
    write_ffr(tmp_path / "x.ffr", RECORDS)
    make(tmp_path / "folder", {"a": b"a"})
    unprivileged = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"] if os.geteuid() == 0 else []
    for source in ("x.ffr", *(["folder"] if target == "y.ffr" else [])):
        command = [*unprivileged, sys.executable, "-m", "fffs", "convert", "--force", "--verify", *options]
        done = subprocess.run(
            [*command, source, target], cwd=tmp_path, capture_output=True, text=True, umask=0o777, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert stat.S_IMODE((tmp_path / target).stat().st_mode) == 0


def put_back(folder: Path, there: dict[str, bytes]) -> None:
    """Remove everything but these files from a folder."""
    for name in left_in(folder):
        (folder / name).unlink()
    for name, data in there.items():
        (folder / name).write_bytes(data)


@pytest.mark.parametrize(
    ("name", "layout"), [("x.bag", "v1"), ("x.bag", "v3"), ("part-0", None), ("x.ffr", None), ("x.tfrecord", None)]
)
def test_what_is_to_be_replaced_is_there_until_the_new_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, layout: str | None
) -> None:
    fffs.convert(write_ffr(tmp_path / "old.ffr", [b"old", b"er"]), tmp_path / name, layout=layout)
    source = write_ffr(tmp_path / "source.ffr", [stretched(1000, k) for k in range(20)])
    kept = sidecars.keep_checksums(tmp_path / name)
    assert bool(kept) == (name in ("x.bag", "part-0"))
    there = contents_of(tmp_path)

    def interrupt(_file: AtomicFile) -> None:
        assert records_of(tmp_path / name) == [b"old", b"er"]
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        when_reread(patched, interrupt)
        with pytest.raises(KeyboardInterrupt):
            fffs.convert(source, tmp_path / name, layout=layout, force=True, verify=True)
    assert contents_of(tmp_path) == there
    calls, in_place = 0, 0

    def failing(fd: int, real: Any = os.fsync) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            raise OSError(errno.EIO, "injected")
        real(fd)

    for at in range(1, 10):
        calls = 0
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", failing)
            try:
                fffs.convert(source, tmp_path / name, layout=layout, force=True)
            except WriteError as error:
                if error.detail == IN_PLACE:  # only syncing the folder failed
                    assert records_of(tmp_path / name) == split_records(source.read_bytes())
                    in_place += 1
                    put_back(tmp_path, there)
                assert contents_of(tmp_path) == there, at
            else:
                break
    assert (in_place, at > 2) == (1, True)
    assert records_of(tmp_path / name) == split_records(source.read_bytes())
    assert len(left_in(tmp_path)) == len(there) - len(kept)


@pytest.mark.parametrize("old", ["v1", "v3", None])
@pytest.mark.parametrize("how", ["killed", "failing", "interrupted"])
def test_a_bag_is_never_there_with_the_table_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str | None, how: str
) -> None:
    """A conversion may be stopped between any two renames."""
    source, target = write_ffr(tmp_path / "new.ffr", [b"new" * k for k in range(5)]), tmp_path / "x.bag"
    if old:
        fffs.convert(write_ffr(tmp_path / "old.ffr", [b"old", b"er"]), target, layout=old)
    there = contents_of(tmp_path)
    new = split_records(source.read_bytes())
    calls = 0

    def rename(*paths: Any, real: Any = os.rename, **folders: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == at and how == "killed":
            os._exit(9)
        if calls == at and how == "failing":
            raise OSError(errno.EIO, "injected")
        try:
            real(*paths, **folders)
        finally:
            if calls == at and how == "interrupted":
                raise KeyboardInterrupt

    def attempt() -> int:
        with monkeypatch.context() as patched:
            patched.setattr(os, "rename", rename)
            try:
                fffs.convert(source, target, layout="v3", force=True, verify=True)
            except (WriteError, KeyboardInterrupt):
                return 1
        return 0

    states = set()
    for at in range(1, 9):
        calls = 0
        if how != "killed":
            code = attempt()
            assert code == 0 or contents_of(tmp_path) == there, at
        elif (child := os.fork()) == 0:
            os._exit(attempt())
        else:
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            break
        states.add(target.exists())
        assert not target.exists() or records_of(target) == [b"old", b"er"], at
        fffs.convert(source, target, layout="v3", force=True)
        old_files = [name for name in left_in(tmp_path) if name.endswith(".old")]
        assert sorted({*left_in(tmp_path)} - {*old_files}) == sorted({*there, "x.bag", "x.idx"}), at
        assert how == "killed" or not old_files, "only a killed process leaves them"
        for name in old_files:
            assert (tmp_path / name).read_bytes() in there.values()
            (tmp_path / name).unlink()
        put_back(tmp_path, there)
    assert (code, records_of(target)) == (0, new)
    assert states == ({True, False} if how == "killed" and old else {bool(old)})


def test_a_damaged_source_gives_no_result(tmp_path: Path) -> None:
    source = write_ffr(tmp_path / "x.ffr", RECORDS)
    data = bytearray(source.read_bytes())
    data[-3] ^= 1
    source.write_bytes(data)
    for name, options in (("x.tfrecord", {}), ("parts", {"to": "ofrecord", "parts": 3}), ("set", {"to": "granular"})):
        with pytest.raises(ChecksumError):
            fffs.convert(source, tmp_path / name, warn=lambda _: None, **options)
    with pytest.raises(ChecksumError):
        fffs.convert(source, tmp_path / "set3", to="granular", layout="v3", parts=2)
    assert left_in(tmp_path) == ["x.ffr"]


def test_what_is_there_is_replaced_only_with_force_and_only_by_success(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(tar_file(b"a") + END)
    (tmp_path / "bad.tar").write_bytes(tar_file(b"a"))
    write_ffr(tmp_path / "y.ffr", [b"old"])
    with pytest.raises(UsageError, match=r"y\.ffr: already exists; --force replaces it"):
        fffs.convert(tmp_path / "x.tar", tmp_path / "y.ffr")
    with pytest.raises(MetadataError):
        fffs.convert(tmp_path / "bad.tar", tmp_path / "y.ffr", force=True)
    assert split_records((tmp_path / "y.ffr").read_bytes()) == [b"old"]
    fffs.convert(tmp_path / "x.tar", tmp_path / "y.ffr", force=True)
    assert split_records((tmp_path / "y.ffr").read_bytes())[0] == b"content"


def test_a_source_that_cannot_be_closed_without_an_error_was_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some network file systems report errors at close; for a file that was only read they do not matter."""
    source = write_ffr(tmp_path / "x.ffr", [b"a", b"b"])
    make(tmp_path / "folder", {"a": b"a"})
    zip_folder(tmp_path / "folder", tmp_path / "x.zip")
    (tmp_path / "x.tar").write_bytes(tar_file(b"a") + END)
    fffs.convert(source, tmp_path / "set", to="granular")
    for name in ("x.tfrecord", "part-0", "x.bag"):
        fffs.convert(source, tmp_path / name)
    (tmp_path / "y.tfrecord.gz").write_bytes(gzip.compress((tmp_path / "x.tfrecord").read_bytes()))
    fffs.convert(source, tmp_path / "v3.bag", layout="v3")
    sources = [tmp_path / name for name in left_in(tmp_path) if not name.endswith(".idx")]
    failed = []

    def failing(fd: int, real: Any = os.close) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        real(fd)
        if path.startswith(str(tmp_path)) and "/out" not in path:
            failed.append(path)
            raise OSError(errno.EIO, "injected")

    (tmp_path / "out").mkdir()
    monkeypatch.setattr(os, "close", failing)
    for path in sources:
        failed.clear()
        fffs.convert(path, tmp_path / "out" / f"{path.name}.ffr", verify=True)
        assert failed, path


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    source = write_ffr(tmp_path / "x.ffr", [stretched(MIB, k) for k in range(8)])
    (tmp_path / "x.tar").write_bytes(tar_file(b"a", stretched(8 * MIB)) + END)
    with small_disk(tmp_path / "small", 4 * MIB) as disk:
        for origin, name, options in (
            (source, "x.ffr", {}),
            (source, "x.bag", {"layout": "v3"}),
            (source, "parts", {"to": "tfrecord", "parts": 3}),
            (source, "set", {"to": "granular", "layout": "v3"}),
            (tmp_path / "x.tar", "y.ffr", {}),
        ):
            with pytest.raises(WriteError) as caught:
                fffs.convert(origin, disk / name, **options)
            assert str(caught.value).startswith(str(disk / name)), name
            assert left_in(disk) == []


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    source = write_ffr(tmp_path / "x.ffr", RECORDS)
    (tmp_path / "x.tar").write_bytes(tar_file(b"a", stretched(MIB)) + END)

    def interrupt(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    for origin, name, options in (
        (source, "parts", {"to": "tfrecord", "parts": 2}),
        (source, "y.bag", {"layout": "v3"}),
        (source, "set", {"to": "granular"}),
        (tmp_path / "x.tar", "y.ffr", {}),
    ):
        with pytest.raises(KeyboardInterrupt):
            fffs.convert(origin, tmp_path / name, progress=interrupt, **options)
        assert left_in(tmp_path) == ["x.ffr", "x.tar"]


# ---------------------------------------------------------------- the command


def test_the_command_says_what_it_did(tmp_path: Path) -> None:
    source = write_ffr(tmp_path / "x.ffr", [b"abc"] * 10)
    result = run("convert", "--verify", source, "y.bag", cwd=tmp_path)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(b"y.bag: 10 records, 30 B in ")
    assert result.out.endswith(b", verified\n")
    result = run("convert", "--to", "tfrecord", "--part-size", "9", source, "parts", cwd=tmp_path)
    assert result.out.startswith(b"parts: 10 records in 4 parts, 30 B in ")
    options = ("--quiet", "--to", "granular", "--key", "k", "--layout", "v3")
    assert run("convert", *options, source, "set", cwd=tmp_path) == (0, b"", "")
    assert left_in(tmp_path / "set") == ["k.bag", "k.idx", "spec.json"]


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (["missing", "y.ffr"], 3, "no such file"),
        (["x.ffr", "there.ffr"], 2, "already exists"),
        (["x.ffr", "y"], 2, "--to"),
        (["--parts", "0", "x.ffr", "y"], 2, "not a number"),
        (["--part-size", "5 apples", "x.ffr", "y"], 2, "not a size"),
        (["--parts", "2", "--part-size", "1GiB", "x.ffr", "y"], 2, "not allowed with"),
        (["--from", "rar", "x.ffr", "y.ffr"], 2, "invalid choice"),
        (["cut.tar", "y.ffr"], 4, "truncated"),
        (["x.ffr", "nowhere/y.tfrecord"], 7, "there is no folder nowhere"),
    ],
)
def test_what_goes_wrong_is_one_line_and_an_exit_code(
    tmp_path: Path, arguments: list[str], code: int, problem: str
) -> None:
    write_ffr(tmp_path / "x.ffr", RECORDS)
    write_ffr(tmp_path / "there.ffr", RECORDS)
    (tmp_path / "cut.tar").write_bytes(tar_file(b"a"))
    result = run("convert", *arguments, cwd=tmp_path)
    assert result.code == code
    assert result.err.startswith("fffs: ")
    assert result.err.count("\n") == 1
    assert problem in result.err
    assert left_in(tmp_path) == ["cut.tar", "there.ffr", "x.ffr"]


def test_very_many_warnings_are_counted(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(tar_file(b"a") * 100 + END)
    result = run("convert", "x.tar", "x.ffr", cwd=tmp_path)
    assert result.code == 0
    lines = result.err.splitlines()
    assert len(lines) == 21
    assert lines[-1] == "fffs: warning: ... and 79 more warnings"
