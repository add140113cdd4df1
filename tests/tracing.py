"""Runs work under strace: a prepared process forks a child for each run, and strace traces or disturbs the child.

Starting Python takes hundreds of system calls and much of a second. A fork of a process that has imported everything
starts at once and makes only the calls of its work, the same ones in every run.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# Calls that change files or complete a change, and calls that precede these.
CALLS = (
    "open,openat,openat2,creat,write,writev,pwrite64,pwritev,pwritev2,copy_file_range,sendfile,fsync,fdatasync,syncfs,"
    "sync_file_range,rename,renameat,renameat2,link,linkat,unlink,unlinkat,rmdir,mkdir,mkdirat,symlink,symlinkat,"
    "utimensat,chmod,fchmod,fchmodat,chown,fchown,fchownat,ftruncate,truncate,fallocate,flock,close"
)

SERVER = """
import ctypes, json, os, resource, sys, tempfile
import fffs.cli.program, fffs.cli.output

def write(path):
    try:
        with fffs.FileWriter(path, 3) as writer:
            for record in (b"first", bytes(range(256)) * 6000, b""):
                writer.write_one(record)
    except fffs.errors.FffsError as error:
        fffs.cli.output.complain(str(error))
        return error.exit_code
    return 0

def prepare(room):
    # What is imported or opened only once is imported and opened here.
    write(f"{room}/a.ffr")
    fffs.cli.program.run(["unpack", "-q", f"{room}/a.ffr", f"{room}/b"])
    fffs.cli.program.run(["pack", "-q", f"{room}/b", f"{room}/c.ffr"])
    for target in ("d.tfrecord", "e.ffr"):
        fffs.cli.program.run(["convert", "-q", "--verify", "--force", f"{room}/a.ffr", f"{room}/{target}"])
    fffs.cli.program.run(["convert", "-q", "-j", "1", "--verify", "--force", f"{room}/d.tfrecord", f"{room}/e.ffr"])
    fffs.cli.program.run(["pack", "-q", "--parts", "2", f"{room}/b", f"{room}/set"])

with tempfile.TemporaryDirectory() as room:
    prepare(room)
for line in sys.stdin:
    job = json.loads(line)
    ready, prepared = os.pipe()
    wait, go = os.pipe()
    hear, said = os.pipe()
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1))  # PR_SET_PTRACER: any process of our user
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        os.dup2(said, 2)
        if "limit" in job:
            resource.setrlimit(resource.RLIMIT_FSIZE, (job["limit"], job["limit"]))
        code = 1
        os.write(prepared, b"x")
        os.read(wait, 1)
        try:
            arguments = job["arguments"]
            code = write(arguments[1]) if arguments[0] == "write" else fffs.cli.program.run(arguments)
        finally:
            os._exit(code)
    os.read(ready, 1)
    print(child, flush=True)
    sys.stdin.readline()
    os.write(go, b"x")
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(said)
    print(json.dumps([code, os.read(hear, 1 << 16).decode()]), flush=True)
    for fd in (ready, prepared, wait, go, hear):
        os.close(fd)
"""

_LINE = re.compile(r"^(?:\d+ +)?(\w+)\((.*)\) += (-?\d+|\?)(.*)$")


@dataclass(frozen=True)
class Call:
    """One traced system call, the number-th of its name."""

    name: str
    number: int
    arguments: str
    result: int

    @property
    def site(self) -> str:
        """Return the call without the parts that differ between runs."""
        return self.name + re.sub(r"[0-9a-f]{12}|\d+(?=<)", "#", self.arguments)


@dataclass(frozen=True)
class Outcome:
    code: int  # negative: the signal that killed it
    stderr: str
    calls: list[Call]


class Prepared:
    """The prepared process. ``run`` works in a fork of it."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "strace"
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "FFFS_THREADS": "1"},
        )

    def _ask(self, line: str) -> str:
        assert self._server.stdin and self._server.stdout
        self._server.stdin.write(line + "\n")
        self._server.stdin.flush()
        return self._server.stdout.readline()

    def run(self, *arguments: Any, limit: int | None = None) -> Outcome:
        """Run fffs with arguments, or ("write", PATH) with a FileWriter. limit: the largest file that it may write."""
        job: dict[str, Any] = {"arguments": [*map(str, arguments)]}
        self._ask(json.dumps(job | ({} if limit is None else {"limit": limit})))
        return Outcome(*json.loads(self._ask("go")), [])

    def trace(self, *arguments: Any, inject: str = "", calls: str = CALLS) -> Outcome:
        """As ``run``, under strace, with faults injected as ``inject`` says. calls: those that are traced."""
        pid = self._ask(json.dumps({"arguments": [*map(str, arguments)]})).strip()
        # strace reports when it is attached; calls that the child made before would not be traced.
        options = ["-f", "-y", "-s", "4096", "-o", str(self._log), "-e", f"trace={calls}"]
        command = ["strace", *options, *(["-e", f"inject={inject}"] if inject else []), "-p", pid]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
            assert strace.stderr
            said = strace.stderr.readline()
            ended = json.loads(self._ask("go"))
            said += strace.stderr.read()
        assert f"Process {pid} attached" in said, f"strace cannot watch a process here: {said}"
        return Outcome(*ended, self._calls())

    def _calls(self) -> list[Call]:
        calls: list[Call] = []
        counts: dict[str, int] = {}
        for line in self._log.read_text().splitlines():
            if found := _LINE.match(line):
                name, arguments, result, _ = found.groups()
                counts[name] = counts.get(name, 0) + 1
                calls.append(Call(name, counts[name], arguments, -1 if result == "?" else int(result)))
        return calls

    def close(self) -> None:
        self._server.communicate()


@contextlib.contextmanager
def prepared(folder: Path) -> Iterator[Prepared]:
    """Yield a prepared process. Fails, and never skips, if strace is missing."""
    if not shutil.which("strace"):
        pytest.fail("these tests need strace: run scripts/setup, or install the package strace")
    process = Prepared(folder)
    try:
        yield process
    finally:
        process.close()
