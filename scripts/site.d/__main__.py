"""Builds the site, and looks at it. Run it with scripts/site, which prepares the environment."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from pages import ROOT, link_package, write_pages
from public_names import MODULES, exported

HERE = Path(__file__).parent
SITE = ROOT / "build/site"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/site",
        description="Build the site in build/site. Fails if a link is dead, or a public name is not documented.",
    )
    parser.add_argument("--look", action="store_true", help="then look at five pages in chromium: build/screenshots")
    args = parser.parse_args()
    link_package(ROOT / "build/as-installed")
    write_pages(ROOT / "build/pages")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(HERE / "mkdocs.yml")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "true"}
    built = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = (built.stdout + built.stderr).splitlines()
    problems = [line for line in lines if line and " INFO " not in f" {line}"] if built.returncode else []
    problems += missing_names()
    if args.look and not problems:
        from look import look

        problems += look(SITE, ROOT / "build/screenshots")
    sys.exit("\n".join(f"site: {problem}" for problem in problems) or 0)


def missing_names() -> list[str]:
    """Return a line for each public name that has no place on its page."""
    lines = []
    for module in MODULES:
        page = SITE / f"reference/python/{module}.html"
        places = set(re.findall(r'id="([\w.]+)"', page.read_text())) if page.exists() else set()
        missing = [name for name in exported(module) if f"{module}.{name}" not in places]
        lines += [f"{module}.{name} is not documented" for name in missing]
    return lines


if __name__ == "__main__":
    main()
