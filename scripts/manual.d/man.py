"""Man pages, in the macros of man(7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from reference import Command, Entry, all_commands, mount_options, paragraphs

from fffs.errors import Exit
from fffs.version import __version__

HELPER = "mount \\-t fffs [\\-o OPTIONS] SOURCE DIR"
HELPER_TEXT = """The program that mount(8) runs for file systems of the type fffs.
It is used by systemd and for the lines of /etc/fstab, too.
mount(8) searches it in /sbin, where a link to it must be made.
It mounts in the background, as fffs mount does."""
FSTAB = "/data/photos.ffr  /mnt/photos  fffs  allow_other,nofail,_netdev  0 0"


def pages() -> dict[str, str]:
    """Return the text of each page by its path in share/: for fffs, for each of its commands, and for mount.fffs."""
    commands = all_commands()
    tops = [command for command in commands if len(command.words) <= 2]
    found = {"man/man8/mount.fffs.8": "\n".join(_helper_page()) + "\n"}
    for top in tops:
        inner = [command for command in commands if len(command.words) == 3 and command.words[:2] == top.words]
        name = "-".join(top.words)
        found[f"man/man1/{name}.1"] = "\n".join(_page(name, top, inner, [t.words[-1] for t in tops[1:]])) + "\n"
    return found


def _page(name: str, top: Command, inner: list[Command], others: list[str]) -> Iterator[str]:
    yield f'.TH {escape(name.upper())} 1 "" "fffs {escape(__version__)}" "fffs"'
    yield from (".SH NAME", f"{escape(name)} \\- {escape(_short(top.text))}", ".SH SYNOPSIS")
    for command in inner or [top]:
        yield from (".nf", f".B {escape(command.synopsis)}", ".fi")
    yield from (".SH DESCRIPTION", *_text(f"{top.text}\n\n{top.notes if len(top.words) > 1 else ''}"))
    yield from _entries("COMMANDS", top.commands)
    yield from _entries("ARGUMENTS", top.arguments)
    for title, entries in top.options:
        yield from _entries(title.upper(), entries)
    for command in inner:
        yield f".SH {escape(command.name.upper())}"
        yield from (*_text(command.text), *_items(command.arguments))
        yield from _items(entry for _, entries in command.options for entry in entries if entry.form != "-h, --help")
    if top.words[-1] == "mount":
        yield from _entries("MOUNT OPTIONS", mount_options())
    yield from _entries("EXIT STATUS", [Entry(str(int(code)), code.meaning) for code in Exit])
    if top.example:
        yield from (".SH EXAMPLES", ".nf", *map(escape, top.example.splitlines()), ".fi")
    yield from (".SH SEE ALSO", _see_also(top, others))


def _helper_page() -> Iterator[str]:
    yield f'.TH MOUNT.FFFS 8 "" "fffs {escape(__version__)}" "fffs"'
    yield from (".SH NAME", "mount.fffs \\- mount packed folders and record files, for mount(8)")
    yield from (".SH SYNOPSIS", ".nf", f".B {HELPER}", ".fi", ".SH DESCRIPTION", *_text(HELPER_TEXT))
    yield from _entries("MOUNT OPTIONS", mount_options())
    yield from (".SH EXAMPLES", "A line of /etc/fstab:", ".PP", ".nf", escape(FSTAB), ".fi")
    yield from (".SH SEE ALSO", ".BR fffs\\-mount (1) ,", ".BR mount (8)")


def _see_also(top: Command, others: list[str]) -> str:
    if len(top.words) == 1:
        return ",\n".join(f".BR {escape(f'fffs-{name}')} (1)" for name in others).replace(",\n", " ,\n")
    return ".BR fffs (1)"


def _short(text: str) -> str:
    return text[:1].lower() + text[1:].removesuffix(".")


def _entries(title: str, entries: list[Entry]) -> Iterator[str]:
    if entries:
        yield f".SH {escape(title)}"
        yield from _items(entries)


def _items(entries: Iterable[Entry]) -> Iterator[str]:
    for entry in entries:
        yield from (".TP", f".B {escape(entry.form)}", *(_text(entry.text) if entry.text else ["\\&"]))


def _text(text: str) -> Iterator[str]:
    """Yield the lines of a text."""
    for k, (is_table, lines) in enumerate(paragraphs(text)):
        yield from [".PP"] * bool(k)
        yield from [".nf"] * is_table
        yield from (escape(line.rstrip()) if is_table else escape(line.strip()) for line in lines)
        yield from [".fi"] * is_table


ESCAPED = str.maketrans({"\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\(ga", "^": "\\(ha", "~": "\\(ti", "…": "..."})


def escape(text: str) -> str:
    """Escape what roff would read as a request or as a typographic mark."""
    text = text.translate(ESCAPED)
    return "\\&" + text if text.startswith((".", "\\(aq")) else text
