"""Sends requests with bodies over HTTP. Reading is in C (``native/remote.c``): it needs many small requests at once."""

from __future__ import annotations

import contextlib
import errno
import http.client
import os
import random
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fffs.objects.aws_profile import certificates_file
from fffs.objects.proxies import proxy_of
from fffs.objects.redacting import redact, secrets_of
from fffs.objects.tunnels import TunnelError, Tunnelled, access_of

_PIECE: Final = 256 << 10  # bytes per send(2); the time limit holds for each
_PATIENCE: Final = 30.0  # seconds without progress, at most
_SHORTEST: Final = 5.0  # the same, at least
_LATEST: Final = 5.0  # seconds between two attempts, at most
LONGEST: Final = 1 << 20
"""Bytes of an answer that are read."""
AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_CODES: Final = tuple(
    b"<Code>%b<" % code
    for code in (
        *(b"RequestTimeout", b"BadDigest", b"IncompleteBody", b"InternalError"),
        *(b"SlowDown", b"ServiceUnavailable"),  # of single keys, when many are deleted
        *(b"ConditionalRequestConflict", b"OperationAborted"),  # of status 409: another request is in progress
    )
)


class NotSentError(OSError):
    """There was no answer to a request. The message says why, without its URL."""


class NotConnectedError(NotSentError):
    """There was no connection to send a request over."""


class ProxyError(NotSentError):
    """A proxy refuses to connect to the server, and would refuse again."""


class CancelledError(Exception):
    """Another thread has called ``Sender.cancel``."""


@dataclass(frozen=True)
class Reply:
    """An answer. The names of ``headers`` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_good(self) -> bool:
        """Whether the server did what it was asked for. S3 may report an error of a long request after status 200."""
        return 200 <= self.status < 300 and b"<Error>" not in self.body[:1000]

    @property
    def is_worth_another(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in AGAIN or (not self.is_good and any(code in self.body for code in _CODES))

    def describe(self) -> str:
        """Return the status and the body, from which ``redact`` takes what is shown."""
        return f"HTTP status {self.status}: {self.body.decode(errors='replace')}"


class Sender:
    """One connection, which is kept between requests. For one thread, except ``cancel``; not for a child of fork."""

    def __init__(self) -> None:
        self._connection: http.client.HTTPConnection | None = None
        self._place, self._is_reused = "", False
        self._cancelled = threading.Event()

    def send(
        self,
        method: str,
        make_url: Callable[[], str],
        body: Any = b"",
        headers: Mapping[str, str] | None = None,
        deadline: float = 60.0,
        longest: int = LONGEST,
        silence: float | None = None,
        is_strict: bool = False,
    ) -> Reply:
        """Send a request until the server takes or refuses it, or for about ``deadline`` seconds of failures.

        Args:
            method: the method.
            make_url: returns the URL, for each attempt: signatures end.
            body: any contiguous bytes.
            headers: further headers.
            deadline: seconds.
            longest: bytes of the answer that are read.
            silence: the deadline while there was no connection to the server, if it is to be another one.
            is_strict: nothing is sent after the deadline. By default, what failed over a connection that was used
                before, which the server may have closed, is sent once more.

        Returns:
            The last answer, whatever its status.

        Raises:
            NotSentError: there is no answer.
            UsageError: the environment names a proxy that is none.
            CancelledError: see ``cancel``.

        """
        begin, wait, limit = time.monotonic(), 0.1, deadline if silence is None else min(silence, deadline)
        while True:
            failure: NotSentError | None = None
            url = make_url()
            if self._cancelled.is_set():
                raise CancelledError
            try:
                left = begin + deadline - time.monotonic()
                reply = self._try(method, url, memoryview(body).cast("B"), headers or {}, longest, left)
                if not reply.is_worth_another:
                    return reply
            except ProxyError:
                raise
            except NotSentError as error:
                failure = error
            if not isinstance(failure, NotConnectedError):
                limit = deadline
            now = time.monotonic()
            if failure is not None and self._is_reused and not (is_strict and now > begin + limit):
                continue
            if self._cancelled.is_set():
                raise CancelledError
            if now + wait > begin + limit:
                if failure is not None:
                    raise failure
                return reply
            if self._cancelled.wait(wait * random.uniform(0.5, 1)):
                raise CancelledError
            wait = min(wait * 2, _LATEST)

    def cancel(self) -> None:
        """End a request in another thread."""
        self._cancelled.set()
        connection = self._connection
        sock = connection.sock if connection is not None else None
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection. May be called again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self, url: urllib.parse.SplitResult, place: str, left: float) -> http.client.HTTPConnection:
        """Return a connection that is open. left: seconds until the deadline of the request."""
        if self._connection is None or self._place != place:
            self.close()
            self._connection, self._place = _connect(url), place
        sock, seconds = self._connection.sock, min(_PATIENCE, max(_SHORTEST, left))
        self._is_reused = sock is not None
        if sock is not None:
            sock.settimeout(seconds)
        else:
            self._connection.timeout = seconds
            self._connection.connect()
        return self._connection

    def _try(
        self, method: str, url: str, body: memoryview, headers: Mapping[str, str], longest: int, left: float
    ) -> Reply:
        parts, is_open = urllib.parse.urlsplit(url), False
        place = f"{parts.scheme}://{parts.netloc}"
        try:
            connection = self._open(parts, place, left)
            is_open = True
            target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
            if isinstance(connection, _Proxied):
                target = place + target
                headers = {**headers, **connection.access}
            headers = {"Content-Length": str(len(body)), "User-Agent": "fffs", **headers}
            pieces: Any = _Pieces(body)
            connection.request(method, target, pieces, headers)
            answer = connection.getresponse()
            data = answer.read(longest)
            if answer.length and len(data) < longest:  # read(amount) does not tell
                raise http.client.IncompleteRead(data, answer.length)
            if not answer.isclosed():
                self.close()
            return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, data)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            is_refused = isinstance(error, TunnelError) and error.is_final
            kind = ProxyError if is_refused else NotSentError if is_open else NotConnectedError
            raise kind(_number(error), f"{parts.netloc}: {_said(error)}") from None


class _Pieces:
    """A body that is sent in pieces, because a time limit holds for each call."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0

    def read(self, _: int = -1) -> memoryview:
        piece = self._data[self._at : self._at + _PIECE]
        self._at += len(piece)
        return piece


