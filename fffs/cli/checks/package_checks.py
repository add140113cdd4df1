"""Checks of packages and libraries that some uses need."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distributions, requires, version
from typing import Final

from fffs.cli.checks.finding import Finding, good, hint
from fffs.native import ffi, lib

_EXTRAS: Final = {
    "torch": ("torch", "fffs.torch"),
    "obstore": ("objects", "s3://, gs:// and az://"),
    "fsspec": ("fsspec", "other URLs"),
    "msgpack": ("granular", "data sets of granular"),
    "pyarrow": ("arrow", "fffs convert from and to Parquet and Arrow"),
    "array-record": ("array-record", "fffs convert from and to array_record"),
    "dask": ("dask", "fffs.dask"),
    "ray": ("ray", "fffs.ray"),
}


def check_packages() -> Iterator[Finding]:
    """Yield which packages are installed."""
    for name in ("numpy", "cffi"):
        yield good(name, version(name))
    asked = _asked()
    for name, (extra, what) in _EXTRAS.items():
        try:
            yield _installed(name, _version(name), _least(name, extra, asked))
        except PackageNotFoundError:
            verb = "needs" if what.startswith("fffs") else "need"
            yield hint(name, f"not installed; {what} {verb} it", f"pip install 'fffs[{extra}]'")
    yield _libcurl()


def _version(name: str) -> str:
    """Return the version of a package. Raises PackageNotFoundError, also if there is only what an interrupted removal
    left: a folder without a version, which may also be beside a good one.
    """
    for distribution in distributions(name=name):
        with contextlib.suppress(FileNotFoundError, KeyError):  # of newer releases of importlib.metadata
            found: str | None = distribution.version  # the type does not say that there may be none
            if found:
                return found
    raise PackageNotFoundError(name)


def _installed(name: str, found: str, least: str) -> Finding:
    """Return what there is of a package of ``_EXTRAS``."""
    if _numbers(found) < _numbers(least):
        cure = f"pip install --upgrade 'fffs[{_EXTRAS[name][0]}]'"
        return hint(name, f"{found} is too old; fffs needs {least}", cure)
    return good(name, found)


def _asked() -> list[str]:
    """Return the requirements of fffs and its extras."""
    try:
        return requires("fffs") or []
    except PackageNotFoundError:  # it is not installed, but on the path
        return []


def _least(name: str, extra: str, asked: list[str]) -> str:
    """Return the least version of a package that an extra asks for, or an empty string."""
    pattern = re.compile(rf"{re.escape(name)}(?:\[[^]]*\])?>=([0-9.]+).*extra == ['\"]{re.escape(extra)}['\"]")
    return next((match[1] for match in map(pattern.match, asked) if match), "")


def _numbers(text: str) -> list[int]:
    """Return the numbers of a version, as far as they are separated by dots."""
    return [int(number) for number in re.match(r"[0-9.]*", text)[0].split(".") if number]  # type: ignore[index]


def _libcurl() -> Finding:
    libcurl = lib.fffs_http_version()
    if libcurl == ffi.NULL:
        return hint("libcurl", "not installed; https:// and stores need it", "apt-get install libcurl4, or libcurl4t64")
    return good("libcurl", ffi.string(libcurl).decode())
