"""The programs ``fffs`` and ``mount.fffs``: run a command, report errors in one line, and handle signals."""

from __future__ import annotations

import contextlib
import importlib
import logging
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import NoReturn

from fffs.base import environment
from fffs.base.descriptors import allow_many, describe_shortage, open_standard_streams
from fffs.base.modules import protect_workers
from fffs.cli.arguments import PLAIN, store_options
from fffs.cli.output import LogLines, complain, put
from fffs.cli.parser import make_parser
from fffs.cli.progress import ReadingBar
from fffs.errors import Exit, FffsError, ReadError, UsageError, WriteError


def run(argv: Sequence[str] | None = None, imported: Callable[[], object] = lambda: None) -> int:
    """Run a command line (without the program's name) and return its exit code. Prints errors as one line each.

    imported: called when the modules of the command are imported.
    """
    words = sys.argv[1:] if argv is None else argv
    args, unknown = make_parser(only=words[0] if words else None).parse_known_args(words)
    if unknown:
        # argparse returns an unknown option together with all arguments after it.
        odd = [argument for argument in unknown if argument.startswith("-")] or unknown
        odd = [argument.removeprefix(PLAIN) for argument in odd]
        complain(f"unrecognized arguments: {' '.join(odd)} (see fffs {args.command} --help)")
        return UsageError.exit_code
    try:
        command = importlib.import_module(f"fffs.cli.commands.{args.command}")
        imported()
        environment.check()
        if getattr(args, "executor", None):
            protect_workers()
        with store_options(args), ReadingBar():
            code = int(command.run(args))
        put(b"", flush=True)
        return code
    except KeyboardInterrupt:
        complain("interrupted")
        return Exit.INTERRUPTED
    except Exception as error:
        return _report(error)


def _report(error: Exception) -> int:
    """Print an error as one line, and return its exit code."""
    if isinstance(error, FffsError):
        complain(str(error))
        return error.exit_code
    if isinstance(error, MemoryError):
        complain(str(error) or "not enough memory")
        return Exit.UNEXPECTED
    if shortage := describe_shortage(error):
        complain(shortage)
        return ReadError.exit_code
    if isinstance(error, FileNotFoundError) and error.filename is None:  # getcwd(2)
        complain("the working folder of this process was removed; change to another folder")
        return Exit.NO_SOURCE
    logging.getLogger("fffs").debug("unexpected", exc_info=error)
    complain(f"unexpected {type(error).__name__}: {error} (a bug: please report it)")
    return Exit.UNEXPECTED


def interrupt_once() -> None:
    """Let the first SIGINT, SIGTERM or SIGHUP end the work, and ignore further ones during the cleanup."""
    # Signals that are ignored already stay ignored, as SIGHUP under nohup.
    ends = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]

    def interrupt(number: int, _frame: object) -> NoReturn:
        for end in ends:
            signal.signal(end, signal.SIG_IGN)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + number)

    for end in ends:
        signal.signal(end, interrupt)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    complain(f"warning: {message}")


def _notice_exit_codes() -> None:
    """Stop ignoring SIGCHLD, as servers leave it for their children: the exit codes of ours would be lost."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _begin() -> None:
    """Prepare the process of a program."""
    open_standard_streams()
    allow_many()
    _notice_exit_codes()
    warnings.showwarning = _show_warning
    logging.basicConfig(level=logging.WARNING, handlers=[LogLines()], format="%(message)s")
    # With tracebacks of errors that are raised, too.
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)


def main(imported: Callable[[], object] = lambda: None) -> None:
    """Run the ``fffs`` program. imported: as for ``run``."""
    _begin()
    try:
        code = run(imported=imported)
    except KeyboardInterrupt:  # right after the command
        complain("interrupted")
        code = Exit.INTERRUPTED
    finally:
        _end_at_interrupt()
        with contextlib.suppress(WriteError):  # of what a failed command left in the buffer
            put(b"", flush=True)
    sys.exit(code)


def _end_at_interrupt() -> None:
    """Let SIGINT end the process from now on: nothing is left that an exception could interrupt."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def main_mount_helper(imported: Callable[[], object] = lambda: None) -> None:
    """Run the ``mount.fffs`` program, which mount(8) calls for file systems of type fffs. imported: as for ``run``."""
    _begin()
    try:
        from fffs.cli.commands.mount import helper

        imported()
        environment.check()
        sys.exit(helper(sys.argv[1:]))
    except KeyboardInterrupt:
        complain("interrupted")
        sys.exit(Exit.INTERRUPTED)
    except FffsError as error:
        complain(str(error))
        # mount(8) knows other exit codes: 1 for wrong usage, 32 for a failed mount. It cannot interpret ours.
        sys.exit(1 if isinstance(error, UsageError) else 32)
