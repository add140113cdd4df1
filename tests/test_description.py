"""README.md as PyPI shows it, rendered by the library that PyPI uses: every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
from examples import ROOT
from readme_renderer import markdown

ADDRESS = "https://host/someone/fffs"


@pytest.fixture
def readme(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that changes the links."""
    monkeypatch.syspath_prepend(ROOT / "scripts/wheel.d")
    import readme

    return readme


def rendered(text: str) -> str:
    shown = markdown.render(text)
    assert shown
    return str(shown)


def test_all_links_of_the_readme_lead_to_files_of_the_tag(readme: ModuleType) -> None:
    before = (ROOT / "README.md").read_text()
    shown = rendered(readme.absolute_links(before, ADDRESS, "v3.4.5"))
    links = re.findall(r'(href|src)="([^#"][^"]*)"', shown)
    assert len(links) == len(re.findall(r'(?:href|src)="[^#"]', rendered(before))) > 15
    for kind, link in links:
        place = f"{ADDRESS}/{'raw' if kind == 'src' else 'blob'}/v3.4.5/"
        assert link.startswith(place)
        assert (ROOT / link.removeprefix(place).partition("#")[0]).is_file()
    for element in ("<table>", "<img", "<h2"):
        assert element in shown


def test_only_relative_links_change(readme: ModuleType) -> None:
    text = "[a](https://x/y) [b](#part) [c](mailto:d@e) `[f](g.md)`\n```\n[h](i.md)\n```\n![j](k.svg) [`l`](m.md#n)\n"
    assert readme.absolute_links(text, ADDRESS, "v1") == text.replace("k.svg", f"{ADDRESS}/raw/v1/k.svg").replace(
        "m.md#n", f"{ADDRESS}/blob/v1/m.md#n"
    )


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (f'[project]\n[project.urls]\nIssues = "https://x"\nSource = "{ADDRESS}/"\n[tool.x]\n', ADDRESS),
        ('# [project.urls]\n# Source = "https://x"\n', None),
        ('[project.urls]\nIssues = "https://x"\n\n[tool.x]\nSource = "https://x"\n', None),
    ],
)
def test_the_address_is_that_of_the_project(readme: ModuleType, text: str, address: str | None) -> None:
    assert readme.repository(text) == address


def test_the_copy_for_a_release_has_these_links(readme: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "README.md").write_text("[a](docs/b.md)\n")
    names = {"README.md", "pyproject.toml"}
    assert not readme.copy_for_release(tmp_path, names, tmp_path / "first", "1.2.3")
    assert (tmp_path / "first/README.md").read_text() == "[a](docs/b.md)\n"
    (tmp_path / "pyproject.toml").write_text(f'[project.urls]\nSource = "{ADDRESS}"\n')
    assert readme.copy_for_release(tmp_path, names, tmp_path / "second", "1.2.3")
    assert (tmp_path / "second/README.md").read_text() == f"[a]({ADDRESS}/blob/v1.2.3/docs/b.md)\n"
