"""Shared access signatures of Azure: the queries that let anybody read one object for some time.

obstore makes them as well, but signs the encoded name of the object, where Azure wants the decoded one: objects with
spaces or accents in their names could not be read.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import urllib.parse
from typing import Final

from fffs.errors import UsageError

VERSION: Final = "2023-11-03"
"""The version of Azure's interface that defines what is signed."""


def sas_query(account: str, account_key: str, container: str, key: str, start: str, end: str) -> str:
    """Return the query of a URL with which an object can be read.

    Args:
        account: the name of the account.
        account_key: its key, in base64.
        container: the container of the object.
        key: the name of the object, as it is.
        start: the time from which the query is valid, like 2030-12-31T23:59:59Z.
        end: the time until which it is valid.

    Raises:
        UsageError: the key of the account is not base64.

    """
    try:
        secret = base64.b64decode(account_key, validate=True)
    except (binascii.Error, ValueError):
        raise UsageError("AZURE_STORAGE_ACCOUNT_KEY is not base64") from None
    resource = f"/blob/{account}/{container}/{key}"
    # The empty ones are: identifier, address, protocol; then snapshot, encryption, and five headers of the answer.
    signed = ["r", start, end, resource, "", "", "", VERSION, "b", "", "", "", "", "", "", ""]
    signature = base64.b64encode(hmac.digest(secret, "\n".join(signed).encode(), "sha256")).decode()
    return urllib.parse.urlencode({"st": start, "sr": "b", "sv": VERSION, "sp": "r", "se": end, "sig": signature})
