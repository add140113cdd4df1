"""Becomes an ordinary user in a clean system, installs the wheel, and uses it. See scripts/strangers."""

from __future__ import annotations

import ctypes
import errno
import filecmp
import json
import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

USER = 1000
HOME = Path("/home/stranger")
VENV = HOME / "venv"
FFFS = VENV / "bin/fffs"
SECONDS_TO_MOUNT = 60.0
IMPORT_RATIO = 1.15
SECONDS_TO_LIST = 0.120
WHOLE, NO_IO_URING, NO_PYFUSE3 = "whole", "no-io_uring", "no-pyfuse3"


def demand(fact: object, message: str) -> None:
    """End with a message if something is not as it should be."""
    if not fact:
        sys.exit(f"strangers: {message}")


def run(*command: object, fails: bool = False) -> str:
    """Run a command and return what it printed, also to stderr if it fails as it should."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    said = f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    demand((done.returncode != 0) == fails, f"{' '.join(words)}: {said}")
    return done.stderr if fails else done.stdout


def forbid_io_uring() -> None:
    """Let io_uring_setup(2) and its kin fail, as in containers. Only root may without giving up setuid programs."""
    load, at_least, give = 0x20, 0x35, 0x06
    program = [
        (load, 0, 0, 0),  # the number of the system call; io_uring has 425 to 427 with every processor
        (at_least, 0, 2, 425),
        (at_least, 1, 0, 428),
        (give, 0, 0, 0x00050000 | errno.EPERM),
        (give, 0, 0, 0x7FFF0000),
    ]
    data = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    filter_ = struct.pack("HxxxxxxP", len(program), ctypes.addressof(data))
    libc = ctypes.CDLL(None, use_errno=True)
    demand(libc.prctl(22, 2, ctypes.c_char_p(filter_), 0, 0) == 0, os.strerror(ctypes.get_errno()))


def become_stranger() -> None:
    """Become an ordinary user with a home of its own."""
    HOME.mkdir(parents=True, exist_ok=True)
    os.chown(HOME, USER, USER)
    os.setgroups([])
    os.setgid(USER)
    os.setuid(USER)
    os.environ["HOME"] = str(HOME)
    os.chdir(HOME)


def install() -> None:
    """Install the wheel into a virtual environment that sees the packages of the distribution."""
    for compiler in ("cc", "gcc", "clang"):
        demand(shutil.which(compiler) is None, f"there is a compiler: {compiler}")
    (wheel,) = Path("/stranger").glob("*.whl")
    run(sys.executable, "-m", "venv", "--system-site-packages", VENV)
    run(VENV / "bin/pip", "install", "--no-index", wheel)


def make_folder(count: int) -> Path:
    """Return a folder with a number of files."""
    folder = HOME / f"{count}-files"
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:05}.bin").write_bytes(os.urandom(4000 + number % 97))
    return folder


def same(one: Path, other: Path) -> bool:
    """Whether two folders have the same files."""
    names = sorted(path.name for path in one.iterdir())
    if names != sorted(path.name for path in other.iterdir()):
        return False
    return filecmp.cmpfiles(one, other, names, shallow=False)[0] == names


def check_doctor(system: str) -> None:
    """Compare what ``fffs doctor`` says with what this system is like."""
    found = {each["name"]: each for each in json.loads(run(FFFS, "doctor", "--json"))["findings"]}
    problems = [each for each in found.values() if each["state"] == "problem"]
    demand(not problems, f"doctor: {problems}")
    demand((found["io_uring"]["state"] == "ok") == (system != NO_IO_URING), f"doctor: {found['io_uring']}")
    print(f"  doctor: engine {found['engine']['found']}; io_uring {found['io_uring']['found']}")


def use(folder: Path, pack: Path) -> None:
    """Pack, mount, read and unmount as a user does."""
    mounted = HOME / "mnt"
    run(FFFS, "pack", folder, pack)
    run(FFFS, "mount", pack, mounted)
    try:
        demand(same(folder, mounted), f"{mounted} differs from {folder}")
        run(FFFS, "stat", mounted)
    finally:
        run(FFFS, "umount", mounted)
    run(FFFS, "verify", pack)
    name = sorted(path.name for path in folder.iterdir())[0]
    program = f"import fffs, sys; print(fffs.PackedFolder(sys.argv[1]).read([{name!r}])[0].tobytes().hex())"
    read = run(VENV / "bin/python", "-c", program, pack).strip()
    demand(bytes.fromhex(read) == (folder / name).read_bytes(), f"{name} differs")


def fastest(commands: dict[str, list[object]], times: int = 9) -> dict[str, float]:
    """Return the least time of each command, in seconds. They take turns, so that other work disturbs all of them."""
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(times):
        for name, command in commands.items():
            start = time.perf_counter()
            run(*command)
            taken[name].append(time.perf_counter() - start)
    return {name: min(each) for name, each in taken.items()}


def show(what: str, value: str, good: bool = True) -> None:
    """Print a figure, and whether it is what it should be."""
    print(f"  {what}: {value}{'' if good else '  MISSED'}", flush=True)


def measure_start(pack: Path) -> None:
    """Print how long imports and a short command take."""
    python = VENV / "bin/python"
    taken = fastest(
        {
            "numpy": [python, "-c", "import numpy"],
            "fffs": [python, "-c", "import fffs"],
            "reader": [python, "-c", "from fffs import FileReader"],
            "ls": [FFFS, "ls", pack],
        }
    )
    ratio = taken["fffs"] / taken["numpy"]
    show("import fffs", f"{ratio:.2f} x import numpy ({taken['numpy'] * 1000:.0f} ms)", ratio <= IMPORT_RATIO)
    show("from fffs import FileReader, which imports numpy", f"{taken['reader'] / taken['numpy']:.2f} x import numpy")
    show("fffs ls of 10 files", f"{taken['ls'] * 1000:.0f} ms", taken["ls"] <= SECONDS_TO_LIST)


def first_mount() -> None:
    """Print how long it takes from nothing to a mounted folder."""
    folder, mounted = make_folder(10), HOME / "first"
    start = time.perf_counter()
    install()
    installed = time.perf_counter() - start
    run(FFFS, "pack", folder, folder.with_suffix(".ffr"))
    run(FFFS, "mount", folder.with_suffix(".ffr"), mounted)
    demand(same(folder, mounted), f"{mounted} differs from {folder}")
    taken = time.perf_counter() - start
    run(FFFS, "umount", mounted)
    value = f"{taken:.1f} s ({installed:.1f} s of them: venv and pip install)"
    show("from the wheel to a mounted folder", value, taken <= SECONDS_TO_MOUNT)


def check_refusal() -> None:
    """Without pyfuse3, everything but mounts works, and one line names the packages."""
    pack = HOME / "10-files.ffr"
    run(FFFS, "verify", pack)
    said = run(FFFS, "mount", pack, HOME / "mnt", fails=True)
    demand(said.count("\n") == 1 and "python3-pyfuse3" in said and "fffs[mount]" in said, f"it said: {said}")
    print(f"  {said}", end="")


def main(system: str) -> None:
    """Visit a system."""
    if system == NO_PYFUSE3:
        run("dpkg", "--remove", "--force-depends", "python3-pyfuse3")
    if system == NO_IO_URING:
        forbid_io_uring()
    become_stranger()
    if system == NO_PYFUSE3:
        check_refusal()
        return
    if system == WHOLE:
        first_mount()
        make_folder(500)
    check_doctor(system)
    use(HOME / "500-files", HOME / f"{system}.ffr")
    if system == WHOLE:
        measure_start(HOME / "10-files.ffr")


main(sys.argv[1])
