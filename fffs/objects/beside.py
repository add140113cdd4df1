"""Objects that belong to another one and may not exist, as its checksums: which failures mean that there is none."""

from __future__ import annotations

import errno
import importlib
import re
import urllib.parse
from functools import partial
from typing import Any, Final

from fffs.base.text import is_page
from fffs.errors import AccessError, FffsError, SourceNotFoundError
from fffs.objects.http_settings import deadline
from fffs.objects.names import is_plain_allowed
from fffs.objects.transfer import State

_CODE: Final = re.compile(r"<Code>([^<]*)</Code>", re.IGNORECASE)
_HEAD: Final = 512  # bytes by which a page is known
_FORBIDDEN: Final = 403
_REDIRECTIONS: Final = 5  # as the engine follows
_NO_RANGES: Final = "does not support reading ranges"


class HiddenError(AccessError):
    """A store refuses access, perhaps because there is no such object.

    S3 and others answer so for each key that does not exist, if the credentials do not include the right to list.
    """


def is_hidden(state: State) -> bool:
    """Whether the last failure is one of these, and not one of a signature, a clock or an account."""
    code = _CODE.search(state.text)
    return state.status == _FORBIDDEN and (code is None or code[1] == "AccessDenied")


def means_none(error: FffsError, url: str, is_web: bool) -> bool:
    """Whether the failure to open an object that nobody named means that there is none.

    is_web: of a web server. Some of these answer with a page, for which they know no ranges.
    """
    if isinstance(error, (SourceNotFoundError, HiddenError)):
        return True
    has_no_ranges = getattr(error, "errno", None) == errno.EPROTO and _NO_RANGES in str(error)
    return is_web and has_no_ranges and _is_page(url)


def _is_page(url: str) -> bool:
    """Whether a web server answers with a page, or leads to one.

    Some know no ranges for small files, or none behind their end.
    """
    sending = importlib.import_module("fffs.objects.sending")
    sender = sending.Sender()
    try:
        for _ in range(1 + _REDIRECTIONS):
            reply = sender.send("GET", partial(str, url), deadline=deadline(), longest=_HEAD)
            target = _target(url, reply)
            if not target:
                break
            url = target
    except (sending.NotSentError, ValueError):  # the latter of an address that is none
        return False
    finally:
        sender.close()
    return bool(200 <= reply.status < 300 and is_page(reply.body))


def _target(url: str, reply: Any) -> str:
    """Return where a redirection leads to, as far as the engine would follow it; else an empty string."""
    location = reply.headers.get("location", "") if 300 <= reply.status < 400 else ""
    target = urllib.parse.urlsplit(urllib.parse.urljoin(url, location))
    may_be_plain = urllib.parse.urlsplit(url).scheme == "http" and is_plain_allowed(target.netloc)
    follows = location and (target.scheme == "https" or (target.scheme == "http" and may_be_plain))
    return target._replace(fragment="").geturl() if follows else ""
