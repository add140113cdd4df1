"""The C libraries that a wheel contains: their sources, by checksum, and how they are built as static libraries."""

from __future__ import annotations

import hashlib
import subprocess
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from compiler import Compiler, run

FLAGS = ["-O3", "-fPIC"]


@dataclass(frozen=True)
class Library:
    """A library. ``place`` is where Debian's archive has the sources, ``notice`` names the licence in them."""

    name: str
    version: str
    place: str
    sha256: str
    notice: str
    build: Callable[[Path, Compiler, Path], None]

    @property
    def file(self) -> str:
        """The name of the archive of sources."""
        return self.place.rsplit("/", 1)[1]


def build_libdeflate(source: Path, compiler: Compiler, target: Path) -> None:
    """Compile what a CRC needs."""
    objects = []
    for name in ("crc32", "utils", "arm/cpu_features", "x86/cpu_features"):
        objects.append(source / f"{name.replace('/', '-')}.o")
        run(compiler.cc, *FLAGS, f"-I{source}", "-c", source / f"lib/{name}.c", "-o", objects[-1])
    run(compiler.ar, "rcs", target / "lib/libdeflate.a", *objects)
    (target / "include/libdeflate.h").write_bytes((source / "libdeflate.h").read_bytes())


def build_liburing(source: Path, compiler: Compiler, target: Path) -> None:
    """Build by the Makefile of the library. Without libc, the default, Zig does not find the headers of libc."""
    run("./configure", "--use-libc", f"--cc={compiler.cc}", f"--cxx={compiler.cc}", folder=source)
    flags = " ".join([*FLAGS, "-fno-stack-protector"])
    run("make", "-C", "src", "liburing.a", "ENABLE_SHARED=0", f"CFLAGS={flags}", f"AR={compiler.ar}", folder=source)
    run("cp", "-r", "src/include/.", target / "include", folder=source)
    (target / "lib/liburing.a").write_bytes((source / "src/liburing.a").read_bytes())


# The versions of Debian's stable release: its archive keeps them for years. Newer ones have nothing that fffs uses.
# libdeflate before 1.23 could compute wrong checksums.
LIBRARIES = (
    Library(
        "libdeflate",
        "1.23",
        "pool/main/libd/libdeflate/libdeflate_1.23.orig.tar.gz",
        "1ab18349b9fb0ce8a0ca4116bded725be7dcbfa709e19f6f983d99df1fb8b25f",
        "COPYING",
        build_libdeflate,
    ),
    Library(
        "liburing",
        "2.9",
        "pool/main/libu/liburing/liburing_2.9.orig.tar.gz",
        "57e9b36e4ac1e46b8e0351dfb1694dc59638fc25e384b4ba36d87b800b16db1a",
        "LICENSE",
        build_liburing,
    ),
)


def mirrors() -> list[str]:
    """Return the archives that this machine's apt-get uses, and Debian's own."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        found = []
    return list(dict.fromkeys([*found, "https://deb.debian.org/debian/"]))


def fetch(library: Library, cache: Path) -> Path:
    """Return the archive of sources, from the cache or else an archive of Debian, with the expected checksum."""
    path = cache / library.file
    if not path.exists():
        for mirror in mirrors():
            try:
                with urllib.request.urlopen(f"{mirror}{library.place}", timeout=60) as answer:
                    data = answer.read()
            except (OSError, urllib.error.URLError):
                continue
            break
        else:
            raise SystemExit(f"wheel: {library.file}: no archive of Debian has it: put it into {cache}")
        cache.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != library.sha256:
        raise SystemExit(f"wheel: {path}: SHA-256 is {found}, expected {library.sha256}: remove the file")
    return path


def build_libraries(compiler: Compiler, cache: Path, target: Path) -> str:
    """Build all into ``target``, which gets ``include`` and ``lib``. Return their licences."""
    notices = []
    for name in ("include", "lib", "source"):
        (target / name).mkdir(parents=True)
    for library in LIBRARIES:
        with tarfile.open(fetch(library, cache)) as archive:
            archive.extractall(target / "source", filter="data")
        source = target / "source" / f"{library.name}-{library.version}"
        library.build(source, compiler, target)
        notice = (source / library.notice).read_text().strip()
        notices.append(f"{'-' * 80}\nThe wheels contain {library.name} {library.version}:\n\n{notice}\n")
    return "\n".join(notices)
