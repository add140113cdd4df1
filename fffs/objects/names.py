"""The names of objects: which arguments are URLs, what their parts are, and how messages show them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fffs.base.importing import importing
from fffs.base.paths import absolute_path
from fffs.errors import UsageError
from fffs.objects.fsspec_url import absolute_url, is_fsspec_url, shown_url, without_file_scheme

THIS_MACHINE: Final = "localhost,127.0.0.1,127.0.0.0/8,::1"
"""The hosts of ``no_proxy`` that are this machine. Some programs know no networks there."""

_SCHEME: Final = re.compile(r"(s3|gs|az|https?)://", re.IGNORECASE)
_BUCKET: Final = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]*")
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
# What ends a line, moves the cursor, or changes the direction of text in a terminal or a log.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_DOTS: Final = re.compile(r"(?:\.|%2e){1,2}", re.IGNORECASE)
_NOT_IN_ENDPOINTS: Final = re.compile(r"[@?#\s\x00-\x1f\x7f]")
_WEB: Final = ("https", "http")


@dataclass(frozen=True, repr=False)
class ObjectName:
    """The parts of the URL of an object, or of a folder of objects.

    ``bucket`` is the bucket of ``s3`` and ``gs``, the container of ``az``, the host with its port of ``https`` and
    ``http``. ``key`` is everything after the slash that follows, as it was written: nothing is decoded, and for
    ``https`` and ``http`` it includes the query.
    """

    scheme: str
    bucket: str
    key: str

    @property
    def name(self) -> str:
        """The URL for messages and logs: without the query, which may be a signature."""
        key, mark, _ = self.key.partition("?") if self.is_web else (self.key, "", "")
        return f"{self.scheme}://{self.bucket}/{key}" + ("?…" if mark else "")

    @property
    def url(self) -> str:
        """The whole URL. Not for messages."""
        return f"{self.scheme}://{self.bucket}/{self.key}"

    @property
    def is_web(self) -> bool:
        """Whether it is an address of the web, which is used as it is, without signature and listing."""
        return self.scheme in _WEB

    @property
    def is_folder(self) -> bool:
        """Whether it names no object, but a bucket, or all objects whose keys begin with this one."""
        return not self.is_web and (not self.key or self.key.endswith("/"))

    def __repr__(self) -> str:
        return f"ObjectName({self.name!r})"


def is_url(name: str) -> bool:
    """Whether a name is the URL of an object in a store or on a web server, which fffs reads itself."""
    return _SCHEME.match(name) is not None


def is_remote(name: str) -> bool:
    """Whether a name is a URL, which fffs itself or fsspec reads, and not that of a local file."""
    return is_url(name) or is_fsspec_url(name)


def shown(name: str) -> str:
    """Return the name of a file or object for messages: of a URL, without a password and a query, which may be a
    signature.
    """
    if is_fsspec_url(name):
        return shown_url(name)
    return parse_url(name).name if is_url(name) else name


def absolute(name: str, folder: str | None = None) -> str:
    """Return a name that means the same in every folder: the URL of an object, or the absolute path of a file.

    folder: as for ``absolute_path``, whose errors this raises. Raises UsageError for a URL of fsspec with a password.
    """
    if is_fsspec_url(name):
        return absolute_url(name, folder)
    return name if is_url(name) else absolute_path(without_file_scheme(name), folder)


def parse_url(name: str) -> ObjectName:
    """Return the parts of a URL.

    Raises:
        UsageError: it is not one, or not one that reaches a server as it was written.

    """
    match = _SCHEME.match(name)
    if match is None:
        raise UsageError("this is not a URL of s3://, gs://, az:// or https://")  # it may hold a password
    scheme = match[1].lower()
    authority, _, key = name[match.end() :].partition("/")
    parts = ObjectName(scheme, authority, key)
    if parts.is_web and "?" in authority:
        raise UsageError(f"{scheme}://…: a slash is missing between the host and the query")
    _check_authority(parts)
    (_check_path if parts.is_web else _check_key)(parts)
    return parts


def require_object(name: ObjectName) -> None:
    """Raise UsageError if a name is that of a bucket or folder."""
    if name.is_folder:
        raise UsageError(f"{name.name}: this is not the name of an object: a key is missing after the last slash")


def join_url(prefix: str, entry: str) -> str:
    """Return the URL of an entry in a folder. A query of the folder stays at the end.

    Raises:
        UsageError: the result would not be below the folder.

    """
    folder = parse_url(prefix)
    path, mark, query = folder.key.partition("?") if folder.is_web else (folder.key, "", "")
    if not entry or entry.startswith("/") or (folder.is_web and "?" in entry):
        raise UsageError(f"{folder.name}: {entry!r} is not the name of an entry of a folder")
    path = f"{path}/" if path and not path.endswith("/") else path
    return parse_url(f"{folder.scheme}://{folder.bucket}/{path}{entry}{mark}{query}").url


def base_name(url: str) -> str:
    """Return the last part of a URL's path as it was written, or the bucket. Raises UsageError."""
    name = parse_url(url)
    path = name.key.partition("?")[0] if name.is_web else name.key
    return path.rstrip("/").rpartition("/")[2] or name.bucket


