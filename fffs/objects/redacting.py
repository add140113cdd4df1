"""Messages without secrets: everything that leaves the store process passes here."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import Final

from fffs.base.url_secrets import SHORTEST, proxy_secrets, without_users

LONGEST: Final = 300
_SECRET_NAMES: Final = re.compile(r"(?:SECRET|TOKEN|PASSWORD|SAS|(?:ACCOUNT|ACCESS|MASTER)_KEY)(?!.*_(?:FILE|ID|URI)$)")
_QUERY: Final = re.compile(r"""(?<=\S)\?[^\s"'<>)\]]*""")
_AWS_FIELDS: Final = re.compile(r"""(?:X-Amz|X-Goog)-[A-Za-z-]+=[^\s"'<>)&]*|(?<=[?&])sig=[^\s"'<>)&]*""")
_CODE: Final = re.compile(r"<Code>([^<]*)</Code>")
_TEXT: Final = re.compile(r"<Message>([^<]*)</Message>")


def secrets_of(settings: Mapping[str, str]) -> list[str]:
    """Return the values of variables that are secrets, by their names, and those of proxies, the longest first."""
    found = {value for name, value in settings.items() if _SECRET_NAMES.search(name.upper()) and len(value) >= SHORTEST}
    return sorted(found.union(proxy_secrets(settings)), key=len, reverse=True)


def redact(text: str, secrets: list[str]) -> str:
    """Return a message as one line, without queries, users and passwords of URLs, and without secrets."""
    text = text.partition("\n\nDebug source")[0]
    code, sentence = _CODE.search(text), _TEXT.search(text)
    if code:  # the body of the store's answer may hold what was signed: only its code and its sentence are shown
        said = html.unescape(sentence[1]).partition("RequestId:")[0].strip() if sentence else ""
        text = text.partition("<")[0] + code[1] + (f": {said}" if said else "")
    for secret in secrets:
        text = text.replace(secret, "…")
    text = _AWS_FIELDS.sub("…", _QUERY.sub("?…", without_users(text)))
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"
