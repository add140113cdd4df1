"""The commands of ``fffs`` as data, taken from the parser: what man pages and the site show of them."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fffs.cli.parser import make_parser
from fffs.mount.options import MountOptions, known


@dataclass(frozen=True)
class Entry:
    """An option, an argument or a command: how it is written, and what it does."""

    form: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command. ``words``: its name, such as ("fffs", "plan", "run"). ``options``: by the titles of their groups."""

    words: tuple[str, ...]
    synopsis: str
    text: str
    notes: str
    example: str
    arguments: list[Entry]
    options: list[tuple[str, list[Entry]]]
    commands: list[Entry]

    @property
    def name(self) -> str:
        return " ".join(self.words)


def all_commands() -> list[Command]:
    """Return ``fffs``, its commands, and the actions of these."""
    return list(_commands(("fffs",), make_parser()))


def paragraphs(text: str) -> Iterator[tuple[bool, list[str]]]:
    """Yield the paragraphs of a text: whether the lines are those of a table, which are indented, and the lines."""
    found: list[str] = []
    for line in [*text.splitlines(), ""]:
        if found and (not line.strip() or line.startswith("  ") != found[0].startswith("  ")):
            yield found[0].startswith("  "), found
            found = []
        if line.strip():
            found.append(line)


def mount_options() -> list[Entry]:
    """Return what may follow ``-o`` of a mount: forms as in its error message, with the texts of their fields."""
    doc = (inspect.getdoc(MountOptions) or "").split("Attributes:\n")[1]  # indented alike in all versions of Python
    fields: dict[str, str] = {}
    for names, text in re.findall(r"^ {4}([\w, ]+): ((?:.|\n {8})+)", doc, re.MULTILINE):
        fields.update(dict.fromkeys(names.split(", "), " ".join(text.split())))
    return [Entry(form, _as_option(fields[re.split(r"\W", form)[0]])) for form in known()]


def _as_option(text: str) -> str:
    """Write the text of a field as that of an option, whose values have other names than in Python."""
    for python, written in (("True:", "on:"), ("None:", "auto:"), ("is False", "is off"), ("``", "")):
        text = text.replace(python, written)
    return text


def _commands(words: tuple[str, ...], parser: argparse.ArgumentParser) -> Iterator[Command]:
    below = next((a for a in parser._actions if isinstance(a, argparse._SubParsersAction)), None)
    notes, _, example = (parser.epilog or "").partition("example:\n")
    arguments = [a for a in parser._actions if not a.option_strings and a is not below]
    groups = [
        (group.title or "", [_option(action) for action in group._group_actions if action.option_strings])
        for group in parser._action_groups
    ]
    yield Command(
        words,
        _synopsis(words, arguments, bool(below)),
        parser.description or "",
        notes.strip(),
        "\n".join(line.strip() for line in example.strip().splitlines()),
        [Entry(_form(action), _help(action)) for action in arguments],
        [("options" if title == "options" else title, entries) for title, entries in groups if entries],
        [Entry(str(a.dest), a.help or "") for a in below._choices_actions] if below else [],
    )
    for name, inner in below.choices.items() if below else ():
        yield from _commands((*words, name), inner)


def _synopsis(words: tuple[str, ...], arguments: list[argparse.Action], has_commands: bool) -> str:
    parts = [*words, "[OPTION]..."] if not has_commands else [*words, "COMMAND", "..."]
    for action in arguments:
        one = str(action.metavar or action.dest)
        parts.append({"?": f"[{one}]", "+": f"{one}...", "*": f"[{one}...]"}.get(str(action.nargs), one))
    return " ".join(parts)


def _option(action: argparse.Action) -> Entry:
    value = "" if action.nargs == 0 else f" {_form(action)}"
    return Entry(", ".join(f"{option}{value}" for option in action.option_strings), _help(action))


def _form(action: argparse.Action) -> str:
    if action.metavar is None and action.choices:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return str(action.metavar or (action.dest.upper() if action.option_strings else action.dest))


def _help(action: argparse.Action) -> str:
    if action.option_strings[:1] == ["-h"]:
        return "show this text and exit"
    values: dict[str, Any] = {"default": action.default, "choices": ", ".join(map(str, action.choices or ()))}
    return (action.help or "") % values
