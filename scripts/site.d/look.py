"""Looks at pages of the site in headless Chromium: takes screenshots, and finds headings, plots and errors."""

from __future__ import annotations

import functools
import http.server
import re
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

PAGES = {
    "index.html": ("fffs", "training.svg"),
    "docs/tutorial.html": ("Stop and resume", ""),
    "docs/benchmarks.html": ("Training", "mount.svg"),
    "reference/commands.html": ("fffs plan run", ""),
    "reference/python/fffs.html": ("fffs.FileReader", ""),
}
"""A heading of each page, and the plot that it shows."""
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CONSOLE = re.compile(r'CONSOLE[:(]\d+\)?\] "(.*?)", source')


class _Server(http.server.ThreadingHTTPServer):
    """``missing``: what a page asked for and did not get; the log of Chromium does not have it."""

    missing: list[str]


class _Handler(http.server.SimpleHTTPRequestHandler):
    server: _Server

    def log_message(self, *_args: object) -> None:
        """Log nothing."""

    def send_error(self, *args: object) -> None:
        """Answer with an error, and remember it."""
        self.server.missing.append(self.path)
        super().send_error(*args)  # type: ignore[arg-type]


def look(site: Path, screenshots: Path, pages: dict[str, tuple[str, str]] = PAGES) -> list[str]:
    """Look at the pages, write a PNG of each, and return a line for each problem."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not browser:
        return ["there is no Chromium: apt-get install chromium-headless-shell (Fedora: dnf install chromium-headless)"]
    screenshots.mkdir(parents=True, exist_ok=True)
    handler = functools.partial(_Handler, directory=str(site))
    problems = []
    with _Server(("127.0.0.1", 0), handler) as server, tempfile.TemporaryDirectory() as profile:
        server.missing = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for page, (heading, plot) in pages.items():
            picture = screenshots / f"{page.replace('/', '-').removesuffix('.html')}.png"
            shown, log = _show(browser, f"http://127.0.0.1:{server.server_port}/{page}", picture, profile)
            problems += [f"{page}: {problem}" for problem in _problems(shown, log, heading, plot)]
            if not picture.exists():
                problems.append(f"{page}: no screenshot")
        server.shutdown()
        problems += [f"{path}: a page asks for it, but there is no such file" for path in sorted({*server.missing})]
    return problems


def _show(browser: str, url: str, picture: Path, profile: str) -> tuple[str, str]:
    """Load a page, take a screenshot, and return the elements that it has after its scripts ran, and the log."""
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
    command += ["--enable-logging=stderr", "--virtual-time-budget=5000", "--window-size=1280,1600"]
    picture.unlink(missing_ok=True)
    done = subprocess.run(
        [*command, f"--screenshot={picture}", "--dump-dom", url],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
        check=False,
    )
    return done.stdout, done.stderr


def _problems(shown: str, log: str, heading: str, plot: str) -> list[str]:
    found = re.findall(r"<h[1-4][^>]*>(.*?)</h[1-4]>", shown, re.DOTALL)
    headings = [re.sub(r"<[^>]+>|¶", "", text).strip() for text in found]
    problems = [f"the console says: {line}" for line in CONSOLE.findall(log)]
    if heading not in headings:
        problems.append(f"no heading {heading!r}")
    if plot and not re.search(rf'<img[^>]*src="[^"]*{re.escape(plot)}"', shown):
        problems.append(f"no plot {plot}")
    return problems
