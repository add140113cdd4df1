"""The command line: its commands and options. ``fffs.cli.commands`` has a module per command, imported to run it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final

from fffs.cli.arguments import add_store_options, budget, filled, seconds
from fffs.cli.command_parser import (
    CommandParser,
    Commands,
    OneLineParser,
    add_executor,
    add_json,
    add_source,
    add_sources,
    command,
)
from fffs.cli.converting_parser import add_convert
from fffs.cli.packing_parser import add_pack, add_plan, add_unpack
from fffs.errors import Exit
from fffs.version import __version__

EXIT_CODES = "exit codes:\n" + "".join(f"{code:4d}  {code.meaning}\n" for code in Exit)


def make_parser(only: str | None = None) -> argparse.ArgumentParser:
    """Make the parser of the whole command line. only: the command, if it is known; the others take milliseconds."""
    parser = OneLineParser(
        prog="fffs",
        description="One file for millions of small ones: pack a folder, mount it, read it; every byte is verified.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"fffs {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=CommandParser)
    for name, add in _COMMANDS.items():
        if name == only or only not in _COMMANDS:
            add(commands)
    return parser


def _add_mount(commands: Commands[CommandParser]) -> None:
    parser = command(
        commands,
        "mount",
        "show a packed folder, a record file or a data set as a read-only folder",
        "fffs mount photos.ffr /mnt/photos\n  fffs mount -o kernel,allow_other aligned.ffr /mnt/photos",
    )
    add_sources(parser)
    parser.add_argument(
        "mountpoint", type=filled, metavar="MOUNTPOINT", help="the folder to mount on; created if missing"
    )
    parser.add_argument("-o", dest="options", action="append", default=[], metavar="OPTIONS", help=_mount_options())
    parser.add_argument("-f", "--foreground", action="store_true", help="stay in the foreground; log to the terminal")
    parser.add_argument("-d", "--debug", action="store_true", help="log every request (implies -f)")
    parser.add_argument("--suffix", help="a suffix for the numbered names of a plain record file, as in .jpg")


def _mount_options() -> str:
    return (
        "comma-separated: verify=on|off, decode (show features of TFRecords and OFRecords as files), "
        "kernel (without a daemon: for root, and packs made with --align), kernel=auto (so where that is possible, "
        "otherwise with a daemon), cache=DIR|off, cache_size=SIZE, endpoint_url=URL, allow_other, uid=N, gid=N, "
        "ro, ... (an unknown option prints the list)"
    )


def _add_umount(commands: Commands[CommandParser]) -> None:
    parser = command(commands, "umount", "unmount, even if the daemon is dead", "fffs umount /mnt/photos")
    parser.add_argument("mountpoint", type=filled, metavar="MOUNTPOINT")
    parser.add_argument("-l", "--lazy", action="store_true", help="detach now, finish when the last file is closed")


def _add_stat(commands: Commands[CommandParser]) -> None:
    parser = command(
        commands, "stat", "show a mount's request counters and read latency", "fffs stat --watch /mnt/photos"
    )
    parser.add_argument("mountpoint", type=filled, metavar="MOUNTPOINT")
    parser.add_argument("--json", action="store_true", help="print one JSON document, with --watch one per line")
    parser.add_argument("--watch", action="store_true", help="print a line at each interval until it is unmounted")
    parser.add_argument("--interval", type=seconds, default=1.0, metavar="SECONDS", help="of --watch (default: 1)")


def _add_ls(commands: Commands[CommandParser]) -> None:
    parser = command(commands, "ls", "list the names in a source", "fffs ls -l photos.ffr 2024/july")
    add_source(parser)
    parser.add_argument(
        "path", type=filled, metavar="PATH", nargs="*", default=[], help="a path in the source (default: its root)"
    )
    parser.add_argument("-l", "--long", action="store_true", help="show mode, links, size, time and name")
    parser.add_argument("-R", "--recursive", action="store_true", help="list folders recursively, as paths")
    add_json(parser)


def _add_cat(commands: Commands[CommandParser]) -> None:
    parser = command(
        commands, "cat", "write files to standard output, verified", "fffs cat photos.ffr 2024/a.jpg > a.jpg"
    )
    add_source(parser)
    parser.add_argument("path", type=filled, metavar="PATH", nargs="+", help="a path in it, or with --record a number")
    parser.add_argument("--record", action="store_true", help="PATH is a record number")


def _add_info(commands: Commands[CommandParser]) -> None:
    parser = command(commands, "info", "describe a source, or a file in a mount", "fffs info photos.ffr")
    add_sources(parser)
    add_json(parser)


def _add_verify(commands: Commands[CommandParser]) -> None:
    parser = command(commands, "verify", "check every byte, and name bad records", "fffs verify photos.ffr")
    add_sources(parser)
    add_json(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but bad records")
    parser.add_argument(
        "--keep", action="store_true", help="first write a file of checksums beside each file whose format has none"
    )
    add_executor(parser, "where the files are verified, each by itself")


def _add_cache(commands: Commands[CommandParser]) -> None:
    text = "look after what is kept of objects in stores on this disk"
    parser = command(commands, "cache", text, "fffs cache prune --keep 20G")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=CommandParser)
    listing = command(actions, "ls", "list the objects in the cache", "fffs cache ls")
    add_json(listing)
    checking = command(actions, "verify", "check all that the cache has, and drop what is damaged", "fffs cache verify")
    add_json(checking)
    pruning = command(
        actions,
        "prune",
        "remove objects that nobody has open from the cache",
        "fffs cache prune s3://bucket/photos.ffr",
    )
    pruning.add_argument("name", type=filled, metavar="OBJECT", nargs="*", help="remove these objects, all versions")
    pruning.add_argument("--all", action="store_true", help="remove all objects")
    text = "remove the least recently used ones until the others take at most SIZE (20G, 30%%)"
    pruning.add_argument("--keep", type=budget, metavar="SIZE", help=text)
    for action in (listing, checking, pruning):
        add_store_options(action, reads=False)


def _add_doctor(commands: Commands[CommandParser]) -> None:
    text = "say what this machine can do, what is missing, and what to do about it"
    parser = command(commands, "doctor", text, "fffs doctor photos.ffr")
    parser.add_argument("file", type=filled, metavar="FILE", nargs="*", help="also look at how this file can be read")
    add_json(parser)


_COMMANDS: Final[dict[str, Callable[[Commands[CommandParser]], None]]] = {
    "pack": add_pack,
    "unpack": add_unpack,
    "plan": add_plan,
    "convert": add_convert,
    "mount": _add_mount,
    "umount": _add_umount,
    "stat": _add_stat,
    "ls": _add_ls,
    "cat": _add_cat,
    "info": _add_info,
    "verify": _add_verify,
    "cache": _add_cache,
    "doctor": _add_doctor,
}
"""What adds the parser of each command, in the order in which ``--help`` shows them."""
