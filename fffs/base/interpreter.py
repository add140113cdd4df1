"""The program that runs child processes in Python."""

from __future__ import annotations

import os
import sys
from typing import Final

from fffs.errors import UsageError

_NAMES: Final = ("python", "pypy", "graalpy", "platform-python")  # how the names of interpreters begin
STARTED: Final = "FFFS_STARTED"
"""A variable for all children, which these remove at once. A program that sees it was run in place of a child."""


def interpreter() -> str:
    """Return an interpreter for child processes. Raises UsageError: there is none.

    ``sys.executable`` is the program itself where that is frozen, as by PyInstaller, or embeds Python, as uWSGI does.
    With the arguments of an interpreter, it would not fail, but run once more, and so do again what started it.
    """
    if getattr(sys, "frozen", False):
        raise UsageError(
            f"{sys.executable}: a frozen program has no interpreter, which stores and mounts need; run it with Python"
        )
    path = sys.executable or ""
    if STARTED not in os.environ:
        if os.path.basename(path).startswith(_NAMES):
            return path
        spawn = sys.modules.get("multiprocessing.spawn")
        chosen = os.fsdecode(spawn.get_executable() or "") if spawn else ""
        if chosen not in ("", path):
            return chosen
        beside = os.path.join(sys.exec_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
        if os.access(beside, os.X_OK):
            return beside
        if path:  # perhaps an interpreter of another name, such as hython; if it is none, STARTED tells
            return path
    raise UsageError(
        f"{path or 'this program'}: is no interpreter of Python, which stores and mounts need; name one with "
        "multiprocessing.set_executable"
    )
