"""proxy_of: the proxy through which a URL is asked for, as libcurl takes it from the environment."""

from __future__ import annotations

import ipaddress
import urllib.parse
from collections.abc import Mapping

from fffs.objects.names import host_of, is_true


def proxy_of(url: urllib.parse.SplitResult, environment: Mapping[str, str]) -> str:
    """Return the URL of the proxy, or "" for none.

    Without AWS_ALLOW_HTTP, what is asked for without encryption is on this machine, which a proxy cannot reach.
    """
    if url.scheme == "http" and not is_true(environment.get("AWS_ALLOW_HTTP")):
        return ""
    # HTTP_PROXY in capitals is not used: servers of CGI set it from a header line of a request.
    names = ("http_proxy",) if url.scheme == "http" else ("https_proxy", "HTTPS_PROXY")
    found = next((value for name in (*names, "all_proxy", "ALL_PROXY") if (value := environment.get(name))), "")
    direct = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    if not found or _is_direct(host_of(url.netloc.rpartition("@")[2]).strip("[]").lower().rstrip("."), direct):
        return ""
    return found if "://" in found else f"http://{found}"


def can_use(proxy: str) -> bool:
    """Whether http.client can go through a proxy: it speaks HTTP to one, without encryption."""
    return not proxy or proxy.lower().startswith("http://")


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
