"""The programs and commands of docs/tutorial.md do what the page shows."""

from __future__ import annotations

import re
from pathlib import Path

from examples import ROOT, blocks, run_console


def test_the_tutorial_does_what_it_shows(tmp_path: Path) -> None:
    ran = []
    for block in blocks(ROOT / "docs/tutorial.md"):
        if block.language == "python":
            name = re.match(r"# ([\w.]+)\n", block.text)
            assert name, f"line {block.line}: a program begins with its name"
            (tmp_path / name[1]).write_text(block.text)
        elif block.language == "console":
            run_console(block, tmp_path)
        ran.append(block.language)
    assert {"python", "console"} <= set(ran)
    assert (tmp_path / "straight.npy").read_bytes() == (tmp_path / "resumed.npy").read_bytes()
