"""The entry points of the programs: ``fffs``, also as ``python -m fffs``, and ``mount.fffs``.

Imports take a quarter of a second on a slow machine. Until they are done there is nothing to clean up, so an interrupt
ends the process at once: an exception could be raised, and lost, in any line of any module. Before that, while Python
starts and imports the package ``fffs``, which sets no handler of a program that uses it, Python prints a traceback.
"""

from __future__ import annotations

import importlib
import os
import signal

_PROGRAM = "fffs.cli.program"

INTERRUPTED = 130
"""As ``fffs.errors.Exit.INTERRUPTED``."""


def _leave(_number: int, _frame: object) -> None:
    os.write(2, b"fffs: interrupted\n")
    os._exit(INTERRUPTED)


def _begin() -> None:
    # OpenBLAS, which numpy loads, starts a thread for each processor, and raises SIGINT if it cannot. fffs needs none.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # An ignored signal stays ignored, as in the background of a shell without job control.
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def _imported() -> None:
    if signal.getsignal(signal.SIGINT) == _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def main() -> None:
    """Run the ``fffs`` program."""
    _begin()
    importlib.import_module(_PROGRAM).main(_imported)


def main_mount_helper() -> None:
    """Run the ``mount.fffs`` program, which mount(8) calls for file systems of type fffs."""
    _begin()
    importlib.import_module(_PROGRAM).main_mount_helper(_imported)


if __name__ == "__main__":
    main()
