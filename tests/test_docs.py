"""The documents speak of what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def defined_tests() -> set[str]:
    return {
        name for file in (ROOT / "tests").glob("test_*.py") for name in re.findall(r"def (test_\w+)", file.read_text())
    }


@pytest.mark.parametrize("document", ["SEMANTICS.md", "SECURITY.md"])
def test_every_test_that_a_document_names_exists(document: str) -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / document).read_text()))
    assert len(named) > 30
    assert named - defined_tests() == set()


def test_every_file_that_a_document_names_exists() -> None:
    for document in (
        "README.md",
        "ARCHITECTURE.md",
        "SECURITY.md",
        "CONTRIBUTING.md",
        "docs/mounting.md",
        "docs/reading.md",
        "docs/training.md",
    ):
        path = ROOT / document
        for target in re.findall(r"\]\(([\w./]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{document}: {target}"


def test_architecture_names_every_room_and_what_users_import() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rooms = [path.parent.relative_to(ROOT) for top in ("fffs", "mount") for path in (ROOT / top).glob("*/__init__.py")]
    assert len(rooms) > 12
    for room in rooms:
        assert f"`{room}/`" in text, room
    for module in (ROOT / "fffs").glob("*.py"):
        if module.stem not in ("__init__", "__main__", "version"):
            assert f"`{module.stem}`" in text, module.stem
