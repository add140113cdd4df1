"""``scripts/sanitize``: the files and tests that it names exist. It checks the sanitizers itself."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts" / "sanitize"


@pytest.mark.parametrize("arguments", [["nothing"], ["--slow"], ["asan", "x"]])
def test_unknown_arguments_are_refused(arguments: list[str]) -> None:
    done = subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2 and done.stderr.startswith("usage: scripts/sanitize")


def test_the_tests_it_runs_exist() -> None:
    lists = re.findall(r"^(?:quick|more)_tests=\(([^)]*)\)", SCRIPT.read_text(), re.M)
    names = " ".join(lists).replace("'", "").split()
    assert len(lists) == 2 and len(names) == len(set(names)) > 10
    assert [name for name in names if not list((ROOT / "tests").glob(f"{name}.py"))] == []


def test_every_bug_that_can_be_compiled_in_is_looked_for() -> None:
    bugs = re.findall(r"^#define (\w+) [1-9]$", (ROOT / "tests/sanitize/threads.c").read_text(), re.M)
    assert sorted(bugs) == ["LEAK", "OVERFLOW", "RACE", "UNDEFINED"]
    assert [bug for bug in bugs if f"-DBUG={bug}" not in SCRIPT.read_text()] == []


def test_the_driver_ends_well_without_a_sanitizer(tmp_path: Path) -> None:
    """Without a sanitizer the driver succeeds, so its failures under a sanitizer are reports."""
    native = ROOT / "fffs" / "native"
    sources = [path for path in native.glob("*.c") if path.name != "_native.c"]
    command = ["cc", "-std=c11", "-D_GNU_SOURCE=1", "-O1", "-pthread", f"-I{native}", ROOT / "tests/sanitize/threads.c"]
    subprocess.run([*command, *sources, "-ldeflate", "-luring", "-o", tmp_path / "threads"], check=True)
    done = subprocess.run([tmp_path / "threads", "2", "300"], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "2 rounds\n"), done.stderr
