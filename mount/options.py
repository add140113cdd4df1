"""Mount options in mount(8) style: ``-o allow_other,uid=1000``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from fffs.base.cache_settings import cache_name
from fffs.base.importing import importing
from fffs.base.paths import absolute_path
from fffs.errors import UsageError
from fffs.objects.overrides import environment_of

# The largest value of each number. 2**32 - 1 means "no user" to the kernel.
LIMITS = {"threads": 1024, "readahead": 1 << 20, "uid": 2**32 - 2, "gid": 2**32 - 2, "umask": 0o777}


@dataclass(frozen=True)
class MountOptions:
    """How to mount. Immutable; the daemon receives the result of ``dataclasses.asdict``.

    Attributes:
        verify: return only bytes that match their checksum.
        allow_other: let users other than the one who mounts look inside.
        uid, gid: the owner and group of everything; None: those of the user who mounts.
        umask: permission bits removed from every mode.
        noexec: do not allow programs in the mount to be run.
        nonempty: mount over a folder that is not empty.
        suffix: ending of the numbered names of a plain record file.
        format: the format of the record files, which overrides recognition: "ffrecord", "tfrecord", "ofrecord" or
            "bag".
        prefix: of the names of OFRecord parts in folders, which are numbers otherwise; None: "part-".
        decode: show the content of records instead of the records. True: each record of a TFRecord or OFRecord file is
            a folder of features; arrays and integers of a granular data set are ``.npy`` files. None: only its arrays.
        fastpath: let native threads answer the most frequent requests. None: if all sources are local files; True: for
            any source. If the threads cannot be started, the mount works without them.
        threads: the number of native threads, at most 1024; 0: one per processor, from 2 to 16.
        readahead: how far the kernel may read ahead of a program, in KiB, at most 1048576. The kernel's default of 128
            splits reads of large files into many small requests; one request is at most 1024 KiB. Only root can set
            more than this default.
        readdirplus: which listings give the kernel the attributes of all entries. "always": all of them; "auto": as the
            kernel decides, which is faster for programs that only list names, and slower for those that then ask for
            the attributes of each file. Without the fast path, it is always "always".
        xattr: show where a file comes from as extended attributes ``user.fffs.*``. Slower for programs that ask every
            file for attributes, such as ``ls -l``.
        kernel: let the kernel serve aligned packs without a daemon. True: or fail; None: or a daemon serves what the
            kernel cannot mount, and a warning says why. All records are verified before the mount appears, unless
            ``verify`` is False or all packs are under fs-verity with the digests that are kept, and not later.
            ``suffix``, ``decode`` and ``xattr`` need a daemon. ``fastpath``, ``threads``, ``readahead``,
            ``readdirplus`` and ``log`` are about a daemon and have no effect without one, as a warning says.
        cache: the folder that keeps what is read of objects in stores; "off": nothing is kept; empty: as FFFS_CACHE
            says, or a folder in that of the user.
        cache_size: the most bytes that it keeps: a number, "20G", or "30%" of the free space; empty: as FFFS_CACHE_SIZE
            says, or half of the free space.
        endpoint_url: the S3 server; empty: as the environment says, or that of Amazon. Without a user and a password.
        log: the file that the daemon's log is appended to; empty: the system log.

    Examples:
        >>> fffs.mount.MountOptions(allow_other=True, umask=0o22).umask
        18

    """

    verify: bool = True
    allow_other: bool = False
    uid: int | None = None
    gid: int | None = None
    umask: int = 0
    noexec: bool = False
    nonempty: bool = False
    suffix: str = ""
    format: str | None = None
    prefix: str | None = None
    decode: bool | None = None
    fastpath: bool | None = None
    threads: int = 0
    readahead: int = 1024
    readdirplus: str = "always"
    xattr: bool = False
    kernel: bool | None = False
    cache: str = ""
    cache_size: str | int = ""
    endpoint_url: str = ""
    log: str = ""

    def __post_init__(self) -> None:
        """Raise UsageError for numbers that are out of range."""
        for name, limit in LIMITS.items():
            value = getattr(self, name)
            if value is None and name in ("uid", "gid"):
                continue
            if not isinstance(value, int) or not 0 <= value <= limit:
                raise UsageError(_must_be(name, value))
        _listing("readdirplus", self.readdirplus)
        environment_of(self.cache, self.cache_size, self.endpoint_url)  # raises


# Options that fstab and mount(8) pass along, and options that always hold: ro, nosuid, nodev and all about atime.
_IGNORED = (
    "defaults auto noauto user users nouser owner group nofail _netdev async sync dirsync mand nomand silent loud "
    "atime noatime diratime nodiratime relatime norelatime strictatime nostrictatime lazytime nolazytime "
    "ro nosuid nodev exec default_permissions iversion noiversion"
)
IGNORED = frozenset(_IGNORED.split())
IGNORED_PREFIXES = ("x-", "X-", "comment=", "user=", "uhelper=", "helper=")


def parse(options: Iterable[str]) -> MountOptions:
    """Parse any number of ``-o`` arguments, each as ``split_options`` takes it. Later options override earlier ones.

    Raises:
        UsageError: an option is unknown, has a wrong value, or cannot be granted.

    """
    result = MountOptions()
    for option in (part for argument in options for part in split_options(argument)):
        if option in IGNORED or option.startswith(IGNORED_PREFIXES):
            continue
        name, equals, value = option.partition("=")
        if name in REFUSED:
            raise UsageError(f"-o {name}: {REFUSED[name]}")
        if name in FLAGS and not equals:
            changed: dict[str, Any] = {name: True}
        elif name in BARE and not equals:
            changed = {name: VALUES[name](name, "on")}
        elif name in VALUES and equals:
            changed = {name: VALUES[name](name, _unquoted(value))}
        elif name in FLAGS or name in VALUES:
            raise UsageError(f"-o {option}: write it as {name if name in FLAGS else name + '=...'}")
        else:
            raise UsageError(f"-o {name}: no such option; there are {', '.join(known())}")
        result = replace(result, **changed)
    return result


def split_options(argument: str) -> list[str]:
    """Split a list of options at its commas, except for those in double quotes around a value, as mount(8) does.

    Raises UsageError.
    """
    parts = re.findall(r'(?:[^",]|"[^"]*")+', argument)
    if argument.count('"') % 2:
        raise UsageError("-o: a double quote has no partner")
    return parts


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value


def known() -> list[str]:
    """Return the known options, as error messages and help texts show them."""
    forms = {
        "verify": "verify=on|off",
        "decode": "decode[=auto|on|off]",
        "fastpath": "fastpath=auto|on|off",
        "kernel": "kernel[=auto|on|off]",
        "readahead": "readahead=KIB",
        "readdirplus": "readdirplus=auto|always",
        "umask": "umask=OCTAL",
        "suffix": "suffix=TEXT",
        "format": "format=FORMAT",
        "prefix": "prefix=TEXT",
        "cache": "cache=DIR|off",
        "cache_size": "cache_size=SIZE",
        "endpoint_url": "endpoint_url=URL",
        "log": "log=FILE",
    }
    return [*sorted(FLAGS), *(forms.get(name, f"{name}=N") for name in VALUES)]


def _switch(name: str, value: str) -> bool:
    if value not in ("on", "off"):
        raise UsageError(f"-o {name}={value}: must be on or off")
    return value == "on"


def _choice(name: str, value: str) -> bool | None:
    if value not in ("auto", "on", "off"):
        raise UsageError(f"-o {name}={value}: must be auto, on or off")
    return None if value == "auto" else value == "on"


def _listing(name: str, value: str) -> str:
    if value not in ("auto", "always"):
        raise UsageError(f"-o {name}={value}: must be auto or always")
    return value


def _number(name: str, value: str) -> int:
    if not re.fullmatch("0|[1-9][0-9]{0,9}", value) or int(value) > LIMITS[name]:
        raise UsageError(f"-o {_must_be(name, value)}")
    return int(value)


def _bits(name: str, value: str) -> int:
    if not re.fullmatch("0*[0-7]{1,3}", value):
        raise UsageError(f"-o {_must_be(name, value)}")
    return int(value, 8)


def _must_be(name: str, value: object) -> str:
    if name == "umask":
        return f"umask={value}: must be octal, from 0 to 777"
    what = ", as `id` shows it" if name in ("uid", "gid") else f" from 0 to {LIMITS[name]}"
    return f"{name}={value}: must be a number{what}"


def _text(_name: str, value: str) -> str:
    return value


def _format(_name: str, value: str) -> str:
    # Not at the top: mounting and unmounting start a process, which needs neither numpy nor any format.
    with importing:
        from fffs.formats.table import format_named
    return format_named(value).name


def _path(name: str, value: str) -> str:
    if not value:
        raise UsageError(f"-o {name}=: must be a file")
    return absolute_path(value)


def _cache(name: str, value: str) -> str:
    if not value:
        raise UsageError(f"-o {name}=: must be a folder, or off")
    return cache_name(value)


def _filled(name: str, value: str) -> str:
    if not value:
        raise UsageError(f"-o {name}=: the value is missing")
    return value


FLAGS = ("allow_other", "noexec", "nonempty", "xattr")
VALUES: dict[str, Callable[[str, str], Any]] = {
    "verify": _switch,
    "decode": _choice,
    "fastpath": _choice,
    "kernel": _choice,
    "threads": _number,
    "readahead": _number,
    "readdirplus": _listing,
    "uid": _number,
    "gid": _number,
    "umask": _bits,
    "suffix": _text,
    "format": _format,
    "prefix": _text,
    "cache": _cache,
    "cache_size": _filled,
    "endpoint_url": _filled,
    "log": _path,
}
BARE = ("decode", "kernel")
"""Options whose value may be left out and is then ``on``."""
REFUSED = {
    "rw": "a mount of record files is always read-only; leave it out, and change the folder that was packed",
    "suid": "a mount is always nosuid: a file may come from anybody; unpack it to run such programs",
    "dev": "a mount is always nodev: a file may come from anybody",
    "remount": "the options of a mount cannot be changed; unmount it and mount it again",
    "auto_unmount": "after a crash it would leave an empty folder that looks fine; `fffs umount` cleans up instead",
    "allow_root": "use allow_other",
}
