"""Every bad file ends in a typed error, soon and in little memory; the seeds and finds of fuzzing pass."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import struct
import subprocess
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from builders import MAGIC
from fuzz import make_bad, replay, seeds

HERE = Path(__file__).parent
FINDS = HERE / "fuzz" / "finds"
FILES = [line.split("  ")[1] for line in make_bad.HASHES.read_text().splitlines()]
GROUP = 60  # files per process
C_TARGETS = ("pickle", "tree", "store", "fastpath", "tar")
PYTHON_TARGETS = ("header", "packed", "trailer", "bag", "granular", "archive", "tfrecord", "ofrecord", "rows")

# ---------------------------------------------------------------- bad files


def replayed(files: list[Path]) -> dict[str, dict[str, Any]]:
    """Open files in a process of their own. Returns the outcome of each."""
    command = [sys.executable, "-m", "fuzz.replay", *map(str, files)]
    environment = os.environ | {"PYTHONPATH": str(HERE)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    ended = {line["ends"]: line for line in lines if "ends" in line}
    if done.returncode != 0:
        last = lines[-1].get("begins", "?") if lines else "?"
        ended[last] = {"kind": f"the process ended ({done.returncode})", "why": done.stderr[-2000:]}
    return ended


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The outcome of each bad file, by name."""
    folder = tmp_path_factory.mktemp("bad")
    make_bad.write_files(folder)
    ended: dict[str, dict[str, Any]] = {}
    for begin in range(0, len(FILES), GROUP):
        ended |= replayed([folder / name for name in FILES[begin : begin + GROUP]])
    return {os.path.relpath(path, folder): outcome for path, outcome in ended.items()}


def check_outcome(outcome: dict[str, Any] | None, kind: str) -> None:
    assert outcome is not None, "a file before it ended the process"
    assert outcome["kind"] == kind, outcome["why"]
    assert outcome["why"]
    assert outcome["seconds"] < 2
    assert outcome["peak"] < replay.MEMORY
    assert not outcome.get("compared"), "its answers do not agree with its bytes"


# Known failures and their reasons.
KNOWN: dict[str, str] = {}


def marked(name: str) -> Any:
    marks = [pytest.mark.xfail(strict=True, reason=KNOWN[name])] if name in KNOWN else []
    return pytest.param(name, marks=marks, id=name.removesuffix(".ffr"))


@pytest.mark.parametrize("name", [marked(name) for name in FILES])
def test_a_bad_file_gives_a_typed_error_soon_and_in_little_memory(
    outcomes: dict[str, dict[str, Any]], name: str
) -> None:
    check_outcome(outcomes.get(name), name.split("/")[0])


def test_the_bad_files_are_those_that_they_were() -> None:
    made = make_bad.bad_files()
    assert make_bad.hashes(made) == make_bad.HASHES.read_text(), "python -m fuzz.make_bad writes the new hashes"
    assert len(made) >= 300
    assert sum(map(len, made.values())) < 1_500_000


# ---------------------------------------------------------------- bad files that are large and sparse


def sparse_tree() -> bytes:
    """Return a packed folder of one record that begins with the magic bytes."""
    header = struct.pack("<qIq", 1, 0, 24)
    return struct.pack("<I", zlib.crc32(header)) + header + MAGIC


TIB = 1 << 40
CLAIMS = "memory is claimed by the size that a sparse file pretends to have: MemoryError"
SPARSE = {
    "zeros": bytes(12),
    "too-many-records": struct.pack("<Iq", 1, TIB // 12),
    "as-many-records-as-fit": struct.pack("<Iq", 1, (TIB - 12) // 12),
    "as-many-records-as-fit-no-checksum": struct.pack("<Iq", 0, (TIB - 12) // 12),
    "tree-of-zeros": sparse_tree(),
}
KNOWN_SPARSE: set[str] = set()


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(head, marks=[pytest.mark.xfail(strict=True, reason=CLAIMS)] * (name in KNOWN_SPARSE), id=name)
        for name, head in SPARSE.items()
    ],
)
def test_a_sparse_file_gives_a_typed_error_soon_and_in_little_memory(tmp_path: Path, head: bytes) -> None:
    path = tmp_path / "sparse.ffr"
    path.write_bytes(head)
    os.truncate(path, TIB)
    check_outcome(replayed([path]).get(str(path)), "refused")


# ---------------------------------------------------------------- the fuzz targets


def inputs(target: str) -> dict[str, bytes]:
    """Return the seeds and the finds of a target."""
    finds = FINDS / target
    return dict(seeds.TARGETS[target]()) | {
        path.name: path.read_bytes() for path in (sorted(finds.iterdir()) if finds.is_dir() else ())
    }


@pytest.mark.parametrize("target", PYTHON_TARGETS)
def test_seeds_and_finds_pass_a_python_target(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFFS_CACHE", "off")
    one_input = importlib.import_module(f"fuzz.fuzz_{target}").one_input
    for name, data in inputs(target).items():
        try:
            one_input(data)
        except Exception as error:
            raise AssertionError(f"input {name} of the fuzz target {target}: {error!r}") from error


@dataclass(frozen=True)
class Build:
    """How to build the C targets: the compiler with its options, and the objects of the engine."""

    command: list[str]
    objects: list[str]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The engine, compiled with sanitizers if the compiler has them."""
    folder = tmp_path_factory.mktemp("engine")
    native = HERE.parent / "fffs" / "native"
    plain = [os.environ.get("CC", "cc"), "-std=c11", "-D_GNU_SOURCE=1", "-g", "-O1", "-pthread", f"-I{native}"]
    sanitized = [*plain, "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    probe = folder / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    works = (
        subprocess.run([*sanitized, probe, "-o", folder / "probe"], capture_output=True, check=False).returncode == 0
    )
    command = sanitized if works else plain
    sources = [source for source in sorted(native.glob("*.c")) if source.name != "_native.c"]
    objects = [str(folder / f"{source.stem}.o") for source in sources]
    compilers = [
        subprocess.Popen([*command, "-c", str(source), "-o", target])
        for source, target in zip(sources, objects, strict=True)
    ]
    assert [compiler.wait() for compiler in compilers] == [0] * len(compilers)
    return Build(command, objects)


@pytest.mark.parametrize("target", C_TARGETS)
def test_seeds_and_finds_pass_a_c_target(build: Build, tmp_path: Path, target: str) -> None:
    sources = [str(HERE / "fuzz" / "c" / name) for name in (f"{target}.c", "replay.c")]
    program = str(tmp_path / target)
    subprocess.run([*build.command, *sources, *build.objects, "-ldeflate", "-luring", "-o", program], check=True)
    files = []
    for name, data in inputs(target).items():
        files.append(tmp_path / f"input-{name}")
        files[-1].write_bytes(data)
    done = subprocess.run([program, *map(str, files)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def test_every_target_has_seeds_and_a_program() -> None:
    listed = subprocess.run([HERE.parent / "scripts" / "fuzz", "--list"], capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in listed.stdout.splitlines()] == [*C_TARGETS, *PYTHON_TARGETS]
    assert sorted(seeds.TARGETS) == sorted(itertools.chain(C_TARGETS, PYTHON_TARGETS))
