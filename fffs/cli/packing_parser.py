"""The commands that pack folders, and unpack them: their arguments."""

from __future__ import annotations

from fffs.cli.arguments import filled, positive, whole
from fffs.cli.command_parser import (
    ALIGN,
    REPORT,
    RESTART,
    VERITY,
    CommandParser,
    Commands,
    add_executor,
    add_json,
    add_source,
    command,
)
from fffs.cli.converting_parser import add_plan_convert

EXAMPLE = "fffs pack photos photos.ffr\n  fffs pack --parts 20 --executor processes:8 photos packed/photos"
PARTS = "write a folder of N files, which together are the packed folder"
KEEP_GOING = "leave out and name what cannot be read, and files that change meanwhile; the exit status tells"
STEPS = """fffs plan pack --parts 20 photos packed/photos
  fffs plan run packed/photos --task 7
  fffs plan commit packed/photos"""
DUMP = """fffs plan dump --parts 20 mydata.samples:train packed/train
  fffs plan run packed/train --task 7
  fffs plan commit packed/train"""


def add_pack(commands: Commands[CommandParser]) -> None:
    """``fffs pack``."""
    parser = command(commands, "pack", "pack a folder into one file, or into several", EXAMPLE)
    parser.add_argument(
        "folder", type=filled, metavar="FOLDER", help="the folder to pack, or the URL of one: s3://bucket/folder/"
    )
    parser.add_argument(
        "output",
        type=filled,
        metavar="OUTPUT",
        nargs="?",
        help="the file to write, or the URL of an object; an existing one is replaced (default: FOLDER's name with "
        ".ffr, in the current folder); with --parts, the folder to make",
    )
    parser.add_argument("--parts", type=positive, metavar="N", help=PARTS)
    add_executor(parser, "with --parts: where they are written")
    parser.add_argument("--restart", action="store_true", help=RESTART)
    parser.add_argument("-k", "--keep-going", action="store_true", help=KEEP_GOING)
    parser.add_argument("--report", type=filled, metavar="FILE", help=f"with --parts: {REPORT}")
    parser.add_argument("-j", "--jobs", type=positive, help="how many files are copied at once")
    parser.add_argument("--align", action="store_true", help=ALIGN)
    parser.add_argument("--verity", action="store_true", help=VERITY)
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but warnings and errors")


def add_unpack(commands: Commands[CommandParser]) -> None:
    """``fffs unpack``."""
    parser = command(commands, "unpack", "unpack a file into a new folder", "fffs unpack photos.ffr restored")
    add_source(parser)
    parser.add_argument("target", type=filled, metavar="TARGET", help="the folder to create")
    parser.add_argument("-j", "--jobs", type=positive, help="how many files are written at once")
    parser.add_argument(
        "--special-bits", action="store_true", help="restore set-user-ID and set-group-ID bits of files"
    )
    parser.add_argument(
        "-k",
        "--keep-going",
        action="store_true",
        help="leave out and name files whose records are bad; if the names are damaged, write numbered files",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but warnings and errors")


def add_plan(commands: Commands[CommandParser]) -> None:
    """``fffs plan``."""
    parser = command(commands, "plan", "write parts in three steps, as for job arrays", STEPS)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=CommandParser)
    packing = command(actions, "pack", "plan how to pack a folder", "fffs plan pack --parts 20 photos packed/photos")
    packing.add_argument("folder", type=filled, metavar="FOLDER", help="the folder to pack")
    packing.add_argument("target", type=filled, metavar="TARGET", help="the folder to make")
    packing.add_argument("--parts", type=positive, metavar="N", required=True, help=PARTS)
    packing.add_argument("--align", action="store_true", help=ALIGN)
    packing.add_argument("-k", "--keep-going", action="store_true", help=KEEP_GOING)
    packing.add_argument("--restart", action="store_true", help="remove the parts of an unfinished plan")
    add_json(packing)
    add_plan_convert(actions)
    _add_plan_dump(actions)
    running = command(
        actions,
        "run",
        "write parts, on any machine; one that is complete is left as it is",
        "fffs plan run packed/photos --task 7",
    )
    running.add_argument(
        "--task", type=whole, action="append", metavar="K", help="write part K, from 0; may be repeated (default: all)"
    )
    running.add_argument("-j", "--jobs", type=positive, help="how many files are copied at once")
    committing = command(actions, "commit", "let the target appear, complete", "fffs plan commit packed/photos")
    committing.add_argument("--report", type=filled, metavar="FILE", help=REPORT)
    aborting = command(actions, "abort", "remove all that was written", "fffs plan abort packed/photos")
    for action in (running, committing, aborting):
        action.add_argument("target", type=filled, metavar="TARGET", help="the folder that was planned")
    for action in (running, committing):
        action.add_argument("-q", "--quiet", action="store_true", help="print nothing but warnings and errors")


def _add_plan_dump(actions: Commands[CommandParser]) -> None:
    parser = command(actions, "dump", "plan how to write a data set of Python as record files", DUMP)
    parser.add_argument(
        "dataset",
        type=filled,
        metavar="MODULE:NAME",
        help="a function that returns an object with len() and [i], or the object; found as by import (PYTHONPATH)",
    )
    parser.add_argument("target", type=filled, metavar="TARGET", help="the folder to make")
    parser.add_argument("--parts", type=positive, metavar="N", required=True, help="write a folder of N files")
    parser.add_argument("--restart", action="store_true", help="remove the parts of an unfinished plan")
    add_json(parser)
