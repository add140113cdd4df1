"""Plans of conversions: all decisions are made, and all refusals raised, before anything is written."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from inside import Content, Request, Result, make_plan

import fffs
from fffs.errors import SourceNotFoundError, UsageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Sources of several kinds."""
    with fffs.FileWriter(tmp_path / "x.ffr", 2) as writer:
        for record in (b"a", b"b"):
            writer.write_one(record)
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "file").write_bytes(b"content")
    fffs.pack_folder(tmp_path / "f", tmp_path / "pack.ffr")
    fffs.convert(tmp_path / "x.ffr", tmp_path / "set", to="granular")
    fffs.convert(tmp_path / "set", tmp_path / "set.ffr")
    fffs.convert(tmp_path / "x.ffr", tmp_path / "x.bag", layout="v3")
    fffs.convert(tmp_path / "x.ffr", tmp_path / "sets", to="ffrecord", parts=2)
    return tmp_path


def request(folder: Path, source: str, target: str, **options: Any) -> Request:
    return Request(str(folder / source), str(folder / target), **options)


def state(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_ino) for path in (folder, *folder.rglob("*"))}


@pytest.mark.parametrize(
    ("source", "target", "options", "expected"),
    [
        ("x.ffr", "y.tfrecord", {}, (Content.RECORDS, Result.FILES, "tfrecord", [])),
        ("x.ffr", "parts", {"to": "ofrecord", "parts": 2}, (Content.RECORDS, Result.FILES, "ofrecord", [])),
        ("x.ffr", "y", {"to": "granular"}, (Content.RECORDS, Result.DATA_SET, "granular", [])),
        ("x.ffr", "x.bag", {"layout": "v3", "force": True}, (Content.RECORDS, Result.FILES, "bag", ["x.bag", "x.idx"])),
        ("x.ffr", "x.bag", {"to": "tfrecord", "force": True}, (Content.RECORDS, Result.FILES, "tfrecord", ["x.bag"])),
        ("f", "y.ffr", {}, (Content.FOLDER, Result.PACK, "ffrecord", [])),
        ("pack.ffr", "y.bag", {}, (Content.RECORDS, Result.FILES, "bag", [])),
        ("set", "y", {}, (Content.COLUMN, Result.DATA_SET, "granular", [])),
        ("set", "y.bag", {}, (Content.COLUMN, Result.FILES, "bag", [])),
        ("sets", "sets/y.bag", {}, (Content.RECORDS, Result.FILES, "bag", [])),
        ("sets", "sets/y", {"to": "tfrecord", "parts": 3}, (Content.RECORDS, Result.FILES, "tfrecord", [])),
        ("set", "x.ffr", {"force": True}, (Content.COLUMN, Result.PACK, "ffrecord", ["x.ffr"])),
        ("set", "y", {"to": "ffrecord", "parts": 2}, (Content.COLUMN, Result.FILES, "ffrecord", [])),
        ("set.ffr", "y", {}, (Content.PACKED_ROWS, Result.DATA_SET, "granular", [])),
        ("set.ffr", "y.ffr", {"from_": "ffrecord"}, (Content.RECORDS, Result.FILES, "ffrecord", [])),
    ],
)
def test_a_plan_says_what_becomes_of_a_source_and_changes_nothing(
    folder: Path, source: str, target: str, options: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    before = state(folder)
    plan = make_plan(request(folder, source, target, **options))
    assert state(folder) == before
    replaced = [str(Path(name).relative_to(folder)) for name in plan.replaced]
    assert (plan.content, plan.result, plan.to, replaced) == expected
    assert bool(plan.warnings) == (source == "pack.ffr")
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.kind = "tar"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("source", "target", "options", "problem"),
    [
        ("x.ffr", "y", {}, "--to"),
        ("x.ffr", "y.tfrecord", {"to": "ffrecord"}, "must end in .ffr"),
        ("x.ffr", "y", {"to": "bag"}, "must end in .bag"),
        ("x.ffr", "y", {"to": "bag", "parts": 2}, "Bags have no parts"),
        ("x.ffr", "x.bag", {"force": True}, "remove .*x.idx first"),
        ("x.ffr", "x.bag", {"layout": "v3"}, "--force replaces it"),
        ("x.ffr", "x.ffr", {"force": True}, "the source itself"),
        ("set", "set/y.bag", {}, "is in the source"),
        ("sets", "sets/y.ffr", {}, "would become a part of the source"),
        ("sets", "f/../sets/y.tfrecord", {}, "would become a part of the source"),
        ("sets", "sets/part-00000", {"to": "ofrecord"}, "would become a part of the source"),
        ("sets", "sets/y-00003-of-00010.tfrecord", {}, "would become a part of the source"),
        ("sets", "sets/y.ffr", {"to": "granular"}, "would become a part of the source"),
        ("set", "f", {"force": True}, "not empty"),
        ("f", "y.bag", {}, "a folder can only become a packed folder"),
        ("f", "y.ffr", {"parts": 2}, "without parts"),
        ("pack.ffr", "y", {"to": "tfrecord", "parts": 2}, "--from ffrecord"),
        ("pack.ffr", "y", {"to": "ffrecord", "parts": 2}, "omit --parts and --part-size"),
        ("set", "y", {"to": "ffrecord", "parts": 2, "align": True}, "--align is for packed folders only"),
        ("pack.ffr", "y", {}, "--to"),
        ("x.ffr", "y.bag", {"parts": 2, "part_size": 3}, "not both"),
        ("x.ffr", "y.bag", {"layout": "v2"}, "only v1 and v3"),
        ("x.ffr", "y.bag", {"jobs": -1}, "at least 1"),
        ("x.ffr", "y.bag", {"from_": "rar"}, "there is no format 'rar'"),
    ],
)
def test_what_is_refused_is_refused_by_the_plan(
    folder: Path, source: str, target: str, options: dict[str, Any], problem: str
) -> None:
    before = state(folder)
    with pytest.raises(UsageError, match=problem):
        make_plan(request(folder, source, target, **options))
    assert state(folder) == before


