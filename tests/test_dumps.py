"""The files that docs/dumps.md shows byte by byte are what its program writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from examples import ROOT, blocks


def test_the_dumps_show_every_byte_that_the_program_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program, *dumps = blocks(ROOT / "docs/dumps.md")
    exec(compile(program.text, "dumps.md", "exec"), {})
    shown = set()
    for dump in dumps:
        name, _, lines = dump.text.partition("\n")
        content = bytearray()
        for line in lines.splitlines():
            found = re.fullmatch(r"([0-9a-f]{3})  ((?:[0-9a-f]{2} ?)+)  +\S.*", line)
            assert found, line
            assert int(found[1], 16) == len(content), line
            content += bytes.fromhex(found[2])
        assert bytes(content) == (tmp_path / name).read_bytes(), name
        shown.add(name)
    assert shown == {"train.ffr", "notes.ffr", "train.tfrecord", "part-0", "train.bag"}
