"""Opens bad files of frames and messages in little memory, and reports each outcome: python -m frame_replay FILE...

It prints a line of JSON before and after each file, so that the last line names a file that kills the process.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fuzz.replay import MEMORY, status
from inside import LocalFile, RecordIndex, ofrecord_files, tfrecord_files

import fffs
from fffs import ofrecord, tfrecord


def index(load: Callable[..., RecordIndex], path: str, **options: bool) -> str:
    """Load an index and return its length."""
    with LocalFile.open(path) as file:
        return f"{len(load(file, **options))} records"


def stream(path: str) -> str:
    """Read a file sequentially."""
    with tfrecord.read(path) as records:
        return f"{sum(1 for _ in records)} records"


def example(path: str) -> str:
    return f"{len(tfrecord.decode(Path(path).read_bytes()))} features"


def sequence(path: str) -> str:
    return f"{len(tfrecord.decode_sequence(Path(path).read_bytes())['feature_lists'])} lists"


def record(path: str) -> str:
    return f"{len(ofrecord.decode(Path(path).read_bytes()))} features"


def index_file(path: str) -> str:
    with fffs.FileReader(path.removesuffix(".idx"), format="tfrecord") as reader:
        tfrecord.check_index_file(reader.index(), path)
        return f"{len(reader)} records"


KINDS: dict[str, Callable[[str], str]] = {
    "tfrecord": lambda path: index(tfrecord_files.load_index, path),
    "unchecked": lambda path: index(tfrecord_files.load_index, path, check_data=False),
    "ofrecord": lambda path: index(ofrecord_files.load_index, path),
    "stream": stream,
    "example": example,
    "sequence": sequence,
    "record": record,
    "idx": index_file,
}
"""The functions for files, by the end of the file name."""

if __name__ == "__main__":
    most = status("VmSize") + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for name in sys.argv[1:]:
        print(json.dumps({"begins": name}), flush=True)
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak of resident memory
        before, begin = status("VmRSS"), time.process_time()
        try:
            kind, why = "passed", KINDS[name.rsplit(".", 1)[1]](name)
        except Exception as error:
            kind, why = type(error).__name__, str(error)
        seconds, peak = time.process_time() - begin, status("VmHWM") - before
        print(json.dumps({"ends": name, "kind": kind, "why": why, "seconds": seconds, "peak": peak}), flush=True)
