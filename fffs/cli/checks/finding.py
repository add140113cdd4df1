"""Finding: what a check found out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Condition(str, Enum):
    """How good something is. A hint: it works less well than it could, or not everybody needs it."""

    OK = "ok"
    HINT = "hint"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """``name``: of what was looked at. ``found``: what it is like. ``cure``: what to do, if it is not good."""

    name: str
    state: Condition
    found: str
    cure: str = ""


def good(name: str, found: str) -> Finding:
    """Return what needs no cure."""
    return Finding(name, Condition.OK, found)


def hint(name: str, found: str, cure: str) -> Finding:
    """Return what could be better."""
    return Finding(name, Condition.HINT, found, cure)


def problem(name: str, found: str, cure: str) -> Finding:
    """Return what makes something impossible."""
    return Finding(name, Condition.PROBLEM, found, cure)


def setting(path: str) -> str | None:
    """Return the text of a file of the kernel without the newline at its end, or None if it cannot be read."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().rstrip("\n")
    except OSError:
        return None
