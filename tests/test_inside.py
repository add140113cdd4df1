"""Tests use internals only by way of tests/inside.py."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import inside
import pytest

HERE = Path(__file__).parent
PUBLIC = {"fffs"} | {
    f"fffs.{name}"
    for name in (
        "dask",
        "errors",
        "fsspec",
        "granular",
        "mount",
        "ofrecord",
        "ray",
        "tfrecord",
        "torch",
        "utils",
        "version",
    )
}


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (module, name) of everything that a module imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, name.name) for name in node.names)
        elif isinstance(node, ast.Import):
            yield from ((name.name, "") for name in node.names)


def test_tests_import_internals_from_one_module() -> None:
    imported = {
        (path.name, module) for path in HERE.rglob("*.py") for module, _ in imports(path) if module.startswith("fffs")
    }
    assert {(name, module) for name, module in imported if module not in PUBLIC} == set()


def test_every_name_is_used() -> None:
    used = {name for path in HERE.rglob("*.py") for module, name in imports(path) if module == "inside" and name}
    assert used == set(inside.TABLE)


@pytest.mark.parametrize("name", sorted(inside.TABLE))
def test_every_name_is_there(name: str) -> None:
    assert getattr(inside, name) is not None