def is_plain_allowed(host: str) -> bool:
    """Whether a host (with its port) may be asked without encryption: a loopback address, or AWS_ALLOW_HTTP is true."""
    if is_true(os.environ.get("AWS_ALLOW_HTTP")):
        return True
    bare = host_of(host).strip("[]").lower()
    if bare == "localhost":
        return True
    with importing:
        import ipaddress  # imported late: it takes a millisecond, and most names are those of local files
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False


def check_endpoint(url: str, origin: str) -> None:
    """Raise UsageError unless this is the address of a store, as ``https://host:port``. A wrong one may hold a secret,
    and is not shown. origin: the beginning of the message.
    """
    scheme, mark, rest = url.partition("://")
    authority = rest.partition("/")[0]
    if scheme not in _WEB or not mark or not host_of(authority) or _NOT_IN_ENDPOINTS.search(url):
        raise UsageError(f"{origin} must be like https://host:port, without a user, a password or a query")
    if scheme == "http" and not is_plain_allowed(authority):
        raise UsageError(f"{origin} http://{authority} is not encrypted; AWS_ALLOW_HTTP=true allows it")


def direct_hosts(environment: Mapping[str, str]) -> str:
    """Return the list of the hosts that are asked through no proxy, as curl takes it from the environment."""
    return environment.get("no_proxy") or environment.get("NO_PROXY") or ""


def is_true(value: str | None) -> bool:
    """Whether a variable means yes, as obstore reads it."""
    return (value or "").strip().lower() in ("1", "true", "on", "yes", "y")


def host_of(authority: str) -> str:
    """Return the host of ``host:port``, or nothing if it is not of this form."""
    match = _HOST.fullmatch(authority)
    return match[1] if match and int(match[2] or 0) <= 0xFFFF else ""


def _check_authority(name: ObjectName) -> None:
    """Raise UsageError for a bucket or host that is none. It is not shown: it may be a password."""
    where = f"{name.scheme}://…"
    what = "host" if name.is_web else "container" if name.scheme == "az" else "bucket"
    if not name.bucket:
        raise UsageError(f"{where}: the name of the {what} is missing")
    if "@" in name.bucket:
        raise UsageError(f"{where}: a URL must not contain a user or a password; put credentials into the environment")
    if not (host_of(name.bucket) if name.is_web else _BUCKET.fullmatch(name.bucket)):
        raise UsageError(f"{where}: the name of the {what} is not one of letters, digits, dots and hyphens")
    if name.scheme == "http" and not is_plain_allowed(name.bucket):
        raise UsageError(f"{where}: only https, or http to this machine; AWS_ALLOW_HTTP=true allows http to others")


def _check_key(name: ObjectName) -> None:
    """Raise UsageError for a key that clients or servers change on its way: ``a//b`` becomes ``a/b``, and so on."""
    where = f"{name.scheme}://{name.bucket}/…"
    if _CONTROL.search(name.key):
        raise UsageError(f"{where}: the key contains control characters, which are not supported")
    if not _is_unicode(name.key):
        raise UsageError(f"{where}: the key is not UTF-8")
    segments = name.key.removesuffix("/").split("/")
    if name.key and "" in segments:
        raise UsageError(f"{name.name}: a key with empty parts (// or a slash at its begin) is not supported")
    if "." in segments or ".." in segments:
        raise UsageError(f"{name.name}: a key with parts that are . or .. is not supported")


def _check_path(name: ObjectName) -> None:
    """Raise UsageError for a path of the web that is not sent as it is written."""
    where = f"{name.scheme}://{name.bucket}/…"
    if "#" in name.key:
        raise UsageError(f"{where}: a URL with a fragment (#) names no object; write %23 for this character")
    if not name.key.isascii() or " " in name.key or _CONTROL.search(name.key):
        raise UsageError(f"{where}: spaces, control characters and all but ASCII must be percent-encoded")
    if any(_DOTS.fullmatch(segment) for segment in name.key.partition("?")[0].split("/")):
        raise UsageError(f"{name.name}: a path with parts that are . or .. is not supported")


def _is_unicode(text: str) -> bool:
    """Whether a text is Unicode: names on Linux that are not UTF-8 have surrogates in place of bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
