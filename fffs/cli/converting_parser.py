"""The commands that convert: their arguments."""

from __future__ import annotations

import argparse

from fffs.cli.arguments import add_store_options, filled, positive, size
from fffs.cli.command_parser import (
    ALIGN,
    REPORT,
    RESTART,
    VERITY,
    CommandParser,
    Commands,
    Formats,
    add_executor,
    add_json,
    add_prefix,
    command,
)

CONVERSIONS = """what can be converted:
  SRC                                          becomes
  FFRecord, TFRecord, OFRecord, Bag, parts;    each other, a data set of one key, tar, Parquet, Arrow, array_record
    array_record
  packed folder (.ffr), set of packs           packed folder, tar, Parquet, Arrow: with its names
  granular data set                            data set, packed folder; of one key: all that record files become
  tar (also .gz, .bz2, .xz), zip, folder       packed folder
  Parquet, Arrow, Hugging Face, MDS; LMDB      packed folder; with --column all that record files become

The name of DST (.ffr, .tfrecord, part-00000, .bag, .tar, .parquet, .arrow, .array_record) or --to selects its format.
Nothing is unpacked to a disk. With --parts, several record files or archives can be given; archives then become a set
of packs, which is one tree. Parts of a tar are shards for WebDataset. Lines on stderr say beforehand what DST does not
keep.

example:
  fffs convert photos.tar.gz photos.ffr
  fffs convert train.tfrecord train --to ffrecord --part-size 1GiB
  fffs convert photos.ffr shards --to tar --part-size 1GB
  fffs convert train.parquet train.ffr --column image
  fffs convert --parts 20 --executor processes:8 shards/data-*.tar packed/data
"""
STEPS = """fffs plan convert --parts 20 shards/data-*.tar packed/data
  fffs plan run packed/data --task 7
  fffs plan commit packed/data"""
IMPORTS = ("parquet", "arrow", "lmdb", "array_record", "mds")
EXPORTS = ("tar", "parquet", "arrow", "array_record")
PARTS = "write N parts, in a folder"
VERIFY = "read DST back and compare it with SRC"


def add_convert(commands: Commands[CommandParser]) -> None:
    """``fffs convert``."""
    parser = command(commands, "convert", "convert records, data sets and archives", "")
    parser.epilog = CONVERSIONS
    parser.add_argument("source", type=filled, nargs="+", metavar="SRC", help="what to convert")
    parser.add_argument(
        "output", type=filled, metavar="DST", help="the file to write, or the folder for parts or a data set"
    )
    _add_formats(parser)
    add_store_options(parser)
    parser.add_argument("--layout", choices=["v1", "v3"], help="of Bags and data sets (default: v1)")
    parser.add_argument("--key", help="key of a data set, ending or column that is made from records (default: data)")
    parser.add_argument("--column", metavar="NAME", help="make records of this column of a table, or of LMDB's value")
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--parts", type=positive, metavar="N", help=PARTS)
    parts.add_argument("--part-size", type=size, metavar="SIZE", help="write parts of at most SIZE (500MB, 1GiB)")
    add_executor(parser, "with --parts: where they are written")
    parser.add_argument("--restart", action="store_true", help=RESTART)
    parser.add_argument("--report", type=filled, metavar="FILE", help=f"with --parts: {REPORT}")
    parser.add_argument("--verify", action="store_true", help=VERIFY)
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    parser.add_argument("--align", action="store_true", help=ALIGN)
    parser.add_argument("--verity", action="store_true", help=VERITY)
    parser.add_argument("-j", "--jobs", type=positive, help="how many files, or batches of records, are copied at once")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but warnings and errors")


def add_plan_convert(actions: Commands[CommandParser]) -> None:
    """``fffs plan convert``."""
    parser = command(actions, "convert", "plan how to convert record files or archives", STEPS)
    parser.add_argument("source", type=filled, nargs="+", metavar="SRC", help="what to convert, as for fffs convert")
    parser.add_argument("target", type=filled, metavar="TARGET", help="the folder to make")
    _add_formats(parser)
    parser.add_argument("--parts", type=positive, metavar="N", required=True, help=PARTS)
    parser.add_argument("--verify", action="store_true", help=VERIFY)
    parser.add_argument("--align", action="store_true", help=ALIGN)
    parser.add_argument("--restart", action="store_true", help="remove the parts of an unfinished plan")
    add_json(parser)


def _add_formats(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from",
        dest="source_format",
        metavar="FORMAT",
        choices=Formats("granular", "tar", "zip", "folder", *IMPORTS),
        help="format of SRC: %(choices)s (default: detected)",
    )
    add_prefix(parser)
    parser.add_argument(
        "--to",
        metavar="FORMAT",
        choices=Formats("granular", *EXPORTS),
        help="format of DST: %(choices)s (default: from its name)",
    )
