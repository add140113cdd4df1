"""Aligned packs: files begin where the kernel can read them, and everything else is as in other packs."""

from __future__ import annotations

import json
import os
import random
import subprocess
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import MIB, Pack, differences, snapshot, split_records, stretched, unpickle
from inside import AtomicFile, load_source, pack_file, run_program, unpack, verify
from test_trailer import Lies, open_and_look

import fffs
import fffs.torch
from fffs.errors import ChecksumError, FormatError, MetadataError, UnsupportedError, UsageError

# Around the unit, and around a block of 1 MiB: records up to that are copied many at a time.
SIZES = (0, 1, 511, 512, 513, 0, 5000, MIB - 1, MIB, MIB + 1, 3 * MIB + 17, 1, 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "folder"
    for part in ("", "b", "b/c", "d"):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for k, size in enumerate(SIZES):
            (folder / part / f"{k:02}").write_bytes(stretched(size, k))
    for k in range(3000):
        (folder / "d" / f"small{k}").write_bytes(stretched(k % 700, k))
    os.link(folder / "01", folder / "b" / "hard")
    (folder / "link").symlink_to("b/03")
    return folder


@pytest.fixture(scope="module")
def aligned(folder: Path) -> Path:
    fffs.pack_folder(folder, folder.parent / "aligned.ffr", align=True)
    return folder.parent / "aligned.ffr"


def test_files_begin_at_multiples_and_zeros_fill_the_gaps(folder: Path, aligned: Path) -> None:
    with load_source(aligned) as source:
        tree, index = source.tree, source.store.files[0].index
        data, named = aligned.read_bytes(), set[int]()
        for path, node in tree.walk():
            if tree.is_file(node):
                record = tree.record(node)
                named.add(record)
                begin, end = int(index.starts[record]), int(index.ends[record])
                unit = 4096 if end - begin >= 64 << 10 else 512
                assert begin % unit == 0 and begin - int(index.starts[record - 1]) < unit
                assert data[begin:end] == (folder / os.fsdecode(path)).read_bytes()
        padding = sorted(set(range(len(index) - 1)) - named)
        assert padding == list(range(0, len(index) - 1, 2))
        for record in padding:
            begin, end = int(index.starts[record]), int(index.ends[record])
            assert not any(data[begin:end])
        assert verify(source) == []
        assert index.alignment == 9


def test_padding_is_counted_apart(aligned: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_program(["info", "--json", str(aligned)]) == 0
    facts = json.loads(capfd.readouterr().out)
    assert facts["records"] == facts["files"] + facts["padding_records"] + 1


def test_the_same_names_lead_to_the_same_bytes(folder: Path, aligned: Path, tmp_path: Path) -> None:
    fffs.pack_folder(folder, tmp_path / "plain.ffr")
    assert open_and_look(aligned) == open_and_look(tmp_path / "plain.ffr")
    unpack(aligned, tmp_path / "restored")
    assert not differences(snapshot(folder), snapshot(tmp_path / "restored"))
    with fffs.PackedFolder(aligned) as one, fffs.PackedFolder(tmp_path / "plain.ffr") as other:
        assert one.num_files() == other.num_files()
    one, other = (fffs.torch.PackedFolder(path) for path in (aligned, tmp_path / "plain.ffr"))
    assert one.samples == other.samples and len(one) > 3000
    assert all(bytes(one[k][0]) == bytes(other[k][0]) for k in range(0, len(one), 7))


def test_ffrecord_reads_it_by_names(folder: Path, aligned: Path) -> None:
    def look(items: dict[str, Any], where: Path) -> int:
        count = 0
        for name, value in items.items():
            if isinstance(value, dict):
                count += look(value, where / name)
            else:
                assert pack.records[value] == (where / name).read_bytes()
                count += 1
        return count

    pack = Pack.parse(aligned.read_bytes())
    assert look(unpickle(pack.pickle), folder) > 3000


@pytest.mark.parametrize("jobs", [1, 5])
def test_any_number_of_jobs_and_any_way_give_the_same_bytes(
    jobs: int, folder: Path, aligned: Path, tmp_path: Path
) -> None:
    fffs.pack_folder(folder, tmp_path / "jobs.ffr", jobs=jobs, align=True)
    fffs.pack_folder(folder, tmp_path / "plain.ffr")
    fffs.convert(tmp_path / "plain.ffr", tmp_path / "again.ffr", align=True, verify=True, jobs=jobs)
    fffs.convert(folder, tmp_path / "folder.ffr", align=True, verify=True, jobs=jobs)
    subprocess.run(["tar", "--format=pax", "-cf", tmp_path / "t.tar", "-C", folder, "."], check=True)
    fffs.convert(tmp_path / "t.tar", tmp_path / "tar.ffr", align=True, verify=True, jobs=jobs)
    for name in ("jobs", "again", "folder", "tar"):
        assert (tmp_path / f"{name}.ffr").read_bytes() == aligned.read_bytes(), name


def test_aligned_becomes_other_formats_and_comes_back(aligned: Path, tmp_path: Path) -> None:
    fffs.convert(aligned, tmp_path / "records.tfrecord", verify=True)
    fffs.convert(tmp_path / "records.tfrecord", tmp_path / "back.ffr", verify=True)
    assert (tmp_path / "back.ffr").read_bytes() == aligned.read_bytes()
    fffs.convert(aligned, tmp_path / "twice.ffr", align=True, verify=True)
    assert (tmp_path / "twice.ffr").read_bytes() == aligned.read_bytes()


def test_a_data_set_becomes_an_aligned_pack_and_comes_back(tmp_path: Path) -> None:
    with fffs.FileWriter(tmp_path / "records.ffr", 3) as writer:
        for record in (b"first", b"", b"third" * 300):
            writer.write_one(record)
    fffs.convert(tmp_path / "records.ffr", tmp_path / "set", to="granular")
    fffs.convert(tmp_path / "set", tmp_path / "set.ffr", align=True, verify=True)
    with load_source(tmp_path / "set.ffr") as source:
        assert source.store.files[0].index.alignment == 9
    fffs.convert(tmp_path / "set.ffr", tmp_path / "again", to="granular")
    assert contents_of(tmp_path / "set") == contents_of(tmp_path / "again")


def contents_of(folder: Path) -> Any:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("target", ["records.tfrecord", "records.bag", "set"])
def test_only_packed_folders_can_be_aligned(aligned: Path, tmp_path: Path, target: str) -> None:
    with fffs.FileWriter(tmp_path / "records.ffr", 1) as writer:
        writer.write_one(b"record")
    for source in (aligned, tmp_path / "records.ffr"):
        with pytest.raises(UsageError, match="omit --align"):
            fffs.convert(source, tmp_path / target, align=True, to="granular" if target == "set" else None)
    with pytest.raises(UsageError, match="omit --align"):
        fffs.convert(tmp_path / "records.ffr", tmp_path / "other.ffr", align=True)


def test_a_union_with_a_pack_that_is_not_aligned(folder: Path, aligned: Path, tmp_path: Path) -> None:
    fffs.pack_folder(folder / "b", tmp_path / "plain.ffr")
    with fffs.PackedFolder([tmp_path / "plain.ffr", aligned]) as union:
        assert bytes(union.read_one("c/03")) == (folder / "b" / "c" / "03").read_bytes()
        assert bytes(union.read_one("d/small699")) == (folder / "d" / "small699").read_bytes()


def test_the_largest_packs_have_larger_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond 2 TiB, block numbers of 512 bytes have more than 32 bits."""
    with AtomicFile(str(tmp_path / "p.ffr")) as file:
        for size, alignment in ((2**41 - 2**20, 9), (2**41, 12), (2**43, 12)):
            pack = pack_file.PackFile(file, np.array([size, 5]), align=True)
            assert pack.alignment == alignment
            assert not (pack.offsets % (1 << alignment)).any()


def test_short_and_long_files_in_any_order(tmp_path: Path) -> None:
    rng = random.Random(4096)
    for k in range(40):
        sizes = [rng.choice((0, 1, 512, 5000, 65535, 65536, 70001, 131072)) for _ in range(rng.randrange(30))]
        with AtomicFile(str(tmp_path / "p.ffr")) as file:
            pack = pack_file.PackFile(file, np.array(sizes, np.int64), align=True)
            end = int(pack.offsets[0]) if not sizes else 0
            for offset, size in zip(pack.offsets.tolist(), sizes, strict=False):
                unit = 4096 if size >= 65536 else 512
                assert offset % unit == 0 and (end == 0 or end <= offset < end + unit), (k, sizes)
                end = offset + size
            assert end <= pack.offsets[-1] < end + 512


# ---------------------------------------------------------------- damage


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("small")
    for name, content in (("a", b"first"), ("b", b""), ("c", bytes(600))):
        (folder / name).write_bytes(content)
    fffs.pack_folder(folder, folder.parent / "small.ffr", align=True)
    return (folder.parent / "small.ffr").read_bytes()


def test_every_flipped_bit_is_found(small: bytes, tmp_path: Path) -> None:
    path = tmp_path / "p.ffr"
    path.write_bytes(small)
    with fffs.FileReader(path) as reader, open(path, "r+b", buffering=0) as file:
        first = len(small) - sum(map(len, split_records(small)))
        for position in range(first, len(small)):
            for bit in range(8):
                os.pwrite(file.fileno(), bytes([small[position] ^ 1 << bit]), position)
                with pytest.raises(ChecksumError):
                    reader.read(range(reader.n))
            os.pwrite(file.fileno(), small[position : position + 1], position)
        reader.read(range(reader.n))


def test_a_pack_cut_at_any_byte_is_refused(small: bytes, tmp_path: Path) -> None:
    path = tmp_path / "p.ffr"
    for size in range(len(small)):
        path.write_bytes(small[:size])
        with pytest.raises(FormatError):
            fffs.PackedFolder(path)


@pytest.mark.parametrize("alignment", [0, 1, 8, 10, 12, 13, 64, 2**32 - 1])
def test_another_alignment_in_the_trailer(alignment: int, small: bytes, tmp_path: Path) -> None:
    trailer = Lies.parse(split_records(small)[-1])
    assert trailer is not None and trailer.flags == 9
    trailer.flags = alignment
    pack = Pack.parse(small)
    pack.trailer = trailer
    (tmp_path / "p.ffr").write_bytes(pack.build())
    if alignment == 12:  # nothing but the mount relies on it, and looks
        assert open_and_look(tmp_path / "p.ffr")
        return
    with pytest.raises((MetadataError, UnsupportedError), match=r"belongs to another file|newer version"):
        load_source(tmp_path / "p.ffr")


def test_checksums_of_zeros() -> None:
    assert pack_file.checksums_of_zeros().tolist() == [zlib.crc32(bytes(k)) for k in range(4096)]
