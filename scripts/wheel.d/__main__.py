"""Builds wheels and the sdist, and checks them. See scripts/wheel --help."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from compiler import GLIBC, PROCESSORS, make_compiler, run
from contents import check_description, check_sdist, check_wheel, tracked
from libraries import LIBRARIES, build_libraries
from readme import copy_for_release

CHECKOUT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fffs-wheel"
BUILD = (sys.executable, "-m", "build", "--no-isolation")  # in isolation, pip would take cffi for the other processor
INSIDE = " and ".join(f"{library.name} {library.version}" for library in LIBRARIES)
ABOUT = f"""\
Builds an sdist and, from it, a wheel for each processor. A wheel works with every Python from 3.10 and every glibc from
{GLIBC}. It contains {INSIDE}, whose sources come from Debian's archive.
"""


def build_sdist(folder: Path, epoch: str) -> Path:
    """Build from a copy of the checkout, whose README.md has links for PyPI. Return the path of the sdist."""
    version = re.findall('"(.*)"', (CHECKOUT / "fffs/version.py").read_text())[-1]
    if not copy_for_release(CHECKOUT, tracked(CHECKOUT), folder / "copy", version):
        print("wheel: pyproject.toml: [project.urls] has no Source: on PyPI, links of README.md would be dead")
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    run(*BUILD, "--sdist", "--outdir", folder, folder / "copy", environment=environment)
    (path,) = folder.glob("*.tar.gz")
    return path


def build_wheel(sdist: Path, processor: str, work: Path, epoch: str) -> Path:
    """Build from the sdist, which shows that it is complete, and return the path of the wheel."""
    work.mkdir()
    compiler = make_compiler(processor, work)
    notices = build_libraries(compiler, CACHE, work / "libraries")
    with tarfile.open(sdist) as archive:
        archive.extractall(work, filter="data")
    source = work / sdist.name.removesuffix(".tar.gz")
    with (source / "LICENSE").open("a") as file:
        file.write(f"\n{notices}")
    environment = compiler.environment(work / "libraries")
    environment["SOURCE_DATE_EPOCH"] = epoch
    run(*BUILD, "--wheel", "--outdir", work / "built", source, environment=environment)
    (built,) = (work / "built").glob("*.whl")
    run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", work / "repaired", built, environment=environment)
    (repaired,) = (work / "repaired").glob("*.whl")
    return repaired


def main() -> None:
    """Build what the arguments ask for."""
    parser = argparse.ArgumentParser("scripts/wheel", description=ABOUT)
    parser.add_argument("--processor", action="append", choices=PROCESSORS, help="default: all")
    parser.add_argument(
        "--into",
        type=Path,
        default=CHECKOUT / "dist",
        metavar="FOLDER",
        help="default: dist; what it has of fffs is removed",
    )
    arguments = parser.parse_args()
    epoch = run("git", "-C", CHECKOUT, "log", "-1", "--format=%ct").strip()
    with tempfile.TemporaryDirectory() as work:
        (Path(work) / "sdist").mkdir()
        sdist = build_sdist(Path(work) / "sdist", epoch)
        check_sdist(sdist, CHECKOUT)
        made = [sdist]
        for processor in arguments.processor or PROCESSORS:
            wheel = build_wheel(sdist, processor, Path(work) / processor, epoch)
            check_wheel(wheel, processor, CHECKOUT)
            check_description(wheel, CHECKOUT)
            made.append(wheel)
        run(sys.executable, "-m", "twine", "check", "--strict", *made)
        arguments.into.mkdir(exist_ok=True)
        for path in arguments.into.glob("fffs-*"):
            path.unlink()
        for path in made:
            shutil.copy(path, arguments.into)
            print(f"{arguments.into / path.name}: {path.stat().st_size / 1e6:.1f} MB")


main()
