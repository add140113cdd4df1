"""Checks what is in a wheel and in an sdist."""

from __future__ import annotations

import email
import io
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from compiler import GLIBC, run
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection
from libraries import LIBRARIES
from readme import repository
from readme_renderer import markdown

ENGINE = "fffs/native/_native.abi3.so"
MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
# Not bundled: every Linux with glibc has these.
OF_THE_SYSTEM = re.compile(r"(libc|libm|libdl|libpthread|librt|ld-linux-[\w-]+)\.so\.\d")
EXPORTED = {"PyInit__native"}
GENERATED = re.compile(r"PKG-INFO|setup\.cfg|fffs\.egg-info/.*")  # by setuptools
LEFT_OUT = re.compile(r"\.(ci|gitignore|clang-format)\b")


def demand(fact: bool, message: str) -> None:
    """Exit with a message if something is not a fact."""
    if not fact:
        raise SystemExit(f"wheel: {message}")


def tracked(checkout: Path) -> set[str]:
    """Return the files under version control."""
    listed = subprocess.run(["git", "-C", checkout, "ls-files"], capture_output=True, text=True, check=True)
    return set(listed.stdout.splitlines())


def check_sdist(path: Path, checkout: Path) -> None:
    """Exit unless the sdist has the files under version control, and no others, as notes, keys and compiled ones."""
    with tarfile.open(path) as archive:
        names = {member.name.partition("/")[2] for member in archive if not member.isdir()}
    known = tracked(checkout)
    missing = sorted(name for name in known - names if not LEFT_OUT.match(name))
    demand(not missing, f"{path.name} lacks {' '.join(missing)}: see MANIFEST.in")
    odd = sorted(name for name in names - known if not GENERATED.fullmatch(name))
    demand(not odd, f"{path.name} has {' '.join(odd)}, which git does not know: move them, or see MANIFEST.in")


def check_wheel(path: Path, processor: str, checkout: Path) -> None:
    """Exit unless the wheel has all modules, man pages, the licences, and an engine that runs where its name says."""
    limit = int(GLIBC.partition(".")[2])
    found = re.fullmatch(rf"fffs-[^-]+-cp310-abi3-manylinux_2_(\d+)_{processor}(\.\S+)?\.whl", path.name)
    demand(found is not None and int(found[1]) <= limit, f"{path.name}: expected cp310-abi3-manylinux_2_{limit}")
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        expected = {re.sub("^mount/", "fffs/mount/", name) for name in tracked(checkout)}
        expected = {name for name in expected if re.fullmatch(r"fffs/(.*\.py|py\.typed)", name)}
        data = "-".join(path.name.split("-")[:2]) + ".data/data"  # man pages and completions
        expected |= {f"{data}/{name}" for name in tracked(checkout) if name.startswith("share/")}
        missing = sorted(expected - names)
        demand(not missing, f"{path.name} lacks {' '.join(missing)}: see pyproject.toml")
        odd = {name for name in names - expected if ".dist-info/" not in name and not name.endswith("/")} - {ENGINE}
        demand(not odd, f"{path.name} also has {' '.join(sorted(odd))}")
        (licence,) = (name for name in names if name.endswith(".dist-info/licenses/LICENSE"))
        text = archive.read(licence).decode()
        for library in LIBRARIES:
            demand(f"{library.name} {library.version}:" in text, f"{path.name}: no licence of {library.name}")
        check_engine(archive.read(ENGINE), processor)
    run(sys.executable, "-m", "abi3audit", "--strict", path)


def check_description(path: Path, checkout: Path) -> None:
    """Exit unless PyPI can show the description in a wheel, with links that lead somewhere if there is an address."""
    with zipfile.ZipFile(path) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        shown = markdown.render(email.message_from_bytes(archive.read(name)).get_payload()) or ""
    demand("<table>" in shown, f"{path.name}: PyPI cannot show its description")
    if repository((checkout / "pyproject.toml").read_text()):
        dead = re.findall(r'(?:href|src)="(?!https?://|#)([^"]*)"', shown)
        demand(not dead, f"{path.name}: its description has relative links: {' '.join(dead)}")


def check_engine(data: bytes, processor: str) -> None:
    """Exit if the compiled file is for another processor, needs libraries, or exports symbols of those in it."""
    elf = ELFFile(io.BytesIO(data))
    demand(elf["e_machine"] == MACHINES[processor], f"{ENGINE} is for {elf['e_machine']}")
    for section in elf.iter_sections():
        if isinstance(section, DynamicSection):
            for tag in section.iter_tags():
                demand(tag.entry.d_tag not in ("DT_RPATH", "DT_RUNPATH"), f"{ENGINE} has paths of this machine")
                if tag.entry.d_tag == "DT_NEEDED":
                    demand(OF_THE_SYSTEM.fullmatch(tag.needed) is not None, f"{ENGINE} needs {tag.needed}")
        if isinstance(section, SymbolTableSection) and section.name == ".dynsym":
            exported = {symbol.name for symbol in section.iter_symbols() if is_exported(symbol)}
            demand(exported <= EXPORTED, f"{ENGINE} exports {' '.join(sorted(exported - EXPORTED))}")


def is_exported(symbol: object) -> bool:
    """Whether other files can use a symbol of this one."""
    defined = symbol["st_shndx"] != "SHN_UNDEF"  # type: ignore[index]
    return bool(symbol.name) and defined  # type: ignore[attr-defined]
