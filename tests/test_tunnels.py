"""Requests through proxies: CONNECT of HTTP, and SOCKS 5, with and without a password, and what they refuse."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from connect_proxy import ConnectProxy, SocksProxy, proxying
from inside import NewObject, Proxy, Sender, Tunnelled, list_objects, object_client, parse_url
from object_server import ObjectServer, serving
from test_objects_tls import GOOD, _certificate, _context
from weed import clear_environment

import fffs
from fffs.errors import UsageError

KINDS = {"http": ConnectProxy, "socks5": SocksProxy, "socks5h": SocksProxy}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _certificate(tmp_path_factory.mktemp("good"), "localhost", *GOOD)


@pytest.fixture
def server(good: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    for name in ("HTTPS_PROXY", "no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(good))
    with serving(tls=_context(good)) as found:
        yield found


def put(server: ObjectServer, patience: float = 1.0) -> int:
    sender = Sender()
    try:
        return int(sender.send("PUT", lambda: f"{server.url}/b/k?X-Amz-Signature=secret", b"abc", {}, patience).status)
    finally:
        sender.close()


@pytest.mark.parametrize("access", ["", "me:pa:ss/word"])
@pytest.mark.parametrize("scheme", KINDS)
def test_a_proxy_that_connects(server: ObjectServer, monkeypatch: pytest.MonkeyPatch, scheme: str, access: str) -> None:
    with proxying(KINDS[scheme]) as proxy:
        proxy.access = access
        user = f"{access.replace('pa:ss/', 'pa%3Ass%2F')}@" if access else ""
        monkeypatch.setenv("https_proxy", f"{scheme}://{user}{proxy.address}")
        assert put(server) == 200
        place = server.url.removeprefix("https://")
        kind = {"http": f"CONNECT {place} HTTP/1.1"}.get(scheme, f"1 {place}")
        assert proxy.lines == [kind]
    assert server.objects["/b/k"] == b"abc"
    assert server.requests[-1].headers["Host"] == place


def test_a_name_is_looked_up_by_a_proxy_that_is_to_do_it() -> None:
    with proxying(SocksProxy) as proxy, serving() as server:
        port = int(server.url.rpartition(":")[2])
        for scheme, line in (("socks5h", f"3 localhost:{port}"), ("socks5", f"1 127.0.0.1:{port}")):
            connection = Tunnelled(Proxy(scheme, "", proxy.address), "localhost", port, None)
            try:
                connection.request("PUT", "/b/k", b"abc")
            except ConnectionRefusedError:  # localhost is ::1 first, which this server does not have
                pytest.fail("the server was not asked")
            assert connection.getresponse().status == 200
            connection.close()
            assert proxy.lines.pop() in (line, f"4 ::1:{port}")


@pytest.mark.parametrize("scheme", KINDS)
def test_an_address_of_ipv6(scheme: str) -> None:
    with proxying(KINDS[scheme]) as proxy, pytest.raises((OSError, EOFError)):
        proxy.status = 200
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as closed:
            port = closed.getsockname()[1]
        connection = Tunnelled(Proxy(scheme, "", proxy.address), "::1", port, None)
        connection.request("GET", "/")
        connection.getresponse()
    assert proxy.lines == [f"CONNECT [::1]:{port} HTTP/1.1" if scheme == "http" else f"4 ::1:{port}"]


REFUSALS = [
    ("http", "", 407, "HTTP status 407 of the proxy"),
    ("http", "", 403, "HTTP status 403 of the proxy"),
    ("socks5", "", 2, "the SOCKS proxy cannot connect .number 2"),
    ("socks5", "other:pass", 200, "the SOCKS proxy wants another user or password"),
    ("socks5", "none", 200, "the SOCKS proxy wants a user and a password"),
]


@pytest.mark.parametrize(("scheme", "access", "status", "message"), REFUSALS, ids=range(len(REFUSALS)))
def test_what_a_proxy_refuses_is_an_error_at_once(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, scheme: str, access: str, status: int, message: str
) -> None:
    with proxying(KINDS[scheme]) as proxy:
        proxy.access, proxy.status = access, status
        user = "" if access == "none" else "me:ss-word@"
        monkeypatch.setenv("https_proxy", f"{scheme}://{user}{proxy.address}")
        begin = time.monotonic()
        with pytest.raises(OSError, match=message) as raised:
            put(server, 60)
        assert time.monotonic() - begin < 5
    assert "ss-word" not in str(raised.value) and "secret" not in str(raised.value)
    assert "see https_proxy" in str(raised.value)


@pytest.mark.parametrize("scheme", KINDS)
@pytest.mark.parametrize("answer", [b"", b"hello\r\n\r\n", b"HTTP/1.1\r\n\r\n", b"\x04\x00", b"\x05\x00\x05\x00"])
def test_what_is_no_proxy(server: ObjectServer, monkeypatch: pytest.MonkeyPatch, scheme: str, answer: bytes) -> None:
    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                client.recv(100)
                client.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        monkeypatch.setenv("https_proxy", f"{scheme}://127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(OSError, match=r"the proxy does not speak|reset|Broken pipe"):
            put(server, 0.5)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_the_certificate_of_a_proxy_is_trusted_as_those_of_servers(
    server: ObjectServer, good: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with fffs.FileWriter(tmp_path / "r.ffr", 1) as writer:
        writer.write_one(b"record")
    url = server.put("r.ffr", (tmp_path / "r.ffr").read_bytes())
    context: ssl.SSLContext = _context(good)
    with proxying(tls=context) as proxy:
        monkeypatch.setenv("https_proxy", f"https://{proxy.address}")
        with fffs.FileReader(url, cache="off") as reader:
            assert bytes(reader.read_one(0)) == b"record"
        assert proxy.lines


@pytest.mark.parametrize("url", ["s3://b/folder/", "gs://b/folder/", "az://b/folder/"])
def test_what_only_obstore_can_ask_for_goes_through_no_proxy_of_socks(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clear_environment(monkeypatch, tmp_path)
    scheme = "socks4" if url.startswith("s3") else "socks5h"
    for name, value in {
        "https_proxy": f"{scheme}://127.0.0.1:9",
        **{f"{store}_SKIP_SIGNATURE": "true" for store in ("AWS", "GOOGLE", "AZURE")},
        "AZURE_STORAGE_ACCOUNT_NAME": "a",
    }.items():
        monkeypatch.setenv(name, value)
    try:
        for act in (lambda: list(list_objects(parse_url(url), False)), lambda: NewObject(f"{url}x")):
            with pytest.raises(UsageError, match="through a proxy of SOCKS, objects are only read"):
                act()
    finally:
        object_client._owner.end()