def test_a_plan_needs_a_source(folder: Path) -> None:
    with pytest.raises(SourceNotFoundError):
        make_plan(request(folder, "missing", "y.bag"))


@pytest.mark.parametrize("name", ["y.zip", "y.tgz", "y.TAR.GZ"])
@pytest.mark.parametrize("source", ["f", "pack.ffr", "x.ffr"])
def test_that_no_archive_is_written_is_the_first_thing_said(folder: Path, source: str, name: str) -> None:
    with pytest.raises(UsageError, match=rf"{name}: such archives are read and not written; .*fffs unpack"):
        make_plan(request(folder, source, name))


def test_that_packs_have_no_parts_is_said_before_a_format_is_asked_for(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"pack.ffr: a packed folder: .* as with --from ffrecord --to tfrecord"):
        make_plan(request(folder, "pack.ffr", "y", parts=2))
    make_plan(request(folder, "pack.ffr", "y", parts=2, from_="ffrecord", to="tfrecord"))


@pytest.mark.parametrize(
    ("source", "target", "options"),
    [
        ("pack.ffr", "y.tar", {"key": "jpg"}),
        ("pack.ffr", "y.parquet", {"key": "data"}),  # also if it is the default
        ("x.ffr", "y.array_record", {"key": "jpg"}),
        ("x.ffr", "y.tfrecord", {"key": "jpg"}),
        ("set", "y", {"key": "jpg"}),
        ("f", "y.ffr", {"key": "jpg"}),
        ("x.ffr", "y.tfrecord", {"layout": "v3"}),
        ("x.ffr", "y.tar", {"layout": "v3"}),
        ("f", "y.ffr", {"layout": "v1"}),
    ],
)
def test_an_option_that_a_conversion_does_not_use_is_refused_before_it_begins(
    folder: Path, source: str, target: str, options: dict[str, Any]
) -> None:
    before = state(folder)
    with pytest.raises(UsageError, match=f"omit --{next(iter(options))}$"):
        fffs.convert(folder / source, folder / target, **options)
    assert state(folder) == before


@pytest.mark.parametrize("option", [{"layout": "v3"}, {"key": "jpg"}])
def test_options_of_single_files_are_refused_by_tasks(folder: Path, option: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(option))} cannot be combined with this; omit it"):
        fffs.convert(folder / "x.ffr", folder / "y", to="bag", parts=2, executor="threads:1", **option)
    assert not (folder / "y").exists()
