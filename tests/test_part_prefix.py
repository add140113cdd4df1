"""Folders of OFRecord parts with other names than part-0: every reader, command and mount that takes --prefix."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from inside import expand_sources, load_shown, parse_options, run_program
from mounting import Mounts

import fffs
from fffs.errors import FffsError, FormatError, SourceNotFoundError, UsageError

RECORDS = [bytes([k]) * (k + 1) for k in range(12)]


def parts(folder: Path, names: list[str]) -> Path:
    """Make a folder of parts with one record each. No part has an OFRecord message, nor a name that says its format."""
    folder.mkdir()
    for name, record in zip(names, RECORDS, strict=False):
        with fffs.ofrecord.OFRecordWriter(folder / name) as writer:
            writer.write_one(record)
    (folder / "_SUCCESS").touch()
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of twelve parts whose names do not sort by their numbers."""
    return parts(tmp_path / "set", [f"data_{k}" for k in range(12)])


def read(reader: Any) -> list[bytes]:
    with reader:
        return [record.tobytes() for record in reader.read(range(reader.n))]


def test_every_reader_takes_a_prefix(folder: Path) -> None:
    assert read(fffs.open(folder, prefix="data_")) == RECORDS
    assert read(fffs.open(str(folder), format="ofrecord", prefix="data_")) == RECORDS
    reader = fffs.FileReader([folder, folder / "data_3"], prefix="data_")
    assert read(pickle.loads(pickle.dumps(reader))) == read(reader) == [*RECORDS, RECORDS[3]]
    with fffs.load_source(folder, prefix="data_") as source:
        assert source.store.n == 12
    with pytest.raises(SourceNotFoundError, match="nor OFRecord parts"):
        fffs.open(folder)


@pytest.mark.parametrize(
    ("names", "prefix", "count"),
    [
        (["x00", "x01", "x02"], "x", 3),
        (["x0", "x01", "x002"], "x", 3),
        (["0", "1", "2"], "", 3),
        (["2020-0", "2020-1"], "2020-", 2),
        (["part-x0", "part-x1", "part-0", "part-1"], "part-x", 2),
        (["a*0", "a*1", "ab0"], "a*", 2),
    ],
)
def test_zeros_before_a_number_do_not_matter_and_any_text_is_a_prefix(
    tmp_path: Path, names: list[str], prefix: str, count: int
) -> None:
    found = expand_sources(parts(tmp_path / "set", names), prefix)
    assert [Path(path).name for path in found] == names[:count]


@pytest.mark.parametrize(
    ("names", "prefix", "error", "problem"),
    [
        (["d0", "d2"], "d", SourceNotFoundError, r"part 1 missing \(there are 2 of 3\)"),
        (["d1"], "d", SourceNotFoundError, "part 0 missing"),
        (["d999999999"], "d", SourceNotFoundError, "part 0, 1, 2, 3, 4 and 999999994 more missing"),
        (["d1", "d01", "d0"], "d", FormatError, "d01 and d1 have the same number; remove one of them"),
        (["part-0"], "d", SourceNotFoundError, r"no parts \(d0, d1, …\) in this folder"),
        (["d\N{ARABIC-INDIC DIGIT ZERO}", "d1000000000"], "d", SourceNotFoundError, "no parts"),
        (["d0"], "../set/d", UsageError, "without a folder"),
        (["d0"], "d\0", UsageError, "without a folder"),
        (["d0"], 7, UsageError, "the prefix 7 must be"),
    ],
)
def test_sets_that_lack_parts_or_have_two_are_refused(
    tmp_path: Path, names: list[str], prefix: Any, error: type[FffsError], problem: str
) -> None:
    with pytest.raises(error, match=problem):
        fffs.open(parts(tmp_path / "set", names), prefix=prefix)


@pytest.mark.parametrize("form", ["ffrecord", "tfrecord", "bag"])
def test_a_prefix_is_for_one_format(folder: Path, form: str) -> None:
    problem = f"is for parts of OFRecord; files of the format '{form}' have none"
    for load in (fffs.open, fffs.FileReader, fffs.load_source, load_shown):
        with pytest.raises(UsageError, match=problem):
            load(folder, format=form, prefix="data_")
    with pytest.raises(UsageError, match=problem):
        fffs.convert(folder, folder / "x", from_=form, prefix="data_")
    with pytest.raises(UsageError, match=problem):
        fffs.plan_convert(folder, folder / "x", 2, from_=form, prefix="data_")


def test_every_command_takes_a_prefix(folder: Path, tmp_path: Path, capsysbinary: Any) -> None:
    def run(*arguments: object) -> bytes:
        assert run_program([str(argument) for argument in arguments]) == 0
        return capsysbinary.readouterr().out

    assert run("ls", folder, "--prefix", "data_").split() == [b"%06d" % k for k in range(12)]
    assert run("cat", "--prefix=data_", "--format=ofrecord", folder, "000011") == RECORDS[11]
    assert json.loads(run("info", "--json", "--prefix", "data_", folder))["records"] == 12
    assert run("verify", "--keep", "--prefix", "data_", folder).startswith(b"ok: 12 records")
    assert len(list(folder.glob("data_*.fffs-crc"))) == 12
    assert b"ok: 12 records" in run("verify", "--executor", "processes:1", "--prefix", "data_", folder)
    run("unpack", "--prefix", "data_", folder, tmp_path / "out")
    assert [path.read_bytes() for path in sorted((tmp_path / "out").iterdir())] == RECORDS
    for target, *options in (
        ["a.ffr"],
        ["b", "--parts=2", "--to=tfrecord"],
        ["c", "--parts=2", "--executor=processes:1"],
    ):
        run("convert", "-q", "--prefix", "data_", folder, tmp_path / target, *options)
        assert read(fffs.open(tmp_path / target)) == RECORDS
    run("plan", "convert", "--parts", "3", "--prefix", "data_", folder, tmp_path / "d")
    run("plan", "run", tmp_path / "d")
    run("plan", "commit", tmp_path / "d")
    assert read(fffs.open(tmp_path / "d")) == RECORDS


def test_a_conversion_does_not_become_a_part_of_its_source(folder: Path) -> None:
    with pytest.raises(UsageError, match="would become a part of the source"):
        fffs.convert(folder, folder / "data_12", to="bag", prefix="data_")
    assert not (folder / "data_12").exists()


def test_a_mount_takes_a_prefix_in_its_options(folder: Path, mounts: Mounts) -> None:
    assert parse_options(["format=ofrecord,prefix=data_"]).prefix == "data_"
    assert parse_options(['prefix="a,b"', "x-systemd.automount"]).prefix == "a,b"
    assert (parse_options(["prefix="]).prefix, parse_options([]).prefix) == ("", None)
    mounted = mounts(folder, prefix="data_")
    assert [path.read_bytes() for path in sorted(mounted.iterdir())] == RECORDS


def test_a_mount_of_parts_that_are_not_there_says_so(folder: Path) -> None:
    (folder / "data_5").unlink()
    with pytest.raises(SourceNotFoundError, match="part 5 missing"):
        load_shown(folder, prefix="data_")
