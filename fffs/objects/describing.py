"""Errors of obstore as one line that says what to do, without what must not leave the store process."""

from __future__ import annotations

import errno
import re
from typing import Final

from fffs.errors import AccessError, UsageError
from fffs.objects.protocol import Message
from fffs.objects.redacting import redact

CHECK: Final = {
    "s3": "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, what they permit, and the machine's "
    "clock; AWS_SKIP_SIGNATURE=true reads public buckets",
    "gs": "check GOOGLE_APPLICATION_CREDENTIALS and what they permit; GOOGLE_SKIP_SIGNATURE=true reads public buckets",
    "az": "check AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN and what they permit; "
    "AZURE_SKIP_SIGNATURE=true reads public containers",
}
"""What to do if a store refuses access, by scheme."""

_DENIED: Final = ("PermissionDeniedError", "UnauthenticatedError")
_MISSING: Final = ("FileNotFoundError", "NotFoundError")
# Where machines and containers in a cloud ask for their credentials.
_ROLE: Final = ("//169.254.169.254", "//169.254.170.2", "//metadata.google.internal", "token request", "POST REDACTED")
STATUS: Final = re.compile(r"status(?: code:)? (\d{3})")
_TOKEN: Final = re.compile(r"<Code>(?:ExpiredToken|InvalidToken|TokenRefreshRequired)<")  # of status 400
_REQUEST: Final = re.compile(r"^.*?Error performing [A-Z]+ (\w+://[^/\s]+|REDACTED)\S* in .*? - ", re.DOTALL)
_NON_2XX: Final = "Server returned non-2xx status code: "
_REASONS: Final = (
    (re.compile(r"\bConnectionRefused\b"), errno.ECONNREFUSED, "nothing answers at {}"),
    (re.compile(r"failed to lookup address"), errno.EHOSTUNREACH, "the name of {} is not known"),
    (re.compile(r"\bInvalidCertificate\b"), errno.EIO, "the certificate of {} is not trusted (see AWS_CA_BUNDLE)"),
    (re.compile(r"\b(?:TimedOut|kind: Timeout)\b"), errno.ETIMEDOUT, "{} does not answer in time"),
    (
        re.compile(r"\bTunnelUnsuccessful\b"),
        errno.EIO,
        "the proxy does not connect to {}; see https_proxy and no_proxy",
    ),
    (
        re.compile(r"\bProxyAuthRequired\b"),
        errno.EIO,
        "the proxy wants another user or password for {}, as in https_proxy=http://USER:PASSWORD@HOST:PORT",
    ),
    (re.compile(r"\bkind: Connect\b"), errno.EIO, "cannot connect to {}"),
)
_NO_ANSWER: Final = {errno.ECONNREFUSED: "nothing answers at {}", errno.ETIMEDOUT: "{} does not answer in time"}


class ObjectExistsError(Exception):
    """There is an object of that key, which was not to be replaced."""


def describe(error: BaseException, scheme: str, secrets: list[str]) -> Message:
    """Return an error as the answer of the store process.

    ``error`` is its kind: usage, access, missing, exists or read; ``message`` is one line, ``errno`` a number for
    ReadError.
    """
    whole = str(error)
    said, _, debug = whole.partition("\n\nDebug source")
    status = STATUS.search(said)
    kind = _kind(error, said, status[1] if status else "")
    number, text = errno.EIO, said
    request = _REQUEST.match(said)
    if request:
        text = said[request.end() :].replace(_NON_2XX, "")
        if status is None:
            number, reason = next(((n, r) for p, n, r in _REASONS if p.search(debug)), (number, text))
            text = reason.replace("{}", request[1].replace("REDACTED", "the service for tokens"))
    elif isinstance(error, OSError) and error.strerror:  # NotSentError
        kind, number, text = "read", error.errno or number, error.strerror
        place = text.partition(": ")[0]
        text = _NO_ANSWER.get(number, text).replace("{}", place)
    message = redact(text, secrets) or type(error).__name__
    if kind == "access":
        if any(place in said for place in _ROLE):
            message = f"no credentials were found ({message})"
        message = f"{message.rstrip('.')}; {CHECK.get(scheme, '')}"
    return {"error": kind, "message": message, "errno": number}


def is_denied(status: str, said: str) -> bool:
    """Whether an answer of this status and text means that the credentials are refused."""
    return status in ("401", "403") or (status == "400" and _TOKEN.search(said) is not None)


def _kind(error: BaseException, said: str, status: str) -> str:
    name = type(error).__name__
    if isinstance(error, UsageError):
        return "usage"
    if isinstance(error, ObjectExistsError):
        return "exists"
    if isinstance(error, AccessError) or name in _DENIED or is_denied(status, said):
        return "access"
    if any(place in said for place in _ROLE):  # there is no role, or it gave no credentials
        return "access"
    return "missing" if name in _MISSING or status == "404" else "read"
