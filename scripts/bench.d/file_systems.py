"""The file systems that ``mount`` compares: making, mounting, warming and unmounting the image of each."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import data
import numpy as np
import page_cache
from figures import progress

DEBIAN = {"mksquashfs": "squashfs-tools", "mkfs.erofs": "erofs-utils", "squashfuse_ll": "squashfuse"}
RATARMOUNT = Path("ratarmount/bin/ratarmount")  # in the scratch folder
# Without compression, as in record files. EROFS compresses only on request.
SQUASHFS_FLAGS = ("-noI", "-noD", "-noF", "-noX", "-noappend", "-no-progress", "-quiet")
FFFS = (sys.executable, "-m", "fffs")
LARGE = "large.bin"
# mount(8) would make a loop device. An EROFS image can be mounted without one since Linux 6.12.
FILE_BACKED = (
    sys.executable,
    "-c",
    "import ctypes, sys; c = ctypes.CDLL(None, use_errno=True);"
    "a, b = (x.encode() for x in sys.argv[1:]);"
    "sys.exit(c.mount(a, b, b'erofs', 1, None) and f'errno {ctypes.get_errno()}')",
)
# Bytes for the contents of the files in the page cache twice: as read from the disk and through the mount.
MEMORY = 5 << 30


@dataclass(frozen=True)
class FileSystem:
    """A file system with the files. ``command`` mounts ``image`` (the last argument but one) on a folder (the last)."""

    name: str
    image: Path
    command: tuple[str, ...]
    unmount: tuple[str, ...] = ("umount",)

    @contextmanager
    def mounted(self, target: Path) -> Iterator[Path]:
        """Yield the folder with the files, in a new mount with empty caches."""
        if not self.command:
            yield self.image
            return
        is_mounted = False
        try:
            with _uninterrupted():
                _run(*self.command, str(self.image), str(target))
                is_mounted = True
            yield target
        finally:
            if is_mounted:
                with _uninterrupted():
                    _run(*self.unmount, str(target))

    def warm(self) -> None:
        """Read the image, or each file of the folder, into the page cache."""
        if self.image.is_dir():
            for path in self.image.rglob("*"):
                if path.is_file():
                    page_cache.warm(path)
            forget_names()
        else:
            page_cache.warm(self.image)


def forget_names() -> None:
    """Drop the kernel's cached names and attributes. The page cache stays."""
    Path("/proc/sys/vm/drop_caches").write_text("2\n")


def forget_all() -> None:
    """Drop the page cache and the kernel's cached names and attributes."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def forget_contents() -> None:
    """Drop the page cache of this machine. Cached names and attributes stay."""
    os.sync()
    page_cache.have_memory(MEMORY)
    Path("/proc/sys/vm/drop_caches").write_text("1\n")


def _run(*command: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay SIGINT to the end of the block, also in the programs that it starts, so that nothing stays mounted.

    Programs inherit the blocked signal. In this process blocking is not enough: threads of numpy may receive it.
    """
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


# ---------------------------------------------------------------- installing


def install(scratch: Path) -> None:
    """Install missing programs: packages of Debian, and ratarmount in a virtual environment of its own."""
    packages = [package for program, package in DEBIAN.items() if shutil.which(program) is None]
    if packages:
        _run("apt-get", "install", "--yes", "--no-install-recommends", *packages)
    if not (scratch / RATARMOUNT).exists():
        _run(sys.executable, "-m", "venv", "--clear", str(scratch / "ratarmount"))
        _run(str(scratch / "ratarmount/bin/pip"), "install", "--quiet", "ratarmount")


# ---------------------------------------------------------------- images


def make_folder(scratch: Path, count: int, large: int) -> Path:
    """Return the folder that all of them show: ``count`` files of 112 KiB on average, and a large one."""
    folder = scratch / f"mount-{count}-{large >> 20}"
    folder.mkdir(exist_ok=True)
    data.photo_folder(folder, count)

    def make(path: Path) -> None:
        generator = np.random.default_rng(2)
        with path.open("wb") as file:
            for _ in range(0, large, 1 << 24):
                file.write(generator.bytes(1 << 24))

    data.kept(folder / LARGE, make)
    return folder


def available(scratch: Path, folder: Path) -> tuple[list[FileSystem], dict[str, str]]:
    """Return the file systems whose programs are installed, with their images, and why the others are missing."""
    squashfs = Image(folder, "squashfs", ("mksquashfs", str(folder)), SQUASHFS_FLAGS)
    erofs = Image(folder, "erofs", ("mkfs.erofs", "--quiet"), (str(folder),))
    tar = Image(folder, "tar", ("tar", "-C", str(folder), "-cf"), (".",))
    ratarmount = str(scratch / RATARMOUNT)
    indexed = (ratarmount, "--index-file", f"{tar.path}-index")
    candidates = [
        ("squashfs, kernel", squashfs, "mksquashfs", ("mount", "-t", "squashfs", "-o", "loop,ro")),
        ("erofs, kernel", erofs, "mkfs.erofs", ("mount", "-t", "erofs", "-o", "loop,ro")),
        ("erofs, kernel, no loop", erofs, "mkfs.erofs", FILE_BACKED),
        ("squashfuse_ll", squashfs, "squashfuse_ll", ("squashfuse_ll",)),
        ("ratarmount", tar, ratarmount, indexed),
    ]
    found, missing = [FileSystem("ext4", folder, ())], {}
    for name, image, program, command in candidates:
        if shutil.which(program) and shutil.which(image.before[0]):
            found.append(FileSystem(name, image.made(), command))
        else:
            missing[name] = f"{Path(program).name} is not installed (use --install)"
    packed = Image(folder, "ffr", (*FFFS, "pack", "--quiet", str(folder)), ()).made()
    for fast, verify in itertools.product(("on", "off"), repeat=2):
        options = f"fastpath={fast},verify={verify}"
        found.append(FileSystem(f"fffs, {options}", packed, (*FFFS, "mount", "-o", options), (*FFFS, "umount")))
    aligned = Image(folder, "aligned.ffr", (*FFFS, "pack", "--quiet", "--align", str(folder)), ()).made()
    # What is verified before the mount appears is not part of the measures.
    found.append(FileSystem("fffs, kernel", aligned, (*FFFS, "mount", "-o", "kernel,verify=off"), (*FFFS, "umount")))
    return found, missing


@dataclass(frozen=True)
class Image:
    """A file that a command makes from a folder. ``before``, the path and ``after`` are the command."""

    folder: Path
    suffix: str
    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def path(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.{self.suffix}")

    def made(self) -> Path:
        progress(f"making {self.path.name}")
        return data.kept(self.path, lambda path: _run(*self.before, str(path), *self.after))


def bytes_from_disk(path: Path) -> int:
    """Return how many bytes all programs together have read from the disk of path."""
    device = os.stat(path).st_dev
    fields = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text().split()
    return int(fields[2]) * 512
