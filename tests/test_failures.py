"""Failed system calls become the typed error of a file, once."""

from __future__ import annotations

import errno
import pickle

import pytest

from fffs.errors import ReadError, SourceNotFoundError, WriteError
from fffs.failures import reading, writing


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
