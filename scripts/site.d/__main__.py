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


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/site",
        description="Build the site in build/site. Fails if a link is dead, or a public name is not documented.",
    )
    parser.add_argument("--look", action="store_true", help="then look at five pages in Chromium: build/screenshots")
    parser.add_argument("--into", type=Path, default=ROOT / "build", metavar="FOLDER", help="a folder instead of build")
    args = parser.parse_args()
    site = args.into.absolute() / "site"
    problems = build(args.into.absolute(), site) or missing_names(site)
    if args.look and not problems:
        from look import look

        problems = look(site, args.into / "screenshots")
    sys.exit("\n".join(f"site: {problem}" for problem in problems) or 0)


def build(folder: Path, site: Path) -> list[str]:
    """Build the site from pages in a folder, and return a line for each problem."""
    pages, package = folder / "pages", folder / "as-installed"
    link_package(package)
    write_pages(pages)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(HERE / "mkdocs.yml")]
    places = {"PAGES": str(pages), "SITE": str(site), "PACKAGE": str(package)}
    environment = {**os.environ, **places, "NO_MKDOCS_2_WARNING": "true"}
    built = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = (built.stdout + built.stderr).splitlines()
    return [line for line in lines if line and " INFO " not in f" {line}"] if built.returncode else []


def missing_names(site: Path) -> list[str]:
    """Return a line for each public name that has no place on its page."""
    lines = []
    for module in MODULES:
        page = site / f"reference/python/{module}.html"
        places = set(re.findall(r'id="([\w.]+)"', page.read_text())) if page.exists() else set()
        missing = [name for name in exported(module) if f"{module}.{name}" not in places]
        lines += [f"{module}.{name} is not documented" for name in missing]
    return lines


if __name__ == "__main__":
    main()
