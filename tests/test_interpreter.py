"""Children of programs that are not run by an interpreter: frozen ones, and those that embed Python."""

from __future__ import annotations

import multiprocessing.spawn
import os
import subprocess
import sys
from pathlib import Path

import pytest
from builders import record_file
from inside import interpreter, modules
from test_current_folder import STORE

from fffs.errors import UsageError

BESIDE = os.path.join(sys.exec_prefix, "bin", "python{}.{}".format(*sys.version_info))


@pytest.mark.parametrize("name", ["python", "python3.11-dbg", "pypy3", "platform-python3.6"])
def test_interpreters_run_children(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(sys, "executable", f"/nowhere/{name}")
    assert interpreter.interpreter() == f"/nowhere/{name}"


@pytest.mark.parametrize("name", ["/usr/bin/uwsgi", "/usr/bin/uwsgi_python3", "", None])
def test_a_program_that_embeds_python_is_not_run_again(monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    before = multiprocessing.spawn.get_executable()
    monkeypatch.setattr(sys, "executable", name)
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", name and os.fsencode(name))
    assert interpreter.interpreter() == BESIDE
    multiprocessing.set_executable("/chosen")
    assert interpreter.interpreter() == "/chosen"
    monkeypatch.undo()
    assert multiprocessing.spawn.get_executable() == before


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A program without an interpreter of a known name in its folders."""
    monkeypatch.setattr(sys, "exec_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "program"))
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", os.fsencode(tmp_path / "program"))
    return tmp_path / "program"


def test_an_interpreter_of_another_name(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As hython and mayapy."""
    assert interpreter.interpreter() == str(alone)
    monkeypatch.delitem(sys.modules, "multiprocessing.spawn")
    assert interpreter.interpreter() == str(alone)


@pytest.mark.parametrize("name", ["program", ""])
def test_without_an_interpreter_nothing_is_run(name: str, alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name:
        monkeypatch.setenv(interpreter.STARTED, "1")  # this program was run in place of a child
    else:
        monkeypatch.setattr(sys, "executable", "")
        monkeypatch.setattr(multiprocessing.spawn, "_python_exe", None)
    with pytest.raises(UsageError, match=r"program: is no interpreter of Python.* multiprocessing.set_executable$"):
        interpreter.interpreter()


ITSELF = """#!{python}
import sys
sys.executable, sys.exec_prefix = {program!r}, "/nowhere"
open({starts!r}, "a").write("x")
import fffs, fffs.mount
{use}
"""


@pytest.mark.parametrize("use", ["fffs.FileReader('s3://bucket/x.ffr')", "fffs.mount.mount('x.ffr', 'm')"])
def test_a_program_that_runs_itself_does_so_once(tmp_path: Path, use: str) -> None:
    (tmp_path / "x.ffr").write_bytes(record_file([b"one"]))
    program, starts = tmp_path / "program", tmp_path / "starts"
    program.write_text(ITSELF.format(python=sys.executable, program=str(program), starts=str(starts), use=use))
    program.chmod(0o755)
    done = subprocess.run([program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "is no interpreter of Python" in done.stderr
    assert starts.read_text() == "xx"


def test_the_variable_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(interpreter.STARTED, "1")
    assert interpreter.STARTED in modules.module_variables()
    modules.restore_variables()
    assert interpreter.STARTED not in os.environ


@pytest.mark.parametrize("use", ["fffs.FileReader('s3://bucket/x.ffr')", "fffs.mount.mount(sys.argv[1], 'm')"])
def test_a_frozen_program_is_not_run_again(use: str, tmp_path: Path) -> None:
    (tmp_path / "x.ffr").write_bytes(record_file([b"one"]))
    (tmp_path / "program").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    (tmp_path / "program").chmod(0o755)
    code = (
        "import sys\n"
        f"sys.frozen, sys.executable = True, {str(tmp_path / 'program')!r}\n"
        f"import fffs, fffs.mount\n{use}\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "x.ffr")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr.endswith(
        "/program: a frozen program has no interpreter, which stores and mounts need; run it with Python\n"
    )
    assert not (tmp_path / "started").exists()


def test_a_store_is_asked_from_a_program_that_embeds_python(tmp_path: Path) -> None:
    code = "import sys\nsys.executable = '/usr/bin/uwsgi'\nimport fffs\nfffs.FileReader('s3://bucket/x.ffr')"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **STORE}, capture_output=True, text=True, check=False
    )
    assert "s3://bucket/x.ffr: cannot read: Failed to connect to 127.0.0.1" in done.stderr
