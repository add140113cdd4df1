"""Mounts of the type of fffs that others made, with daemons of their own, whose answers may be anything.

They are errors in one line, and what is mounted is unmounted.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from inside import ANSWER_LARGEST, BUCKETS, ENTRY_QUESTION, are_counters, read_facts
from mounting import libc, run_fffs, wait_until

from fffs.errors import MountError, SourceNotFoundError, UsageError

pytestmark = [pytest.mark.fuse, pytest.mark.skipif(os.geteuid() != 0, reason="asks for what another user mounted")]
Foreign = Callable[..., Path]
MEMORY = 4 << 30  # address space; the interpreter needs less than one
REFUSED = "its answer is not that of a daemon of fffs"

DAEMON = """
    import errno, pathlib, stat, sys
    import pyfuse3, trio

    path, answer, size = sys.argv[1], pathlib.Path(sys.argv[2]).read_bytes(), int(sys.argv[3])

    class Hostile(pyfuse3.Operations):
        def entry(self, inode):
            entry = pyfuse3.EntryAttributes()
            entry.st_ino, entry.st_nlink, entry.st_blksize = inode, 1, 1 << 30
            entry.st_mode = stat.S_IFDIR | 0o755 if inode == 1 else stat.S_IFREG | 0o444
            entry.st_size = 0 if inode == 1 else size
            return entry
        async def getattr(self, inode, context=None):
            return self.entry(inode)
        async def lookup(self, parent, name, context=None):
            if len(name) <= 255:
                raise pyfuse3.FUSEError(errno.ENOENT)
            return self.entry(2)
        async def opendir(self, inode, context):
            return inode
        async def readdir(self, file, start, token):
            pass
        async def open(self, inode, flags, context):
            return pyfuse3.FileInfo(fh=inode, direct_io=True)
        async def read(self, file, start, length):
            return answer[start : start + length] if size < 1 << 33 else b"1" * length
        async def statfs(self, context):
            return pyfuse3.StatvfsData()

    pyfuse3.init(Hostile(), path, {"fsname=strange", "subtype=fffs", "allow_other"})
    trio.run(pyfuse3.main)
    pyfuse3.close(unmount=False)
"""


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[Foreign]:
    """Return a function that mounts a file system, which answers any question with these bytes."""
    running = []

    def start(answer: bytes, size: int | None = None) -> Path:
        path = tmp_path / f"foreign{len(running)}"
        path.mkdir()
        (tmp_path / "answer").write_bytes(answer)
        arguments = [path, tmp_path / "answer", str(len(answer) if size is None else size)]
        process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(DAEMON), *arguments])
        running.append((path, process))
        wait_until(path.is_mount)
        return path

    yield start
    for path, process in running:
        libc.umount2(os.fsencode(path), 2)
        assert process.wait(60) == 0


def with_little_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def counters(**changes: Any) -> dict[str, Any]:
    """Return counters as a daemon tells them, with some of them changed."""
    names = ("threads", "reads", "read_bytes", "read_errors", "bad_records", "records", "verified_records")
    told: dict[str, Any] = dict.fromkeys(names, 1) | {"seconds": 1.5, "fastpath": True}
    told |= {"native": {"read": 1}, "python": {"read": 1}, "cold_reads": None, "reads_waiting": None, "objects": None}
    return told | {"read_latency_log2_ns": [0] * BUCKETS, "read_latency_ns": {"p50": None}} | changes


ANSWERS: dict[str, tuple[bytes, int | None]] = {
    "nothing": (b"", None),
    "no JSON": (b"\xff\x00", None),
    "endless": (b"", 1 << 40),
    "a number": (b"9" * 30 + b" 1", None),
    "many digits": (b"9" * 5000, None),
    "a list": (b"[1]", None),
    "deep": (b"[" * 100_000, None),
    "deep but valid": (b'{"a":' * 500 + b"1" + b"}" * 500, None),
    "infinite": (b'{"seconds": 1e999}', None),
    "numbers for names": (b'{"record": 1}', None),
    "what the command tells": (b'{"mount": "/", "kind": "file"}', None),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_a_strange_answer_is_an_error_in_one_line_and_the_mount_is_unmounted(what: str, foreign: Foreign) -> None:
    path = foreign(*ANSWERS[what])
    for command in ("stat", "info"):
        text = run_fffs(command, path, code=MountError.exit_code, preexec_fn=with_little_memory)
        assert text == f"fffs: {path}: {REFUSED}\n"
    assert run_fffs("umount", path, preexec_fn=with_little_memory) == ""
    assert not path.is_mount()


def test_commands_for_sources_ask_no_questions(foreign: Foreign) -> None:
    path = foreign(*ANSWERS["endless"])
    assert "no .ffr files" in run_fffs("ls", path, code=SourceNotFoundError.exit_code)
    assert "not a regular file" in run_fffs("doctor", path, code=UsageError.exit_code)


@pytest.mark.parametrize("pid", [b"0", b"-1", b"9" * 18, b"1 1 1", b"\xd9\xa1"])
def test_a_process_that_cannot_be_is_not_waited_for(pid: bytes, foreign: Foreign) -> None:
    path, began = foreign(pid + b" %d" % os.stat("/proc/self/ns/pid").st_ino), time.monotonic()
    assert run_fffs("umount", path) == "" and not path.is_mount()
    assert time.monotonic() - began < 10


def test_names_of_facts_control_neither_the_command_nor_the_terminal(foreign: Foreign) -> None:
    path = foreign(json.dumps({"sets": "\x1b[31m", "sources": "a", "some_bytes": "b\nc"}).encode())
    done = subprocess.run([sys.executable, "-m", "fffs", "info", path], capture_output=True, check=True, text=True)
    assert r"\x1b[31m" in done.stdout and r"b\nc" in done.stdout and "\x1b" not in done.stdout
    assert json.loads(subprocess.check_output([sys.executable, "-m", "fffs", "info", "--json", path]))["sources"] == "a"


def test_the_longest_answer_is_read(foreign: Foreign) -> None:
    longest = b'{"source": "' + b"a" * (ANSWER_LARGEST - 14) + b'"}'
    assert len(longest) == ANSWER_LARGEST
    assert len(read_facts(str(foreign(longest)), ENTRY_QUESTION)["source"]) == ANSWER_LARGEST - 14
    with pytest.raises(OSError, match=REFUSED):
        read_facts(str(foreign(longest + b" ")), ENTRY_QUESTION)


def test_counters_of_a_daemon_are_shown_also_with_others_of_a_later_version(foreign: Foreign) -> None:
    path = foreign(json.dumps(counters(later={"any": [1, "x", None]})).encode())
    assert run_fffs("stat", path) == run_fffs("stat", "--json", path) == ""


@pytest.mark.parametrize(
    "changes",
    [
        *({name: wrong} for name in counters() for wrong in ("x", [1], -1, 1 << 63) if name != "later"),
        *({name: True} for name in ("reads", "records")),
        {"native": {"read": None}},
        {"python": {"read": 1.5}},
        {"read_latency_log2_ns": [0] * (BUCKETS - 1)},
        {"read_latency_log2_ns": ["0"] * BUCKETS},
        {"read_latency_ns": {"p50": "1"}},
        {"objects": {"asked": 1}},
    ],
    ids=str,
)
def test_wrong_counters_are_refused(changes: dict[str, Any]) -> None:
    assert are_counters(counters()) and not are_counters(counters(**changes))
    for name in changes:
        assert name in ("cold_reads", "reads_waiting", "objects") or not are_counters(counters(**{name: None}))
