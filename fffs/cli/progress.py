"""Progress bars on stderr, if stderr is a terminal."""

from __future__ import annotations

import sys
import threading
import time

from fffs.base.importing import importing
from fffs.base.long_reads import set_report
from fffs.base.text import human

INTERVAL = 0.1  # seconds between drawings
LABEL_MAX = 32  # characters; the bar gets the rest of the line


class ProgressBar:
    """Draws ``label [####    ] 45 % 1.2 GB 350 MB/s 4 s left``, and erases it at the end of the with-block.

    May be called from any thread. Writes nothing if stderr is not a terminal, and nothing more if it cannot be written,
    as when the terminal of a process that ignores SIGHUP was closed.
    """

    def __init__(self, label: str) -> None:
        self._label = label if len(label) <= LABEL_MAX else label[: LABEL_MAX - 1] + "…"
        self.detail = ""  # shown before the numbers, as "3/20 parts"
        self._shown = sys.stderr is not None and sys.stderr.isatty()
        self._begin: tuple[float, int] | None = None  # when there were bytes, and how many: plans precede them
        self._next = time.monotonic() + INTERVAL  # work that takes less time shows no bar
        # Ctrl-C between acquire and try leaves it locked by the main thread, which can then still close the bar.
        self._lock = threading.RLock()
        self._drawn = False

    def __call__(self, done: int, total: int) -> None:
        """Show progress, at most every ``INTERVAL`` seconds. done, total: bytes."""
        if done and not self._begin:
            self._begin = time.monotonic(), done
        if not self._shown or time.monotonic() < self._next or not self._lock.acquire(blocking=False):
            return
        try:
            self._draw(done, total)
            self._next = time.monotonic() + INTERVAL
        finally:
            self._lock.release()

    def _draw(self, done: int, total: int) -> None:
        begin, before = self._begin or (time.monotonic(), done)
        rate = (done - before) / max(time.monotonic() - begin, 1e-9)
        part = min(done / total, 1.0) if total else 1.0
        left = f"{(total - done) / rate:.0f} s left" if rate > 0 else ""
        detail = f"{self.detail} " if self.detail else ""
        text = f"{detail}{part:4.0%} {human(done)} {human(max(rate, 0))}/s {left}"
        with importing:
            import shutil  # imported late: it imports every compressor, and most commands draw nothing
        columns = shutil.get_terminal_size().columns
        width = max(columns - len(self._label) - len(text) - 6, 0)
        bar = f"[{'#' * int(width * part):{width}}] " if width >= 10 else ""
        line = f"{self._label} {bar}{text}"[: columns - 1]  # a longer one would fill the terminal with its beginnings
        self._drawn = True
        self._write(f"\r\x1b[K{line}")

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            self._shown = self._drawn = False

    def close(self) -> None:
        """Erase the bar."""
        with self._lock:
            self._shown = False
            if self._drawn:
                self._write("\r\x1b[K")

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ReadingBar:
    """A progress bar for what is reported to ``fffs.base.long_reads``, of all files that are read at a time."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._bar: ProgressBar | None = None
        self._parts: dict[str, tuple[int, int]] = {}

    def __call__(self, name: str, done: int, total: int) -> None:
        """Show progress, until all files are read."""
        with self._lock:
            self._parts[name] = done, total
            self._bar = self._bar or ProgressBar("finding records")
            parts = self._parts.values()
            self._bar(sum(part[0] for part in parts), sum(part[1] for part in parts))
            if all(read == size for read, size in parts):
                self.close()

    def close(self) -> None:
        """Erase the bar."""
        with self._lock:
            self._parts.clear()
            if self._bar is not None:
                self._bar.close()
                self._bar = None

    def __enter__(self) -> ReadingBar:
        set_report(self)
        return self

    def __exit__(self, *_: object) -> None:
        set_report(None)
        self.close()
