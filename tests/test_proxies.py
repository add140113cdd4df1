"""Which proxy is asked for a URL: what libcurl does with the same variables."""

from __future__ import annotations

import urllib.parse

import pytest
from inside import can_use, proxy_of

PROXY = {"https_proxy": "http://proxy:3128"}


def found(environment: dict[str, str], url: str = "https://s3.store.test:9000/b/k") -> str:
    return proxy_of(urllib.parse.urlsplit(url), environment)


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, ""),
        (PROXY, "http://proxy:3128"),
        ({"HTTPS_PROXY": "proxy:1"}, "http://proxy:1"),
        ({"ALL_PROXY": "socks5h://p:1"}, "socks5h://p:1"),
        ({**PROXY, "all_proxy": "http://other"}, "http://proxy:3128"),
        ({"https_proxy": "", "all_proxy": "http://other"}, "http://other"),
        ({"http_proxy": "http://other"}, ""),
    ],
)
def test_the_variable_that_counts(environment: dict[str, str], wanted: str) -> None:
    assert found(environment) == wanted


@pytest.mark.parametrize(
    ("no_proxy", "direct"),
    [
        ("*", True),
        ("*,x", False),
        ("store.test", True),
        (".store.test", True),
        ("x, S3.Store.Test", True),
        ("x s3.store.test", True),
        ("ore.test", False),
        ("3.store.test", False),
        ("10.0.0.0/8", False),
        ("", False),
    ],
)
def test_hosts_that_are_asked_directly(no_proxy: str, direct: bool) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        assert (found({**PROXY, name: no_proxy}) == "") == direct


@pytest.mark.parametrize(
    ("no_proxy", "direct"),
    [("10.0.0.0/8", True), ("10.1.2.3", True), ("10.1.2.4", False), ("0.1.2.3", False), ("x", False)],
)
def test_addresses_that_are_asked_directly(no_proxy: str, direct: bool) -> None:
    assert (found({**PROXY, "no_proxy": no_proxy}, "https://10.1.2.3/k") == "") == direct
    assert found({**PROXY, "no_proxy": "::1"}, "https://[::1]:9000/k") == ""


def test_without_encryption_only_other_machines_are_asked_through_a_proxy() -> None:
    for environment in ({"http_proxy": "http://p"}, {"HTTP_PROXY": "http://p", "AWS_ALLOW_HTTP": "true"}):
        assert found(environment, "http://127.0.0.1/k") == ""
    assert found({"http_proxy": "http://p", "AWS_ALLOW_HTTP": "true"}, "http://store.test/k") == "http://p"


def test_proxies_of_other_kinds_are_left_to_obstore() -> None:
    assert can_use("") and can_use("http://p:1")
    assert not can_use("socks5h://p:1") and not can_use("https://p:1")
