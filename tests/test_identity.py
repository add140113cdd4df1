"""Copies of readers: they open the same files, wherever these are, and no others."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from builders import record_file
from inside import identity, keep_checksums

import fffs
from fffs.errors import ClosedError, SourceChangedError
from fffs.granular import (
    BagReader,
    BagWriter,
    DatasetReader,
    DatasetWriter,
    ShardedDatasetReader,
    ShardedDatasetWriter,
)
from fffs.ofrecord import OFRecordWriter
from fffs.tfrecord import TFRecordWriter

Write = Callable[[Path, bytes], object]


def write_records(writer: Any, content: bytes) -> None:
    with writer:
        for k in range(3):
            (writer.append if isinstance(writer, BagWriter) else writer.write_one)(content + b"%d" % k)


def write_data_set(path: Path, content: bytes, kind: str = "bytes") -> None:
    with DatasetWriter(path, {"key": kind}) as writer:
        for k in range(3):
            writer.append({"key": content + b"%d" % k})


def write_shards(path: Path, content: bytes) -> None:
    with ShardedDatasetWriter(path, {"key": "bytes"}, shard_length=2) as writer:
        for k in range(3):
            writer.append({"key": content + b"%d" % k})


def write_pack(path: Path, content: bytes) -> None:
    folder = path.with_name("folder")
    folder.mkdir()
    (folder / "x").write_bytes(content)
    for name in (folder / "x", folder):
        os.utime(name, ns=(0, 0))
    fffs.pack_folder(folder, path)
    shutil.rmtree(folder)


KINDS: dict[str, tuple[str, Write, Callable[[Path], Any]]] = {
    "ffrecord": ("a.ffr", lambda path, c: path.write_bytes(record_file([c, c + b"1"])), fffs.FileReader),
    "list": ("a.ffr", lambda path, c: path.write_bytes(record_file([c])), lambda path: fffs.FileReader([path, path])),
    "tfrecord": ("a.tfrecord", lambda path, c: write_records(TFRecordWriter(path), c), fffs.FileReader),
    "ofrecord": ("part-0", lambda path, c: write_records(OFRecordWriter(path), c), fffs.FileReader),
    "bag": ("a.bag", lambda path, c: write_records(BagWriter(path), c), fffs.FileReader),
    "bag reader": ("a.bag", lambda path, c: write_records(BagWriter(path), c), BagReader),
    "data set": ("set", write_data_set, DatasetReader),
    "sharded": ("shards", write_shards, ShardedDatasetReader),
    "pack": ("a.ffr", write_pack, fffs.PackedFolder),
}


def in_place_of(path: Path, write: Write, content: bytes, mtime: int) -> None:
    """Put another file at a path, with a modification time."""
    new = path.with_name("new") / path.name
    new.parent.mkdir()
    write(new, content)
    for file in [new, *new.rglob("*")]:
        os.utime(file, ns=(mtime, mtime))
    if path.is_dir():
        shutil.rmtree(path)
    os.replace(new, path)
    new.parent.rmdir()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Write, Any]:
    name, write, open_ = KINDS[request.param]
    in_place_of(tmp_path / name, write, b"bytes", 10**18)
    return tmp_path / name, write, open_


def test_a_copy_over_another_file_is_an_error(kind: tuple[Path, Write, Any]) -> None:
    path, write, open_ = kind
    with open_(path) as reader:
        pickled = pickle.dumps(reader)
        in_place_of(path, write, b"other", 10**18 + 1)
        for make in (lambda: pickle.loads(pickled), lambda: pickle.dumps(reader)):
            with pytest.raises(SourceChangedError, match="not the same file any more") as caught:
                make()
            assert str(path) in str(caught.value) and "\n" not in str(caught.value)
        in_place_of(path, write, b"bytes", 10**18)
        pickle.loads(pickled).close()


@pytest.mark.parametrize(("content", "mtime", "is_other"), [(b"bytes", 1, False), (b"longer than bytes", 0, True)])
def test_a_copy_on_another_machine_opens_its_own_copy_and_none_of_another_length(
    kind: tuple[Path, Write, Any], monkeypatch: pytest.MonkeyPatch, content: bytes, mtime: int, is_other: bool
) -> None:
    path, write, open_ = kind
    with open_(path) as reader:
        pickled = pickle.dumps(reader)
    in_place_of(path, write, content, 10**18 + mtime)
    monkeypatch.setattr(identity, "boot_id", lambda: "of another machine")
    with pytest.raises(SourceChangedError) if is_other else contextlib.nullcontext():
        pickle.loads(pickled).close()


def test_checksums_that_were_made_meanwhile_make_no_other_file(tmp_path: Path) -> None:
    write_records(BagWriter(tmp_path / "a.bag"), b"bytes")
    pickled = pickle.dumps(fffs.FileReader(tmp_path / "a.bag"))
    keep_checksums(tmp_path / "a.bag")
    with pickle.loads(pickled) as reader:
        assert reader.read_one(1).tobytes() == b"bytes1"


def test_a_folder_with_more_files_is_another_one(tmp_path: Path) -> None:
    write_pack(tmp_path / "a.ffr", b"bytes")
    pickled = pickle.dumps(fffs.PackedFolder(tmp_path))
    write_pack(tmp_path / "b.ffr", b"bytes")
    with pytest.raises(SourceChangedError, match="there are 2 files now, and were 1"):
        pickle.loads(pickled)


def test_a_data_set_with_other_types_is_another_one(tmp_path: Path) -> None:
    write_data_set(tmp_path / "set", b"bytes")
    pickled = pickle.dumps(DatasetReader(tmp_path / "set"))
    spec = tmp_path / "set/spec.json"
    spec.write_text(spec.read_text().replace("bytes", "int"))
    with pytest.raises(SourceChangedError, match=r"spec\.json"):
        pickle.loads(pickled)


def test_names_of_one_pack_never_lead_to_bytes_of_another(tmp_path: Path) -> None:
    write_pack(tmp_path / "a.ffr", b"bytes")
    with fffs.PackedFolder(tmp_path / "a.ffr") as folder:
        write_pack(tmp_path / "a.ffr", b"other")
        with pytest.raises(SourceChangedError):
            _ = folder.reader


def test_threads_that_ask_for_the_reader_at_once_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "name").write_bytes(b"content")
    fffs.pack_folder(tmp_path / "folder", tmp_path / "x.ffr")
    ready, real = threading.Barrier(4), fffs.packed_folder.FileReader
    made = []

    def slow(*arguments: Any) -> fffs.FileReader:
        ready.wait(60)
        made.append(real(*arguments))
        return made[-1]

    monkeypatch.setattr(fffs.packed_folder, "FileReader", slow)
    with fffs.PackedFolder(tmp_path / "x.ffr") as packed:
        with ThreadPoolExecutor(4) as pool:
            readers = set(pool.map(lambda _: packed.reader, range(4)))
        (reader,) = readers
        assert [one for one in made if not is_closed(one)] == [reader]
        assert bytes(reader.read_one(0)) == b"content"
    assert is_closed(reader)


def is_closed(reader: fffs.FileReader) -> bool:
    with contextlib.suppress(ClosedError):
        reader.read_one(0)
        return False
    return True
