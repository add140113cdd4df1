"""The pages of the site: those of the repository, and the references that are generated."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from public_names import MODULES, exported

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts/manual.d"))

from reference import Command, Entry, all_commands, mount_options, paragraphs  # noqa: E402

from fffs.errors import Exit  # noqa: E402


def write_pages(folder: Path) -> None:
    """Write all pages into a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder / "docs")
    for page in ROOT.glob("*.md"):
        shutil.copy(page, folder)
    for page in (*folder.glob("*.md"), *folder.glob("docs/*.md")):
        page.write_text(_with_titles(page))
    (folder / "reference/python").mkdir(parents=True)
    (folder / "reference/commands.md").write_text("\n".join(_commands()) + "\n")
    for module in MODULES:
        (folder / f"reference/python/{module}.md").write_text("\n".join(_module(module)) + "\n")


def link_package(folder: Path) -> None:
    """Make a folder in which mount/ is fffs/mount, as when fffs is installed."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "fffs").mkdir(parents=True)
    for source in (*(ROOT / "fffs").iterdir(), ROOT / "mount"):
        (folder / "fffs" / source.name).symlink_to(source)


def _with_titles(page: Path) -> str:
    """Return the text of a page, in which links that show the name of a file show the title of that page instead."""

    def titled(link: re.Match[str]) -> str:
        title = (page.parent / link[1]).read_text().partition("\n")[0].removeprefix("# ")
        return f"[{title}]({link[1]}{link[2] or ''})"

    return re.sub(r"\[[\w/]+\.md\]\(([\w./]+\.md)(#[\w-]*)?\)", titled, page.read_text())


def _module(module: str) -> Iterator[str]:
    yield from (f"# {module}", "", f"::: {module}", "    options:")
    yield from ("      members: false", "      show_root_heading: false", "")
    for name in exported(module):
        yield from (f"::: {module}.{name}", "")


def _commands() -> Iterator[str]:
    yield from ("# Commands", "", "Generated from the parser of the command line, as are the man pages.", "")
    for command in all_commands():
        yield from _command(command)
    yield from ("## Mount options", "", "What may follow `-o` of `fffs mount`, and be in a line of `/etc/fstab`.", "")
    yield from _table(mount_options())
    yield from ("## Exit codes", "", *_table(Entry(str(int(code)), code.meaning) for code in Exit))


def _command(command: Command) -> Iterator[str]:
    yield from (f"{'#' * (len(command.words) // 3 + 2)} {command.name}", "", "```text", command.synopsis, "```", "")
    yield from (_plain(command.text), "")
    if len(command.words) > 1 and command.notes:
        for is_table, lines in paragraphs(command.notes):
            yield from (["```text", *lines, "```", ""] if is_table else [_plain("\n".join(lines)), ""])
    yield from _table([*command.commands, *command.arguments])
    for title, entries in command.options:
        if title != "options":
            yield from (f"{title[0].upper()}{title[1:]}:", "")
        yield from _table(entry for entry in entries if entry.form != "-h, --help")
    if command.example:
        yield from ("```sh", command.example, "```", "")


def _table(entries: Iterable[Entry]) -> Iterator[str]:
    rows = ["| `{}` | {} |".format(entry.form.replace("|", "\\|"), _plain(entry.text)) for entry in entries]
    if rows:
        yield from ("| | |", "|---|---|", *rows, "")


def _plain(text: str) -> str:
    """Escape what Markdown would read as a mark."""
    for mark in "\\`*_<>":
        text = text.replace(mark, f"\\{mark}")
    return text
