"""Commands import nothing from the current folder, which may be anybody's, or belong to a data set of a stranger."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from builders import record_file
from inside import modules

import fffs

# Modules that Python imports in each process that it starts. They say that they were imported, and fail.
NAMES = [
    "signal",
    "pickle",
    "selectors",
    "socket",
    "multiprocessing",
    "threading",
    "linecache",
    "configparser",
    "fffs",
    "obstore",
]
STORE = {
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",  # where nothing listens
    "AWS_ALLOW_HTTP": "1",
    "AWS_ACCESS_KEY_ID": "a",
    "AWS_SECRET_ACCESS_KEY": "b",
    "FFFS_DEADLINE": "3",
}


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    folder = tmp_path / "stranger"
    (folder / "source").mkdir(parents=True)
    (folder / "source" / "file").write_bytes(b"content")
    (folder / "a.ffr").write_bytes(record_file([b"one", b"two"]))
    for name in NAMES:
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'a').write(__name__ + ' ')\n1 / 0\n")
    return folder


@pytest.mark.parametrize(
    "command",
    [
        "verify a.ffr",
        "verify --executor processes:2 a.ffr",
        "verify --executor ray a.ffr",
        "pack --parts 2 --executor processes:2 source set",
        "convert --to tfrecord --parts 1 --executor processes:1 a.ffr t",
        "pack source s3://bucket/x.ffr",
        "ls s3://bucket/x.ffr",
    ],
)
def test_nothing_is_imported_from_the_current_folder(stranger: Path, command: str) -> None:
    words = [str(Path(sys.executable).with_name("fffs")), *command.split()]
    done = subprocess.run(words, cwd=stranger, env=os.environ | STORE, capture_output=True, text=True, timeout=60)
    assert not (stranger.parent / "imported").exists(), (stranger.parent / "imported").read_text()
    assert done.returncode == (6 if "s3:" in command else 0), done.stderr
    assert "s3:" not in command or "127.0.0.1" in done.stderr


def test_a_program_that_finds_the_package_by_its_own_path_reaches_stores(tmp_path: Path) -> None:
    """As in notebooks, and where a bundle of packages is unpacked: its child processes have the usual path."""
    places = [os.path.dirname(os.path.dirname(fffs.__file__)), *sys.path]
    code = f"""
import sys
sys.path[1:1] = {places!r}
import fffs.errors
try:
    fffs.PackedFolder("s3://bucket/x.ffr")
except fffs.errors.FffsError as error:
    print(error)
"""
    python = getattr(sys, "_base_executable", sys.executable)  # without the packages of a virtual environment
    done = subprocess.run(
        [python, "-c", code], cwd=tmp_path, env=os.environ | STORE, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == "" and "127.0.0.1" in done.stdout


@pytest.mark.parametrize("added", [False, True])
def test_a_program_may_have_modules_with_names_of_the_standard_library(tmp_path: Path, added: bool) -> None:
    """Beside it, such as secrets.py with its keys; or in a folder that it adds after it imported the others."""
    other = tmp_path / "other" if added else tmp_path
    other.mkdir(exist_ok=True)
    for name in ("secrets", "http", "xml", *["signal", "queue", "linecache"] * added):
        (other / f"{name}.py").write_text("KEY = 'abc'\n")
    (tmp_path / "program.py").write_text(f"""
import sys
import fffs, fffs.errors
if {added}:
    import torch
    sys.path.insert(0, {str(other)!r})
try:
    fffs.PackedFolder("s3://bucket/x.ffr")
except fffs.errors.FffsError as error:
    print(error)
""")
    command, environment = [sys.executable, tmp_path / "program.py"], os.environ | STORE
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stderr == "" and "127.0.0.1" in done.stdout


def test_a_daemon_does_not_import_modules_of_a_program_with_names_of_the_standard_library(tmp_path: Path) -> None:
    for name in ("queue", "inspect", "email"):
        (tmp_path / f"{name}.py").write_text("")
    (tmp_path / "a.ffr").write_bytes(record_file([b"one"]))
    (tmp_path / "program.py").write_text("""
import os, fffs, fffs.mount
with fffs.mount.mounted("a.ffr") as folder:
    print(os.listdir(folder))
""")
    command = [sys.executable, tmp_path / "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("['000000']\n", "")


@pytest.mark.parametrize("given", [{}, {"PYTHONPATH": "/of/the/user", "PYTHONSAFEPATH": ""}])
def test_programs_that_a_daemon_starts_get_no_variables_of_ours(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a credential_process for another version of Python."""
    for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    environment = before | modules.module_variables()
    assert environment["PYTHONSAFEPATH"] == "1" and sys.path[-1] in environment["PYTHONPATH"]
    for name in environment:
        monkeypatch.setenv(name, environment[name])
    modules.restore_variables()
    assert dict(os.environ) == before
