"""The site: it is built, and a browser shows its pages with their headings and plots and without errors."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from examples import ROOT

pytestmark = pytest.mark.browser


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that looks at pages."""
    monkeypatch.syspath_prepend(ROOT / "scripts/site.d")
    import look

    return look


def size_of(picture: Path) -> tuple[int, int]:
    """Return the width and height of a PNG."""
    head = picture.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", head[16:])
    return width, height


def test_five_pages_have_their_headings_and_plots_and_no_errors(looking: ModuleType, tmp_path: Path) -> None:
    command = [sys.executable, "-B", str(ROOT / "scripts/site.d"), "--look", "--into", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    pictures = sorted((tmp_path / "screenshots").iterdir())
    assert len(pictures) == len(looking.PAGES) == 5
    for picture in pictures:
        assert size_of(picture) == (1280, 1600)
        assert picture.stat().st_size > 50_000  # an empty page has less than a tenth of it


def test_what_a_page_lacks_is_found(looking: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "broken.html").write_text(
        "<link rel='icon' href='data:,'><h1>Broken <code>page</code></h1><img src='lost.svg'>"
        "<script>console.log('a note'); undefined_name();</script>"
    )
    found = looking.look(tmp_path, tmp_path, {"broken.html": ("Whole page", "plot.svg")})
    assert found == [
        "broken.html: the console says: a note",
        "broken.html: the console says: Uncaught ReferenceError: undefined_name is not defined",
        "broken.html: no heading 'Whole page'",
        "broken.html: no plot plot.svg",
        "/lost.svg: a page asks for it, but there is no such file",
    ]
