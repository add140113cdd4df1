"""README.md as PyPI shows it: away from the repository, relative links lead nowhere."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

CODE = r"^```.*?^```|`[^`\n]+`"
RELATIVE = r"(!?)(\[[^\]\n]*\])\((?![a-zA-Z][\w+.-]*:|[#/])([^()\s]+)\)"
CODE_OR_LINK = re.compile(f"{CODE}|{RELATIVE}", re.MULTILINE | re.DOTALL)


def repository(pyproject: str) -> str | None:
    """Return the address of the repository, from the text of pyproject.toml, or None where it has none."""
    table = re.search(r"^\[project\.urls\]\n((?:[^\[\n].*\n|\n)*)", pyproject, re.MULTILINE)
    found = re.search(r'^Source = "(https://[^"]+?)/?"', table[1], re.MULTILINE) if table else None
    return found[1] if found else None


def absolute_links(text: str, source: str, tag: str) -> str:
    """Return Markdown whose relative links lead to a tag of a repository. GitHub and GitLab have such addresses."""

    def absolute(found: re.Match[str]) -> str:
        image, label, target = found.groups()
        return f"{image}{label}({source}/{'raw' if image else 'blob'}/{tag}/{target})" if target else found[0]

    return CODE_OR_LINK.sub(absolute, text)


def copy_for_release(checkout: Path, names: set[str], folder: Path, version: str) -> bool:
    """Copy the named files, with README.md as PyPI needs it. Return whether its links lead somewhere."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(checkout / name, folder / name)
    source = repository((checkout / "pyproject.toml").read_text())
    if source:
        readme = folder / "README.md"
        readme.write_text(absolute_links(readme.read_text(), source, f"v{version}"))
    return source is not None
