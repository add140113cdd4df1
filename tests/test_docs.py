"""The documents agree with the code and the tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def defined_tests() -> set[str]:
    return {
        name for file in (ROOT / "tests").glob("test_*.py") for name in re.findall(r"def (test_\w+)", file.read_text())
    }


def rows_of(document: str) -> dict[str, list[str]]:
    """Return the rows of docs/promises.md for a document: the title of each promise, and its tests."""
    section = (ROOT / "docs/promises.md").read_text().split(f"## {document}\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (.+?) \| (`test_.+) \|$", section, re.MULTILINE)
    assert len(cells) == len(dict(cells))
    return {title: re.findall(r"`(test_\w+)`", tests) for title, tests in cells}


@pytest.mark.parametrize("document", ["SEMANTICS.md", "SECURITY.md"])
def test_every_promise_has_tests_that_exist(document: str) -> None:
    promises = (ROOT / document).read_text().split("## What is not promised")[0]
    titles = re.findall(r"^- \*\*(.+?)\.?\*\*", promises, re.MULTILINE)
    assert len(titles) == len(re.findall(r"^- ", promises, re.MULTILINE)) > 30
    rows = rows_of(document)
    assert list(rows) == titles
    assert {test for tests in rows.values() for test in tests} <= defined_tests()


PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_links_to_exists(page: Path) -> None:
    for target, heading in re.findall(r"\]\((?!\w+:)([^()#\s]*)(?:#([^()\s]+))?\)", page.read_text()):
        linked = (page.parent / target).resolve() if target else page
        assert linked.exists(), f"{page.name}: {target}"
        if heading:
            assert heading in headings(linked), f"{page.name}: {target}#{heading}"


def headings(page: Path) -> set[str]:
    """Return the names that GitHub and the site give the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_architecture_names_every_room_and_what_users_import() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rooms = [path.parent.relative_to(ROOT) for top in ("fffs", "mount") for path in (ROOT / top).glob("*/__init__.py")]
    assert len(rooms) > 12
    for room in rooms:
        assert f"`{room}/`" in text, room
    for module in (ROOT / "fffs").glob("*.py"):
        if module.stem not in ("__init__", "__main__", "version"):
            assert f"`{module.stem}`" in text, module.stem
