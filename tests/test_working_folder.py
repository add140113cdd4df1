"""Readers that were opened by relative names: copies open the same files after a change of the working folder."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from builders import as_nobody
from inside import keep_checksums
from test_identity import KINDS, in_place_of, write_records

import fffs
from fffs.errors import SourceChangedError, SourceNotFoundError
from fffs.granular import BagReader, BagWriter
from fffs.mount import mounted

OPENED = 10**18  # modification time of all files here: nothing but their names tells them apart


def shown(reader: Any) -> bytes:
    """Return the content of a reader of one of ``KINDS``."""
    if isinstance(reader, fffs.PackedFolder):
        return bytes(reader.read("x"))
    return reader[1]["key"] if hasattr(reader, "spec") else bytes(reader.read_one(1))


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for decoys; the working folder is another one."""
    for name in ("here", "elsewhere"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "elsewhere"


@pytest.fixture(params=KINDS)
def moved(request: pytest.FixtureRequest, elsewhere: Path) -> Any:
    """Return a reader that was opened by a relative name which leads to a decoy now, and the content of its file."""
    name, write, open_ = KINDS[request.param]
    write_both(elsewhere, name, write)
    with open_(name) as reader:
        content = shown(reader)
        os.chdir(elsewhere)
        yield reader, content


def write_both(elsewhere: Path, name: str, write: Any) -> None:
    in_place_of(Path.cwd() / name, write, b"bytes", OPENED)
    in_place_of(elsewhere / name, write, b"decoy", OPENED)


def test_copies_open_the_files_that_the_reader_has(moved: tuple[Any, bytes]) -> None:
    reader, content = moved
    for again in (pickle.loads(pickle.dumps(reader)), copy.copy(reader)):
        with again, pickle.loads(pickle.dumps(again)) as third:
            assert shown(again) == shown(third) == content
            for name in ("path", "fnames"):
                assert getattr(again, name, None) == getattr(third, name, None) == getattr(reader, name, None)


def test_processes_that_are_spawned_in_another_folder_open_the_same_files(elsewhere: Path) -> None:
    readers, contents = [], []
    for number, (name, write, open_) in enumerate(KINDS.values()):
        for place in (Path.cwd(), elsewhere):
            (place / f"{number}").mkdir()
        name = f"{number}/{name}"
        write_both(elsewhere, name, write)
        readers.append(open_(name))
        contents.append(shown(readers[-1]))
    os.chdir(elsewhere)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(shown, readers) == contents
    for reader in readers:
        reader.close()


def test_a_file_that_was_replaced_is_noticed_from_another_folder(elsewhere: Path) -> None:
    name, write, open_ = KINDS["bag"]
    write_both(elsewhere, name, write)
    here = Path.cwd()
    with open_(name) as reader:
        os.chdir(elsewhere)
        in_place_of(here / name, write, b"other", OPENED + 1)
        with pytest.raises(SourceChangedError, match="not the same file any more"):
            pickle.dumps(reader)


def test_the_samples_of_an_image_folder_are_those_of_its_file(elsewhere: Path) -> None:
    torch = pytest.importorskip("fffs.torch")
    for place in (Path.cwd(), elsewhere):
        (place / "in" / place.name).mkdir(parents=True)
        (place / "in" / place.name / "a.jpg").write_bytes(place.name.encode())
        fffs.pack_folder(place / "in", place / "a.ffr")
    dataset = torch.PackedFolder("a.ffr")
    os.chdir(elsewhere)
    for again in (pickle.loads(pickle.dumps(dataset)), copy.copy(dataset), dataset):
        assert again.samples == [("here/a.jpg", 0)]
        assert bytes(again[0][0]) == b"here"


def test_workers_of_a_loader_read_the_files_of_the_data_set(elsewhere: Path) -> None:
    torch = pytest.importorskip("fffs.torch")
    name, write, _ = KINDS["ofrecord"]
    write_both(elsewhere, name, write)
    dataset = torch.Dataset(name)
    os.chdir(elsewhere)
    loader = torch.DataLoader(dataset, 3, num_workers=1, multiprocessing_context="spawn")
    assert [bytes(row) for batch in loader for row in batch] == [b"bytes0", b"bytes1", b"bytes2"]
    assert dataset.fnames == name


def test_the_reader_of_a_packed_folder_is_opened_where_the_folder_was(elsewhere: Path) -> None:
    name, write, open_ = KINDS["pack"]
    write_both(elsewhere, name, write)
    with open_(name) as folder:
        os.chdir(elsewhere)
        assert bytes(folder.reader.read_one(0)) == b"bytes"


def test_a_table_and_checksums_are_looked_for_beside_the_file(elsewhere: Path) -> None:
    for place, content in ((Path.cwd(), b"bytes"), (elsewhere, b"longer")):
        write_records(BagWriter(place / "a.bag", layout="v3"), content)
        keep_checksums(place / "a.bag")
    with fffs.FileReader("a.bag") as reader, BagReader("a.bag") as bag:
        os.chdir(elsewhere)
        reader.validate()
        for one in (reader, bag):
            with pickle.loads(pickle.dumps(one)) as again:
                assert bytes(again.read_one(1)) == b"bytes1"


def test_the_folder_above_a_link_is_not_that_of_the_link(elsewhere: Path) -> None:
    """It is that of the folder to which the link leads, so ``LINK/..`` must not be shortened."""
    (elsewhere / "inner").mkdir()
    os.symlink(elsewhere / "inner", "link")
    name, write, open_ = KINDS["ofrecord"]
    write_both(elsewhere, name, write)
    with open_(f"link/../{name}") as reader:
        os.chdir("/")
        with pickle.loads(pickle.dumps(reader)) as again:
            assert bytes(again.read_one(1)) == b"decoy1"


def test_names_that_are_not_text_are_opened_again(elsewhere: Path) -> None:
    place = os.fsencode(Path.cwd()) + b"/\xff"
    os.mkdir(place)
    os.chdir(place)
    write_records(BagWriter(b"\xfe.bag"), b"bytes")
    with BagReader(b"\xfe.bag") as reader, fffs.FileReader([b"\xfe.bag"]) as other:
        os.chdir(elsewhere)
        for one in (reader, other):
            with pickle.loads(pickle.dumps(one)) as again:
                assert bytes(again.read_one(1)) == b"bytes1"


def test_links_are_followed_when_a_file_is_opened_again(elsewhere: Path) -> None:
    write_records(BagWriter("a.bag"), b"bytes")
    os.symlink("a.bag", "link.bag")
    here = Path.cwd()
    with fffs.FileReader("link.bag") as reader:
        os.chdir(elsewhere)
        os.rename(here / "a.bag", here / "b.bag")
        os.unlink(here / "link.bag")
        os.symlink("b.bag", here / "link.bag")
        with pickle.loads(pickle.dumps(reader)) as again:
            assert bytes(again.read_one(1)) == b"bytes1"


def test_a_folder_of_parts_is_opened_again(elsewhere: Path) -> None:
    name, write, open_ = KINDS["ofrecord"]
    for place in (Path.cwd() / "parts", elsewhere / "parts"):
        place.mkdir()
        in_place_of(place / name, write, place.parent.name[:4].encode(), OPENED)
    with open_("parts") as reader:
        os.chdir(elsewhere)
        with pickle.loads(pickle.dumps(reader)) as again:
            assert bytes(again.read_one(0)) == b"here0" and again.fnames == ["parts/part-0"]


def test_a_relative_name_in_a_folder_that_was_removed_is_not_opened_again(elsewhere: Path) -> None:
    write_records(BagWriter("a.bag"), b"bytes")
    here = Path.cwd()
    os.mkdir("removed")
    os.chdir("removed")
    os.rmdir(here / "removed")
    with fffs.FileReader("../a.bag") as reader, fffs.FileReader(here / "a.bag") as by_absolute_name:
        assert bytes(reader.read_one(1)) == b"bytes1"
        os.chdir(elsewhere)
        with pytest.raises(SourceNotFoundError, match="cannot be opened again: the folder"):
            pickle.dumps(reader)
        pickle.loads(pickle.dumps(by_absolute_name)).close()


def test_a_name_that_is_too_long_with_its_folder_is_opened(elsewhere: Path) -> None:
    for _ in range(17):
        os.mkdir("d" * 250)
        os.chdir("d" * 250)
    assert len(os.getcwd()) > 4096
    write_records(BagWriter("a.bag"), b"bytes")
    with fffs.FileReader("a.bag") as reader:
        assert bytes(reader.read_one(1)) == b"bytes1"


def test_a_file_below_a_folder_that_is_closed_to_the_user_is_opened_again(tmp_path: Path) -> None:
    with as_nobody(tmp_path):
        os.mkdir("place")
        os.chdir("place")
        write_records(BagWriter("a.bag", layout="v3"), b"bytes")
        os.chmod("..", 0)
        try:
            with fffs.FileReader("a.bag") as reader, pickle.loads(pickle.dumps(reader)) as again:
                assert bytes(again.read_one(1)) == b"bytes1"
        finally:
            os.chmod("..", 0o700)


@pytest.mark.fuse
def test_a_mount_takes_the_folder_above_a_link_for_that_of_its_target(elsewhere: Path) -> None:
    (elsewhere / "inner").mkdir()
    os.symlink(elsewhere / "inner", "link")
    for place in (Path.cwd(), elsewhere):
        (place / place.name).mkdir()
        fffs.pack_folder(place / place.name, place / "a.ffr")
    (elsewhere / "mnt").mkdir()
    with mounted("link/../a.ffr", "link/../mnt") as mountpoint:
        assert os.path.ismount(elsewhere / "mnt"), mountpoint
