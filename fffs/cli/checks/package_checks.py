"""Checks of packages and libraries that some uses need."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
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
    for name, (extra, what) in _EXTRAS.items():
        try:
            yield good(name, version(name))
        except PackageNotFoundError:
            verb = "needs" if what.startswith("fffs") else "need"
            yield hint(name, f"not installed; {what} {verb} it", f"pip install 'fffs[{extra}]'")
    libcurl = lib.fffs_http_version()
    if libcurl == ffi.NULL:
        yield hint("libcurl", "not installed; https:// and stores need it", "apt-get install libcurl4, or libcurl4t64")
    else:
        yield good("libcurl", ffi.string(libcurl).decode())
