"""A new format needs one file and one row: everything works with a toy format, whose records are lines of text."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from inside import FORMATS, RecordStore, find_format, load_file, load_source, verify
from lines_format import LINES
from memory_file import MemoryFile
from mounting import Daemon, Mounts, is_mounted, wait_until

import fffs
from fffs.errors import MetadataError, SourceChangedError, UsageError

TEXT = [b"one", b"", b"three " * 1000, "fünf".encode(), *(b"%d" % k for k in range(2000))]

# The program with another format.
PROGRAM = """
import sys
from fffs.formats.table import FORMATS
from lines_format import LINES
FORMATS.append(LINES)
"""
COMMAND = PROGRAM + "from fffs.cli.program import main; main()"
MOUNT = (
    PROGRAM
    + """
from fffs.mount import MountOptions
from fffs.mount.daemon.job import make_job
from fffs.mount.daemon.log import DaemonLog
from fffs.mount.daemon.session import serve
source, mountpoint, log = sys.argv[1:]
DaemonLog(log)
serve(make_job(source, mountpoint, MountOptions(log=log)))
"""
)


@pytest.fixture(autouse=True)
def _one_more_format() -> Iterator[None]:
    FORMATS.append(LINES)
    yield
    FORMATS.remove(LINES)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "x.lines"
    path.write_bytes(b"".join(line + b"\n" for line in TEXT))
    return path


def fffs_command(*arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    command = [sys.executable, "-c", COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)


def test_it_is_opened_and_read(path: Path) -> None:
    with fffs.open(path) as reader:
        assert reader.n == len(TEXT)
        order = [3, 0, 2, 1, 2003, 3]
        assert [line.tobytes() for line in reader.read(order)] == [TEXT[k] for k in order]
        assert reader.read_one(-1).tobytes() == b"1999"
        assert reader.read_range(2, 3, 9).tobytes() == TEXT[2][3:9]
    with fffs.FileReader(path, format="lines") as reader:
        assert reader.read_one(0).tobytes() == b"one"
    with pytest.raises(UsageError, match=r"there is no format 'line'; choose one of .*, lines"):
        fffs.FileReader(path, format="line")


def test_it_may_be_in_a_folder_in_memory_and_beside_others(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "b.lines").write_bytes(b"3\n")
    (folder / "a.lines").write_bytes(b"1\n2\n")
    with fffs.open(folder) as reader:
        assert [line.tobytes() for line in reader.read(range(3))] == [b"1", b"2", b"3"]
    with fffs.FileWriter(tmp_path / "y.ffr", 1) as writer:
        writer.write_one(b"packed")
    with fffs.open([tmp_path / "y.ffr", path]) as reader:
        assert [record.tobytes() for record in reader.read([1, 0])] == [b"one", b"packed"]
    store = RecordStore([load_file(MemoryFile("memory/x.lines", path.read_bytes()), find_format)])
    assert [line.tobytes() for line in store.read(range(5))] == TEXT[:5]
    store.close()


def test_damage_and_changes_are_found(path: Path) -> None:
    with fffs.open(path) as reader, path.open("ab") as file:
        file.write(b"more\n")
        file.flush()
        with pytest.raises(SourceChangedError, match=r"x\.lines"):
            reader.read([0])
    path.write_bytes(b"one\ntwo")
    with pytest.raises(MetadataError, match=r"x\.lines: its last line has no end"):
        fffs.open(path)
    done = fffs_command("verify", path)
    assert (done.returncode, done.stderr.count("\n")) == (4, 1)
    assert "its last line has no end" in done.stderr


def test_it_is_verified_and_can_have_checksums(path: Path) -> None:
    with load_source(path) as source:
        assert verify(source) == []
    done = fffs_command("verify", "--keep", path)
    assert done.returncode == 0, done.stderr
    assert (path.parent / "x.lines.fffs-crc").exists()
    data = bytearray(path.read_bytes())
    data[1] ^= 1
    path.write_bytes(data)
    done = fffs_command("verify", path)
    assert (done.returncode, "x.lines: record 0" in done.stdout + done.stderr) == (5, True)


def test_the_commands_know_it(path: Path) -> None:
    assert fffs_command("ls", path).stdout.splitlines()[:2] == ["000000", "000001"]
    assert fffs_command("cat", path, "000003").stdout == "fünf"
    assert "Lines" in fffs_command("info", path).stdout
    other = path.rename(path.with_name("other"))
    assert fffs_command("cat", "--format", "lines", other, "000000").stdout == "one"
    assert "lines" in fffs_command("convert", "--help").stdout
    done = fffs_command("ls", "--format", "line", other)
    assert (done.returncode, "lines" in done.stderr) == (2, True)


@pytest.mark.parametrize(("name", "end"), [("ffrecord", "ffr"), ("tfrecord",) * 2, ("ofrecord",) * 2, ("bag",) * 2])
def test_it_is_converted_into_each_format_and_back(path: Path, tmp_path: Path, name: str, end: str) -> None:
    result, back = tmp_path / f"y.{end}", tmp_path / "back.lines"
    fffs.convert(path, result, verify=True)
    with fffs.open(result, format=name) as reader:
        assert [record.tobytes() for record in reader.read(range(reader.n))] == TEXT
    fffs.convert(result, back, from_=name, verify=True)
    assert back.read_bytes() == path.read_bytes()
    done = fffs_command("convert", "--verify", "--force", "--from", name, result, back)
    assert (done.returncode, back.read_bytes()) == (0, path.read_bytes()), done.stderr


def test_parts_and_what_it_cannot_hold(path: Path, tmp_path: Path) -> None:
    fffs.convert(path, tmp_path / "parts", to="lines", parts=3, verify=True)
    assert sorted(os.listdir(tmp_path / "parts")) == [f"parts-{k:03}.lines" for k in range(3)]
    assert b"".join(part.read_bytes() for part in sorted((tmp_path / "parts").iterdir())) == path.read_bytes()
    fffs.convert(tmp_path / "parts", tmp_path / "whole.ffr")
    with fffs.FileWriter(tmp_path / "two.ffr", 2) as writer:
        writer.write_one(b"good")
        writer.write_one(b"a\nb")
    with pytest.raises(UsageError, match="a record has several lines"):
        fffs.convert(tmp_path / "two.ffr", tmp_path / "two.lines")
    assert not (tmp_path / "two.lines").exists()


def test_it_is_mounted(path: Path, tmp_path: Path, mounts: Mounts) -> None:
    mounted, log = tmp_path / "mnt", tmp_path / "log"
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    process = subprocess.Popen([sys.executable, "-c", MOUNT, path, mounted, log], env=environment)
    wait_until(lambda: is_mounted(mounted) or process.poll() is not None)
    mounts.daemons.append(Daemon(mounted, log))
    names = sorted(os.listdir(mounted))
    assert len(names) == len(TEXT)
    assert [(mounted / name).read_bytes() for name in names] == TEXT
    assert [(mounted / name).stat().st_size for name in names[:4]] == [len(line) for line in TEXT[:4]]
    mounts.daemon.kill(15)
    process.wait(30)


def test_it_is_trained_from(path: Path) -> None:
    from fffs.torch import DataLoader, Dataset

    loader = DataLoader(Dataset(path), batch_size=500, shuffle=True)
    seen = [bytes(np.asarray(record)) for batch in loader for record in batch]
    assert sorted(seen) == sorted(TEXT)
