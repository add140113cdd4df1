"""Measures fffs against the limits of this machine. Run it with scripts/bench, which prepares the environment."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import chart
import cluster
import cold
import converting
import file_systems
import formats
import metadata
import millions
import mounts
import objects
import opening
import packing
import peers
import reading
import train
import unpacking
from figures import Report, write_json

MEASURES = {
    "read": reading.run,
    "peers": peers.run,
    "cold": cold.run,
    "formats": formats.run,
    "objects": objects.run,
    "open": opening.run,
    "pack": packing.run,
    "unpack": unpacking.run,
    "convert": converting.run,
    "mount": mounts.run,
    "metadata": metadata.run,
    "millions": millions.run,
    "cluster": cluster.run,
    "train": train.run,
}

DESCRIPTION = """measures:
  read     verified batches from the page cache, against a C loop of pread and CRC-32
  peers    verified batches, against other libraries that store records
  cold     verified batches from the disk, against fio with io_uring
  formats  Bags and TFRecord files, against FFRecord and the libraries of these formats; scans for records
  objects  records of objects over HTTPS, against libcurl alone, obstore and s3fs; needs nginx
  open     opening and mounting a packed folder of 1,000,000 files
  pack     packing 10,000 photos and 1,000,000 tiny files, against tar followed by sync
  unpack   unpacking 250,000 tiny files, against tar followed by sync
  convert  converting record files, against cp followed by sync, and a tar of tiny files, against unpacking it
  mount    a mounted folder, against squashfs, EROFS and others; needs root; makes 16 GB of images once
  metadata names and attributes of 1,000,000 tiny files in a mount, against EROFS and squashfs; needs root
  millions packs of 10,000,000 files: opening, mounting, unions, verifying; needs 16 GB of memory
  cluster  packing into parts by several workers: scaling, plans of 10,000,000 names, Dask and Ray, opening of sets
  train    training processes with loaders and workers, against torch's loader on small files and others
  all      all of them

Ratios are medians of pairs that are measured directly one after the other; single times are the best of several.
The test data, 4 GB, is made once and kept.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measure fffs against the limits of this machine.",
        epilog=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("measure", nargs="+", choices=[*MEASURES, "all"], metavar="MEASURE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures and a description of the machine")
    parser.add_argument(
        "--quick", action="store_true", help="less data and fewer rounds; figures are rough, and goals may be missed"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the comparisons, as .svg or .png")
    parser.add_argument("--install", action="store_true", help="first install the programs that mount needs, as root")
    parser.add_argument(
        "--scratch",
        type=Path,
        metavar="DIR",
        default=Path(tempfile.gettempdir(), f"fffs-bench-{os.getuid()}"),
        help="folder of the test data (default: %(default)s); its disk is the one that is measured",
    )
    args = parser.parse_args()
    args.scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
    if args.install:
        file_systems.install(args.scratch)
    report = Report()
    for name, run in MEASURES.items():
        if name in args.measure or "all" in args.measure:
            run(report, args.scratch, args.quick)
    document = report.finish(args.scratch)
    if args.json:
        write_json(document, args.json)
    if args.plot:
        chart.draw(report.figures, args.plot)


if __name__ == "__main__":
    main()
