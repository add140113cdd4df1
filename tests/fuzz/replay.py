"""Opens bad files one after the other, in little memory, and says how each ended: python -m fuzz.replay FILE...

For each file a line of JSON when it begins and one when it ends: what ends the process is told by the last line.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
import warnings
from pathlib import Path
from types import FrameType

from inside import load_source, verify

from fffs.errors import FffsError, FormatError
from fuzz import surface

SECONDS = 4  # of processor time, after which a file is given up
MEMORY = 256 << 20
SURFACE_MAX = 100_000  # larger ones are not held against the model, which is slow


class TooSlowError(BaseException):
    """A file took all the time it was given."""


def status(field: str) -> int:
    """A field of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) << 10
    raise KeyError(field)


def opened(path: str) -> tuple[str, str]:
    """("refused" or "reported", why) for a bad file."""
    try:
        with load_source([path]) as source:
            bad = verify(source)
    except FormatError as error:
        return "refused", str(error)
    return ("reported", bad[0].problem) if bad else ("passed", "")


def replay(path: str) -> dict[str, object]:
    """How a file ended, its processor time in seconds, and the most memory that the process had."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the highest memory so far
    begin = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        kind, why = opened(path)
    except (Exception, TooSlowError) as error:
        kind, why = type(error).__name__, str(error)
    signal.setitimer(signal.ITIMER_PROF, 0)
    return {"kind": kind, "why": why, "seconds": time.process_time() - begin, "peak": status("VmHWM")}


def compared(path: str) -> str:
    """What is wrong with the answers that the file gives, checked and unchecked; nothing for a good reader."""
    size = Path(path).stat().st_size
    for checked in (True, False):
        try:
            if size <= SURFACE_MAX:
                surface.check_file(Path(path).read_bytes(), checked)
        except FffsError as error:
            return f"{type(error).__name__} after it was opened: {error}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return ""


def give_up(_number: int, _frame: FrameType | None) -> None:
    raise TooSlowError(f"more than {SECONDS} s")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, give_up)
    most = status("VmSize") + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for name in sys.argv[1:]:
        print(json.dumps({"begins": name}), flush=True)
        result = replay(name)
        if result["kind"] in ("refused", "reported") and "storm" not in name:
            result["compared"] = compared(name)
        print(json.dumps({"ends": name} | result), flush=True)
