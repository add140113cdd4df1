"""What child processes import: the same modules as this process, and none that only lie in their current folder.

Others may be able to write to that folder, and a data set in it may have files with the names of modules.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from fffs.base.importing import importing
from fffs.base.interpreter import STARTED

_ROOT: Final = Path(__file__).parent.parent.parent  # where this package is, also if a hook found it
_OURS: Final = ("PYTHONPATH", "PYTHONSAFEPATH")
_KEPT: Final = "FFFS_KEPT_"

# Options of the interpreter with which the current folder is not the first place for modules. Python 3.10 has none but
# -I, which also leaves out PYTHONPATH.
SAFE: Final = ("-P",) if sys.version_info >= (3, 11) else ()

_protected: list[bool] = []


def module_path() -> list[str]:
    """Return ``sys.path`` for a child, in absolute paths. Raises OSError: one is relative to a folder that is gone.

    The standard library comes first. A program may have a ``secrets.py`` beside it, which this process does not
    import, or a folder that it added after it imported what has these names.
    """
    library = os.path.dirname(os.path.abspath(os.__file__))
    standard = library, os.path.join(library, "lib-dynload")
    paths = [os.path.abspath(entry) for entry in sys.path if isinstance(entry, str) and entry]
    return [*sorted(paths, key=lambda path: path not in standard), str(_ROOT)]


def module_variables() -> dict[str, str]:
    """Return variables of the environment with which ``python -m`` in a child imports these modules. The child calls
    ``restore_variables`` at first. Raises as ``module_path``.
    """
    kept = {_KEPT + name: os.environ[name] for name in _OURS if name in os.environ}
    return {**kept, "PYTHONPATH": os.pathsep.join(module_path()), "PYTHONSAFEPATH": "1", STARTED: "1"}


def restore_variables() -> None:
    """Undo ``module_variables`` in the child: the programs that it starts may be for another Python."""
    os.environ.pop(STARTED, None)
    for name in _OURS:
        os.environ.pop(name, None)
        if _KEPT + name in os.environ:
            os.environ[name] = os.environ.pop(_KEPT + name)


def protect_workers() -> None:
    """Let workers that this process starts from now on import nothing before they have our ``sys.path``.

    ``multiprocessing`` starts them with -c, for which the first place is the current folder. For programs only. No
    variable of the environment does that, which the programs would get that these processes start. For engines that
    start workers by themselves, see ``are_workers_protected``.
    """
    if are_workers_protected():
        return
    with importing:
        from multiprocessing import util
    flags = vars(util)["_args_from_interpreter_flags"]
    vars(util)["_args_from_interpreter_flags"] = lambda: [*flags(), *(SAFE or ["-I"])]
    _protected[:] = [True]


def are_workers_protected() -> bool:
    """Return whether ``protect_workers`` was called."""
    return bool(_protected)
