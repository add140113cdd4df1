"""What messages must not contain of URLs: users with their passwords, and those of the proxies that are used."""

from __future__ import annotations

import base64
import re
import urllib.parse
from collections.abc import Mapping
from typing import Final

SHORTEST: Final = 8
"""Characters of a secret. A shorter one would be found in words that are none."""

_USER: Final = re.compile(r"//(?!USER:PASSWORD@)[^/\s]*@")  # but not of what messages advise
_ENDS: Final = re.compile(r"[/:?#@\s]+")


def without_users(text: str) -> str:
    """Return a text without the users and passwords of the URLs in it."""
    return _USER.sub("//…@", text)


def proxy_secrets(settings: Mapping[str, str]) -> list[str]:
    """Return the users and passwords of the proxies that variables name, the longest first.

    So too their parts, because libraries take a character such as a slash in a password for its end.
    """
    found: set[str] = set()
    for name, value in settings.items():
        user = (value.partition("://")[2] or value).rpartition("@")[0] if name.lower().endswith("_proxy") else ""
        if not user:
            continue
        password = user.partition(":")[2] or user
        decoded = urllib.parse.unquote_to_bytes(user.encode(errors="surrogateescape"))
        parts = {password, urllib.parse.unquote(password), *_ENDS.split(password)}
        found |= {f"{user}@", base64.b64encode(decoded).decode(), *(part for part in parts if len(part) >= SHORTEST)}
    return sorted(found, key=len, reverse=True)
