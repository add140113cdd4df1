"""``fffs mount``, and ``mount.fffs`` for mount(8)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from fffs.errors import MountError

try:
    import fffs.mount as _mount
    from fffs.mount import options as _options
except ImportError as error:
    raise MountError(
        f"mounting needs pyfuse3 and trio, and {error.name} is missing: pip install 'fffs[mount]' "
        "(Debian/Ubuntu: apt-get install fuse3 libfuse3-dev pkg-config; Fedora: dnf install fuse3 fuse3-devel pkgconf)"
    ) from error


def run(args: argparse.Namespace) -> int:
    """Mount sources."""
    options = _options.parse(args.options)
    return _mount.mount(
        args.source,
        args.mountpoint,
        options=options,
        suffix=args.suffix,
        foreground=args.foreground or args.debug,
        debug=args.debug,
    )


def unmount(mountpoint: str, lazy: bool) -> None:
    """Unmount, also what a dead daemon left."""
    _mount.umount(mountpoint, lazy=lazy)


def helper(argv: Sequence[str]) -> int:
    """Mount as mount(8) asks for it: ``SOURCE DIR [-sfnv] [-o OPTIONS]``."""
    return _mount.helper(list(argv))
