"""Examples in documents: finds the fenced blocks of a page, and runs them as a reader would."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
VARIES = (
    (re.compile(r"[\d.]+ .B in [\d.]+ s \([\d.]+ .B/s\)"), "... in ... s (... .../s)"),
    (re.compile(r" in [\d.]+ s$", re.MULTILINE), " in ... s"),
)
"""What differs from run to run: durations, rates, and the sizes of compressed images."""
NO_SYSTEM_LOG = "fffs: no errors will be logged: there is no system log"


class Block(NamedTuple):
    """A fenced block of a page: its language, its text, and the line where it begins."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> Iterator[Block]:
    """Return the fenced blocks of a page, in order."""
    text = page.read_text()
    for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield Block(found[1], found[2], text.count("\n", 0, found.start()) + 1)


def environment() -> dict[str, str]:
    """Return the environment of a shell in which ``fffs`` and ``python`` are those of this run."""
    folder = sysconfig.get_path("scripts")
    return {**os.environ, "PATH": f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}


def commands(block: Block) -> list[tuple[str, str]]:
    """Split a console session into its commands, each with the output that follows it."""
    parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    assert parts[0] == "", f"line {block.line}: the session does not begin with a command"
    return [(command, output) for command, _, output in (part.partition("\n") for part in parts[1:])]


def run_console(block: Block, folder: Path) -> None:
    """Run the commands of a session, and compare what each prints with the page."""
    for command, output in commands(block):
        run = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=300,
        )
        printed = "".join(line for line in run.stdout.splitlines(True) if not line.startswith(NO_SYSTEM_LOG))
        compare(f"line {block.line}: {command}", output, printed)


def compare(what: str, expected: str, printed: str) -> None:
    """Compare what a page shows with what was printed; ``...`` in the page stands for anything."""
    for pattern, text in VARIES:
        expected = pattern.sub(text, expected)
    same = doctest.OutputChecker().check_output(expected, printed, doctest.ELLIPSIS)
    assert same, f"{what}\nexpected: {expected}\nprinted: {printed}"


def run_session(text: str, name: str, names: dict[str, object]) -> int:
    """Run an interactive session of Python in a namespace, compare its results, and return how many examples it has."""
    test = doctest.DocTestParser().get_doctest(text, names, name, name, 0)
    report: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append, clear_globs=False)
    assert not report, "".join(report)
    return len(test.examples)
