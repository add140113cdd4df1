"""Runs a Python fuzz target under atheris: run_python.py TARGET [libFuzzer's options and arguments]."""

from __future__ import annotations

import importlib
import sys
import time

import atheris

SECONDS = 3  # processor time for an input of a few thousand bytes, including sanitizers and models


class TooSlowError(Exception):
    """An input took a disproportionate time."""


if __name__ == "__main__":
    name = sys.argv.pop(1)
    with atheris.instrument_imports(include=["fffs"]):
        target = importlib.import_module(f"fuzz.fuzz_{name}")

    def one_input(data: bytes) -> None:
        begin = time.process_time()
        target.one_input(data)
        if (took := time.process_time() - begin) > SECONDS:
            raise TooSlowError(f"{took:.1f} s of processor time")

    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
