"""Tests the checks of daemons' logs: each kind of unexpected line is written to a log, and is found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from builders import pack_small_folder
from mounting import Daemon, Mounts, umount_quietly, wait_until

import fffs

pytestmark = pytest.mark.fuse

TESTS = Path(__file__).parent

# Replaces getxattr, which Python answers with and without the fast path, by one that misbehaves.
SABOTAGE = """
import asyncio, ctypes, logging, os, sys, threading, warnings
from fffs.mount.daemon.log import write_out
from fffs.mount.fs.attributes import Presenter

class Bad:
    def __del__(self):
        raise KeyError("in a destructor")

async def forgotten():
    pass

def value(self, inode, record, name, original=Presenter.value):
    if name.startswith(b"user.fffs.sabotage "):
        logging.info("harmless: unmounted")  # so that nothing follows another's line
        write_out()
        exec(name.decode().split(" ", 1)[1])
    return original(self, inode, record, name)

Presenter.value = value
"""
FAULTS = {
    "a traceback": ("raise KeyError('a bug')", "unexpected error in getxattr(?s:.*)KeyError: 'a bug'"),
    "never awaited": ("forgotten()", "RuntimeWarning: coroutine 'forgotten' was never awaited"),
    "a file left open": ("open(os.devnull)", "ResourceWarning: unclosed file"),
    "an exception ignored": ("Bad()", "Exception ignored in(?s:.*)Traceback(?s:.*)in a destructor"),
    "a thread that died": ("threading.Thread(target=lambda: 1 // 0).start()", "uncaught(?s:.*)ZeroDivisionError"),
    "a warning": ("warnings.warn('watch out', UserWarning)", "UserWarning: watch out"),
    "an error": ("logging.getLogger('other').error('something')", "ERROR something"),
    "a line nobody knows": ("logging.getLogger('other').info('something new')", "INFO something new"),
    "bytes on stderr": (r"os.write(2, b'fuse: a complaint\n')", "fuse: a complaint"),
    "a print": ("print('forgotten debugging', flush=True)", "forgotten debugging"),
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return pack_small_folder(tmp_path)


def sabotaged(source: Path, folder: Path, mounts: Mounts, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mount whose daemon executes the names of requested attributes."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SABOTAGE)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(folder)
        return mounts(source, xattr=True)


def test_each_kind_of_line_is_caught(
    source: Path, tmp_path: Path, mounts: Mounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sabotaged(source, tmp_path / "sabotage", mounts, monkeypatch)
    for number, (fault, pattern) in enumerate(FAULTS.values()):
        with pytest.raises(OSError):
            os.getxattr(path / "file", f"user.fffs.sabotage {fault}")
        wait_until(lambda number=number: len(mounts.daemon.unexpected()) > number)  # type: ignore[misc]
        found = mounts.daemon.unexpected()
        assert len(found) == number + 1 and re.search(pattern, found[-1]), found[number:]
    with pytest.raises(AssertionError, match="nobody expects"):
        mounts.police()
    umount_quietly(path)
    assert mounts.daemon.wait()
    mounts.daemons.clear()


def test_a_crash_is_caught(source: Path, tmp_path: Path, mounts: Mounts, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sabotaged(source, tmp_path / "sabotage", mounts, monkeypatch)
    with pytest.raises(OSError):
        os.getxattr(path / "file", "user.fffs.sabotage ctypes.string_at(0)")
    assert mounts.daemon.wait()
    with pytest.raises(AssertionError, match="Fatal Python error: Segmentation fault"):
        mounts.police()
    mounts.daemons.clear()


def test_an_expected_line_excuses_no_other(tmp_path: Path) -> None:
    log = tmp_path / "log"
    time = "2026-01-01 00:00:00,000"
    events = ("INFO /m: mounted /p.ffr", "ERROR a/b: damaged", "INFO /m: SIGTERM", "INFO /m: unmounted")
    good = "".join(f"{time} {event}\n" for event in events)
    daemon = Daemon.__new__(Daemon)
    daemon.log_file, daemon._expected, daemon._pidfd = log, [], os.pidfd_open(os.getpid())
    log.write_text(good)
    assert daemon.unexpected() == [f"{time} ERROR a/b: damaged\n"]
    daemon.expect("a/b: damaged")
    assert daemon.unexpected() == []
    for addition in ("fuse: stray\n", "Traceback (most recent call last):\n", f"{time} ERROR c: damaged\n", "x"):
        log.write_text(good + addition)
        assert len(daemon.unexpected()) == 1, addition
        log.write_text(good.replace("damaged\n", "damaged\n" + addition))
        assert daemon.unexpected(), addition


def test_the_test_that_caused_it_fails(tmp_path: Path) -> None:
    """In a run of three tests, one makes a daemon log a problem, and one makes a process write a traceback."""
    (tmp_path / "test_three.py").write_text(
        "import os, subprocess, sys\n"
        "import fffs, pytest\n"
        "from mounting import Mounts\n"
        "pytestmark = pytest.mark.fuse\n"
        "@pytest.fixture(scope='module')\n"
        "def shared(tmp_path_factory):\n"
        "    folder = tmp_path_factory.mktemp('shared')\n"
        "    (folder / 'a').mkdir()\n"
        "    fffs.pack_folder(folder / 'a', folder / 'a.ffr')\n"
        "    mounts = Mounts(folder)\n"
        "    mounts(folder / 'a.ffr')\n"
        "    yield mounts\n"
        "def test_one(shared): pass\n"
        "def test_two(shared):\n"
        "    with open(shared.daemon.log_file, 'a') as log: log.write('stray')\n"
        "def test_three():\n"
        "    subprocess.run([sys.executable, '-c', '1 // 0'])\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-c", TESTS.parent / "pyproject.toml", "-rA"]
    done = subprocess.run(
        [*command, f"--rootdir={tmp_path}", f"--basetemp={tmp_path}/base", "-p", "no:cacheprovider", tmp_path],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    umount_quietly(tmp_path / "base" / "shared0" / "mnt0")
    found = {tuple(line.split(" - ")[0].split("::")) for line in done.stdout.splitlines() if "::test_" in line}
    results = {(head.split()[0], name) for head, name in found if head.split()[0] in ("PASSED", "FAILED", "ERROR")}
    assert {("PASSED", "test_one"), ("ERROR", "test_two"), ("FAILED", "test_three")} <= results, done.stdout
    assert ("ERROR", "test_one") not in results and ("PASSED", "test_three") not in results


def test_names_cannot_forge_lines_of_the_log(tmp_path: Path, mounts: Mounts) -> None:
    """File names must not end a line, control a terminal, or prevent a log entry."""
    names = [b"a\n2026-01-01 00:00:00,000 ERROR forged", b"\x1b[2Jcleared", b"not utf-8 \xff\xfe", "\u2028".encode()]
    (tmp_path / "folder").mkdir()
    for number, name in enumerate(names):
        (tmp_path / "folder" / os.fsdecode(name)).write_text(f"unique content {number}")
    fffs.pack_folder(tmp_path / "folder", tmp_path / "p.ffr")
    data = (tmp_path / "p.ffr").read_bytes().replace(b"unique", b"UNIQUE")
    (tmp_path / "p.ffr").write_bytes(data)
    path = mounts(tmp_path / "p.ffr")
    mounts.daemon.expect("record [0-3]: .*checksum")
    mounts.daemon.expect("reads failed, of 4 records")
    for name in names:
        with pytest.raises(OSError):
            (path / os.fsdecode(name)).read_bytes()
    umount_quietly(path)
    assert mounts.daemon.wait()
    text = mounts.daemon.log()
    assert len([line for line in text.splitlines() if " ERROR " in line]) == 4
    for shown in (r"a\x0a2026", r"\x1b[2Jcleared", r"not utf-8 \xff\xfe", r"\u2028"):
        assert shown in text
