"""Writes the man pages and completions into share/, which wheels install. Run it with scripts/manual."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from completion import completions
from man import pages

SHARE = Path(__file__).resolve().parents[2] / "share"


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/manual", description="Write man pages and completions into share/.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file differs")
    args = parser.parse_args()
    wanted = {SHARE / path: text for path, text in {**pages(), **completions()}.items()}
    present = {path for path in SHARE.rglob("*") if path.is_file()}
    if args.check:
        wrong = [path for path in wanted if path not in present or path.read_text() != wanted[path]]
        wrong += present - set(wanted)
        sys.exit(f"manual: not as the parser says: {', '.join(map(str, wrong))}; run scripts/manual" if wrong else 0)
    for path in present - set(wanted):
        path.unlink()
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