class _Proxied(http.client.HTTPConnection):
    """A connection to a proxy, which is asked for whole URLs. ``access``: header lines for the proxy."""

    access: Mapping[str, str] = {}


def _connect(url: urllib.parse.SplitResult) -> http.client.HTTPConnection:
    """Return a connection that is not open yet, through the proxy that the environment names, if any.

    Raises UsageError.
    """
    secure, proxy = url.scheme == "https", proxy_of(url, os.environ)
    if proxy and (secure or proxy.scheme != "http"):
        port = url.port or (443 if secure else 80)
        return Tunnelled(proxy, url.hostname or "", port, _context() if secure else None)
    if proxy:
        proxied = _Proxied(proxy.server)
        access = access_of(proxy)
        proxied.access = {"Proxy-Authorization": access} if access else {}
        return proxied
    if secure:
        return http.client.HTTPSConnection(url.netloc, context=_context())
    return http.client.HTTPConnection(url.netloc)


def _context() -> ssl.SSLContext:
    """Return what decides whom to trust, as libcurl does for reads."""
    context = ssl.create_default_context()  # SSL_CERT_FILE and SSL_CERT_DIR are taken into account
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # which Python 3.13 sets
    if bundle := certificates_file(os.environ):
        context.load_verify_locations(bundle)
    return context


def _number(error: BaseException) -> int:
    if isinstance(error, TimeoutError):
        return errno.ETIMEDOUT
    number = error.errno if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) else None
    return number if isinstance(number, int) and number > 0 else errno.EIO


def _said(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}); see AWS_CA_BUNDLE"
    text = getattr(error, "strerror", None) or redact(str(error), secrets_of(os.environ))  # may repeat the request
    return text if text else type(error).__name__
