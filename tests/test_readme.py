"""The examples of README.md print what the page shows."""

from __future__ import annotations

import random
from pathlib import Path

import mounting
import pytest
from examples import ROOT, blocks, run_console, run_session

README = ROOT / "README.md"


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder ``photos`` of the page, in the current folder."""
    chosen = random.Random(1)
    for year in ("2023", "2024"):
        (tmp_path / "photos" / year).mkdir(parents=True)
        for k in range(1000):
            (tmp_path / "photos" / year / f"{k:04d}.jpg").write_bytes(chosen.randbytes(chosen.randrange(8000, 24000)))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "photos"


@pytest.mark.fuse
def test_the_examples_of_the_readme_print_what_it_shows(photos: Path, tmp_path: Path) -> None:
    names: dict[str, object] = {}
    ran = []
    try:
        for block in blocks(README):
            if block.language == "console":
                run_console(block, tmp_path)
            elif block.language == "pycon":
                assert run_session(block.text, f"README.md, line {block.line}", names)
            ran.append(block.language)
    finally:
        mounting.detach_all(tmp_path)
    assert {"console", "pycon"} <= set(ran)


def test_the_readme_is_short() -> None:
    lines = README.read_text().splitlines()
    assert len(lines) < 100
