"""Tunnelled: connections to servers through proxies that pass bytes on: CONNECT of HTTP, SOCKS 5 (RFC 1928, 1929)."""

from __future__ import annotations

import base64
import contextlib
import http.client
import ipaddress
import os
import socket
import ssl
import struct
import urllib.parse
from typing import Final

from fffs.objects.proxies import Proxy

_LONGEST: Final = 64 << 10  # bytes of the answer of a proxy
_VERSION, _CONNECT, _PLAIN, _PASSWORD = 5, 1, 0, 2
_IPV4, _NAME, _IPV6 = 1, 3, 4
_NOT_PERMITTED: Final = 2  # by the rules of a SOCKS proxy
_PASSING: Final = (408, 425, 429)  # those of 4xx that may be other ones the next time


class TunnelError(OSError):
    """A proxy does not connect to the server. ``is_final``: it would refuse again."""

    def __init__(self, said: str, is_final: bool = False) -> None:
        super().__init__(f"{said}; see https_proxy and no_proxy")
        self.is_final = is_final


class Tunnelled(http.client.HTTPConnection):
    """A connection to a server through a proxy, with encryption if there is a context."""

    def __init__(self, proxy: Proxy, host: str, port: int, context: ssl.SSLContext | None) -> None:
        super().__init__(host, port)
        self._proxy, self._context = proxy, context
        self.default_port = 443 if context else 80  # which is not in the line Host

    def connect(self) -> None:
        """Open it. Raises OSError, such as TunnelError."""
        sock = socket.create_connection(self._proxy.address, self.timeout)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._proxy.scheme == "http":
                _ask_http(sock, self._proxy, self.host, self.port)
            else:
                _ask_socks(sock, self._proxy, self.host, self.port)
            self.sock = self._context.wrap_socket(sock, server_hostname=self.host) if self._context else sock
        except BaseException:
            sock.close()
            raise


def access_of(proxy: Proxy) -> str:
    """Return the value of Proxy-Authorization, or nothing."""
    return f"Basic {base64.b64encode(_user(proxy)).decode()}" if proxy.user else ""


def _user(proxy: Proxy) -> bytes:
    return urllib.parse.unquote_to_bytes(os.fsencode(proxy.user))


def _ask_http(sock: socket.socket, proxy: Proxy, host: str, port: int) -> None:
    place = f"[{host}]:{port}" if ":" in host else f"{host.encode('idna').decode()}:{port}"
    access = access_of(proxy)
    lines = [f"CONNECT {place} HTTP/1.1", f"Host: {place}", "User-Agent: fffs"]
    lines += [f"Proxy-Authorization: {access}"] if access else []
    sock.sendall("\r\n".join([*lines, "", ""]).encode("ascii"))
    answer = b""
    while b"\r\n\r\n" not in answer:  # nothing follows before the server is spoken to
        piece = sock.recv(_LONGEST)
        answer += piece
        if not piece or len(answer) > _LONGEST:
            raise TunnelError("the proxy does not speak HTTP")
    status = answer.split(b"\r\n", 1)[0].split(b" ")[1:2]
    if not answer.startswith(b"HTTP/1.") or not status or not status[0].isdigit() or len(status[0]) != 3:
        raise TunnelError("the proxy does not speak HTTP")
    if not status[0].startswith(b"2"):
        number = int(status[0])
        raise TunnelError(f"HTTP status {number} of the proxy", 400 <= number < 500 and number not in _PASSING)


def _ask_socks(sock: socket.socket, proxy: Proxy, host: str, port: int) -> None:
    methods = [_PLAIN, _PASSWORD] if proxy.user else [_PLAIN]
    sock.sendall(bytes([_VERSION, len(methods), *methods]))
    version, method = _receive(sock, 2)
    if version != _VERSION:
        raise TunnelError("the proxy does not speak SOCKS 5")
    if method not in methods:
        raise TunnelError("the SOCKS proxy wants a user and a password", True)
    if method == _PASSWORD:
        name, _, password = _user(proxy).partition(b":")
        name, password = name[:255], password[:255]
        sock.sendall(b"".join([bytes([1, len(name)]), name, bytes([len(password)]), password]))
        if _receive(sock, 2)[1]:
            raise TunnelError("the SOCKS proxy wants another user or password", True)
    sock.sendall(bytes([_VERSION, _CONNECT, 0]) + _address(proxy, host, port) + struct.pack(">H", port))
    _, refused, _, kind = _receive(sock, 4)
    if refused:
        raise TunnelError(f"the SOCKS proxy cannot connect (number {refused})", refused == _NOT_PERMITTED)
    _receive(sock, {_IPV4: 4, _IPV6: 16}.get(kind) or _receive(sock, 1)[0])
    _receive(sock, 2)


def _address(proxy: Proxy, host: str, port: int) -> bytes:
    """Return the address of a server for the proxy: its name with socks5h, otherwise its number."""
    if proxy.scheme != "socks5h":
        host = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
    with contextlib.suppress(ValueError):
        number = ipaddress.ip_address(host)
        return bytes([_IPV4 if number.version == 4 else _IPV6]) + number.packed
    name = host.encode("idna")
    return bytes([_NAME, len(name)]) + name


def _receive(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise TunnelError("the proxy does not speak SOCKS 5")
        data += piece
    return data
