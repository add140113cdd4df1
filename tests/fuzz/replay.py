"""Opens bad files one after the other in little memory, and reports each outcome: python -m fuzz.replay FILE...

It prints a line of JSON before and after each file, so that the last line names a file that kills the process.
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

SECONDS = 4  # processor time per file
MEMORY = 256 << 20
SURFACE_MAX = 100_000  # larger files are not compared with the model, which is slow


class TooSlowError(BaseException):
    """A file exceeded its processor time."""


def status(field: str) -> int:
    """Return a field of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) << 10
    raise KeyError(field)


def opened(path: str) -> tuple[str, str]:
    """Return ("refused" or "reported", why) for a bad file."""
    try:
        with load_source([path]) as source:
            bad = verify(source)
    except FormatError as error:
        return "refused", str(error)
    return ("reported", bad[0].problem) if bad else ("passed", "")


def replay(path: str) -> dict[str, object]:
    """Return the outcome of a file, its processor time in seconds, and the peak memory of the process."""
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak of resident memory
    begin = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        kind, why = opened(path)
    except (Exception, TooSlowError) as error:
        kind, why = type(error).__name__, str(error)
    signal.setitimer(signal.ITIMER_PROF, 0)
    return {"kind": kind, "why": why, "seconds": time.process_time() - begin, "peak": status("VmHWM")}


def compared(path: str) -> str:
    """Return what is wrong with the results for a file, with and without checksums; "" if all is right."""
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
