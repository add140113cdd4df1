"""CommandParser: the parser of a command, whose errors are one line; arguments that several commands have."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from fffs.cli.arguments import add_store_options, after_dashes, filled
from fffs.cli.output import complain, put
from fffs.errors import UsageError, WriteError

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

ALIGN = (
    "let files begin where mount -o kernel needs it: at multiples of 512 bytes, or of 4096 for files of 64 KiB or more"
)
VERITY = "put the pack under fs-verity, which lets nobody change it, and keep its digest in a file .fsverity beside it"
RESTART = "with --parts: remove the parts that an unfinished run left, instead of going on with it"
REPORT = "write a JSON document that says what each part took, which attempts failed, and what was left out"


class Formats:
    """The choices of an option: the names of record file formats, and others. The table of formats is imported only
    when a choice is checked or listed, because the import can take longer than everything else that a command does.
    """

    def __init__(self, *others: str) -> None:
        self._others = others

    def __iter__(self) -> Iterator[str]:
        from fffs.formats.table import FORMATS

        yield from (form.name for form in FORMATS)
        yield from self._others

    def __contains__(self, name: object) -> bool:
        return name in tuple(self)


class OneLineParser(argparse.ArgumentParser):
    """Reports usage errors in one line, like all other errors."""

    def error(self, message: str) -> NoReturn:
        """Print the message, and exit."""
        complain(f"{message} (see {self.prog} --help)")
        sys.exit(UsageError.exit_code)

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        """Print help, or the version. The base class ignores errors."""
        try:
            put(message.encode(), flush=True)
        except WriteError as error:
            complain(str(error))
            sys.exit(error.exit_code)


class CommandParser(OneLineParser):
    """Accepts options between arguments: ``fffs ls photos.ffr -l cats``."""

    _is_inner = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As in the base class. ``parse_known_intermixed_args`` calls this method again, for options and arguments."""
        if self._is_inner or self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        self._is_inner = True
        try:
            return self.parse_known_intermixed_args(after_dashes(args), namespace)
        finally:
            self._is_inner = False


Commands = argparse._SubParsersAction  # the return type of add_subparsers has no public name


def command(commands: Commands[CommandParser], name: str, text: str, example: str) -> argparse.ArgumentParser:
    """Add a command to the others, and return its parser. text: what it does, for the help."""
    parser = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def add_sources(parser: argparse.ArgumentParser) -> None:
    """Add one or more sources."""
    parser.add_argument(
        "source", type=filled, nargs="+", metavar="SOURCE", help="a packed folder or record file, or a folder of parts"
    )
    add_format(parser)
    add_store_options(parser)


def add_source(parser: argparse.ArgumentParser) -> None:
    """Add a single source."""
    parser.add_argument(
        "source", type=filled, metavar="SOURCE", help="a packed folder or record file, or a folder of parts"
    )
    add_format(parser)
    add_store_options(parser)


def add_format(parser: argparse.ArgumentParser) -> None:
    """Add ``--format`` and ``--prefix``."""
    parser.add_argument(
        "--format",
        metavar="FORMAT",
        choices=Formats(),
        help="format of the record files: %(choices)s (default: detected)",
    )
    add_prefix(parser)


def add_prefix(parser: argparse.ArgumentParser) -> None:
    """Add ``--prefix``."""
    text = "for a folder of OFRecord parts: what their names have before the numbers (default: part-)"
    parser.add_argument("--prefix", metavar="PREFIX", help=text)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def add_executor(parser: argparse.ArgumentParser, text: str) -> None:
    """Add ``--executor``. text: what runs there, for the help."""
    names = "processes:N, dask:tcp://HOST:PORT, ray, ray:ADDRESS or mpi (default: one after the other, here)"
    parser.add_argument("--executor", type=filled, metavar="EXECUTOR", help=f"{text}: {names}")
