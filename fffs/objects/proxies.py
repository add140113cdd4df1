"""proxy_of: the proxy through which a URL is asked for, as libcurl takes it from the environment."""

from __future__ import annotations

import ipaddress
import re
import urllib.parse
from collections.abc import Mapping
from typing import Final, NamedTuple

from fffs.errors import UsageError
from fffs.objects.names import THIS_MACHINE, direct_hosts, host_of, is_true

_PROXY: Final = re.compile(
    r"(?:(https?|socks(?:4a?|5h?)?)://)?(?:([^/?#\s]*)@)?(\[[^][/?#@\s]+\]|[^][:/?#@\s]+)(?::([0-9]{0,5}))?(?:[/?#][^@\s]*)?",
    re.IGNORECASE,
)
_PORT: Final = "1080"  # libcurl's, if none is named


class Proxy(NamedTuple):
    """A proxy. ``user``: with the password, percent-encoded. ``server``: the host with its port."""

    scheme: str
    user: str
    server: str

    @property
    def address(self) -> tuple[str, int]:
        """The name or number of the host, and the port."""
        host, _, port = self.server.rpartition(":")
        return host.strip("[]"), int(port)

    def __repr__(self) -> str:
        return f"Proxy({self.scheme}://{self.server})"


def proxy_of(url: urllib.parse.SplitResult, environment: Mapping[str, str]) -> Proxy | None:
    """Return the proxy, or None. Raises UsageError if what the environment names is not the address of one.

    What is asked for without encryption on this machine goes through none: a proxy cannot reach it, and would see what
    gives access. Without AWS_ALLOW_HTTP, that is all without encryption.
    """
    host = host_of(url.netloc.rpartition("@")[2]).strip("[]").lower().rstrip(".")
    if url.scheme == "http" and (not is_true(environment.get("AWS_ALLOW_HTTP")) or _is_direct(host, THIS_MACHINE)):
        return None
    # HTTP_PROXY in capitals is not used: servers of CGI set it from a header line of a request.
    names = ("http_proxy",) if url.scheme == "http" else ("https_proxy", "HTTPS_PROXY")
    found = next((name for name in (*names, "all_proxy", "ALL_PROXY") if environment.get(name)), "")
    if not found or _is_direct(host, direct_hosts(environment)):
        return None
    match = _PROXY.fullmatch(environment[found])
    if match is None:  # it is not shown, because it may hold a password; libraries show parts of one as host or port
        raise UsageError(
            f"{found} is not the address of a proxy, http://USER:PASSWORD@HOST:PORT; characters of the password as "
            "/ ? # must be percent-encoded"
        )
    scheme, user, server, port = match.groups()
    return Proxy((scheme or "http").lower(), user or "", f"{server}:{port or _PORT}")


def can_use(proxy: Proxy | None) -> bool:
    """Whether ``sending`` can go through a proxy."""
    return proxy is None or proxy.scheme in ("http", "socks5", "socks5h")


def _is_direct(host: str, names: str) -> bool:
    """Whether the list of no_proxy has a host: by its name, that of a domain above it, its address, or a network."""
    if names.strip() == "*":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    for name in names.replace(",", " ").lower().split():
        bare = name.strip("[]").strip(".")
        if address is not None:
            try:
                if address in ipaddress.ip_network(bare, strict=False):
                    return True
            except ValueError:
                continue
        elif bare and (host == bare or host.endswith(f".{bare}")):
            return True
    return False
