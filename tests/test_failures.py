"""A failed system call raises the typed error of a file, once; a call that did only a part of its work is continued."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from inside import NewFile, reading, write_at, writing

from fffs.errors import ReadError, SourceNotFoundError, WriteError


def test_a_failure_is_named_after_its_file() -> None:
    with pytest.raises(ReadError, match=r"^some\.ffr: cannot read \(the header\): Permission denied$") as caught:
        with reading("some.ffr", "the header"):
            raise PermissionError(errno.EACCES, "not this text")
    assert caught.value.errno == errno.EACCES and isinstance(caught.value.__cause__, PermissionError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("number", [None, 0])
def test_a_failure_without_a_number_is_not_called_success(number: int | None) -> None:
    error = OSError() if number is None else OSError(number, "Success")
    with pytest.raises(WriteError, match=r"^some\.log: cannot write: Input/output error$"):
        with writing("some.log"):
            raise error


@pytest.mark.parametrize(
    "error", [ReadError(errno.EIO, "inner"), SourceNotFoundError("inner"), ValueError("inner"), StopIteration()]
)
def test_what_is_no_bare_failure_passes_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, writing("outer"):
        raise error
    assert caught.value is error


@pytest.mark.parametrize("most", [1, 3, 4, 100])
def test_what_the_system_takes_in_parts_is_all_written(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = os.pwritev

    def some(fd: int, pieces: Any, position: int) -> int:
        return original(fd, [b"".join(pieces)[:most]], position)

    with open(tmp_path / "x", "wb", buffering=0) as file:
        monkeypatch.setattr(os, "pwritev", some)
        assert write_at(NewFile(file.fileno(), "x"), [b"abc", b"", bytearray(b"d"), memoryview(b"efgh")], 2) == 8
    assert (tmp_path / "x").read_bytes() == b"\0\0abcdefgh"


def test_a_system_that_takes_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    with open(tmp_path / "x", "wb") as file, pytest.raises(WriteError, match=r"^x: cannot write: Input/output error$"):
        write_at(NewFile(file.fileno(), "x"), [b"abc"], 0)
