"""What child processes import: the same modules as this process, and none that only lie in their current folder.

Others may be able to write to that folder, and a data set in it may have files with the names of modules.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from fffs.base.importing import importing

_ROOT: Final = Path(__file__).parent.parent.parent  # where this package is, also if a hook found it


def module_path() -> list[str]:
    """Return ``sys.path`` for a child, in absolute paths. Raises OSError: one is relative to a folder that is gone."""
    return [*(os.path.abspath(entry) for entry in sys.path if entry), str(_ROOT)]


def protect_workers() -> None:
    """Let the processes that ``multiprocessing`` starts from now on import nothing before they have our ``sys.path``.

    It starts them with -c, for which the first place is the current folder. For programs only. No variable of the
    environment does that, which the programs would get that these processes start.
    """
    with importing:
        from multiprocessing import util
    flags = vars(util)["_args_from_interpreter_flags"]
    safe = "-P" if sys.version_info >= (3, 11) else "-I"
    vars(util)["_args_from_interpreter_flags"] = lambda: [*flags(), safe]
