"""Which proxy is asked for a URL: what libcurl does with the same variables."""

from __future__ import annotations

import base64
import errno
import subprocess
import urllib.parse
from collections.abc import Callable

import pytest
from inside import Proxy, can_use, proxy_of, redact, said_by, secrets_of, store_connection

from fffs.errors import ReadError, UsageError

PROXY = {"https_proxy": "http://proxy:3128"}
NO_PROXIES = [
    "http://joe:S3cret/x@proxy:3128",
    "http://joe:S3cret#x@proxy:3128",
    "http://joe:S3cret?x@proxy:3128",
    "http://joe:S3cret x@proxy:3128",
    "http://joe:S3cret@proxy:3128 ",
    "http://joe:S3cret@proxy:31x28",
    "http://joe:S3cret@proxy:3128:9",
    "http://joe:S3cret@",
    "http:/joe:S3cret@proxy:3128",
    "ftp://joe:S3cret@proxy:3128",
    "http://S3cret/x@proxy",
]


def found(environment: dict[str, str], url: str = "https://s3.store.test:9000/b/k") -> str:
    proxy = proxy_of(urllib.parse.urlsplit(url), environment)
    return f"{proxy.scheme}://{proxy.server}" if proxy else ""


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, ""),
        (PROXY, "http://proxy:3128"),
        ({"HTTPS_PROXY": "proxy:1"}, "http://proxy:1"),
        ({"ALL_PROXY": "socks5h://p:1"}, "socks5h://p:1"),
        ({**PROXY, "all_proxy": "http://other"}, "http://proxy:3128"),
        ({"https_proxy": "", "all_proxy": "http://other"}, "http://other:1080"),
        ({"http_proxy": "http://other"}, ""),
        ({"https_proxy": "HTTP://joe:p[a@ss@[::1]:3128/"}, "http://[::1]:3128"),
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
    for host in ("127.0.0.1:9000", "localhost", "[::1]:9", "127.1.2.3"):
        for name in ("http_proxy", "all_proxy"):
            assert found({name: "http://p", "AWS_ALLOW_HTTP": "true"}, f"http://{host}/k") == ""
    assert found({"http_proxy": "http://p", "AWS_ALLOW_HTTP": "true"}, "http://store.test/k") == "http://p:1080"


@pytest.mark.parametrize("given", [{}, {"no_proxy": "a"}, {"NO_PROXY": "a"}, {"no_proxy": "a", "NO_PROXY": "b"}])
def test_obstore_is_told_the_same_hosts_by_either_name(given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, str]] = []

    def start(*arguments: object, env: dict[str, str], **options: object) -> None:
        told.append(env)
        raise OSError(errno.ENOEXEC, "not started")

    monkeypatch.setattr(subprocess, "Popen", start)
    for allowed in ("", "true"):
        with pytest.raises(ReadError):
            store_connection.StoreConnection({**given, "AWS_ALLOW_HTTP": allowed})
        for name in ("no_proxy", "NO_PROXY"):
            assert told[-1][name].startswith("a,localhost," if given else "localhost,")
    with pytest.raises(ReadError):
        store_connection.StoreConnection({"NO_PROXY": "*"})
    assert told[-1]["no_proxy"] == told[-1]["NO_PROXY"] == "*"


def test_proxies_of_other_kinds_are_left_to_obstore() -> None:
    assert can_use(None) and can_use(Proxy("http", "", "p:1"))
    assert can_use(Proxy("socks5h", "", "p:1"))
    assert not can_use(Proxy("socks4", "", "p:1")) and not can_use(Proxy("https", "", "p:1"))


@pytest.mark.parametrize("address", NO_PROXIES)
def test_what_is_no_address_of_a_proxy_is_refused_without_being_shown(address: str) -> None:
    with pytest.raises(UsageError, match=r"https_proxy is not the address of a proxy") as raised:
        found({"https_proxy": address})
    assert "cret" not in str(raised.value)
    assert found({"https_proxy": address, "no_proxy": "*"}) == ""


@pytest.mark.parametrize("name", ["https_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("show", [str, lambda address: f"port: '{address[11:19]}'", lambda address: address[20:28]])
def test_passwords_of_proxies_are_in_no_message(
    monkeypatch: pytest.MonkeyPatch, name: str, show: Callable[[str], str]
) -> None:
    address = "http://joe:Secret-1/Secret-2 x@proxy:3128"
    monkeypatch.setenv(name, address)
    assert "Secret" not in redact(show(address), secrets_of({name: address}))
    assert "Secret" not in said_by(OSError(show(address)))


def test_nor_are_users_of_any_url_or_what_a_proxy_is_sent() -> None:
    secrets = secrets_of({"https_proxy": "http://joe:pw@proxy"})
    assert redact(f"{base64.b64encode(b'joe:pw').decode()} http://u:p@h/b ", secrets) == "… http://…@h/b"
    assert redact("as http://USER:PASSWORD@HOST", secrets) == "as http://USER:PASSWORD@HOST"
