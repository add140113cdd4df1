"""Signs requests of S3 in their URLs, with version 4 of AWS's signatures.

obstore signs URLs of whole objects only. Parts of an upload are named in the query, which belongs to the signature.
"""

from __future__ import annotations

import hashlib
import hmac
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Final

_ALGORITHM: Final = "AWS4-HMAC-SHA256"


@dataclass(frozen=True)
class Keys:
    """What signs: keys, and the region. ``token`` is empty for keys that are not temporary."""

    key_id: str
    secret: str = field(repr=False)
    token: str = field(repr=False)
    region: str


def sign_request(keys: Keys, method: str, url: str, query: Mapping[str, str], seconds: int = 3600) -> str:
    """Return the URL of a request.

    Args:
        keys: what signs.
        method: the method, as ``PUT``. Headers and the body are not signed.
        url: the URL of the object, or the bucket, without a query, encoded as S3 wants it.
        query: what the request asks for.
        seconds: for how long the URL is valid.

    """
    now = datetime.now(timezone.utc)
    time, scope = f"{now:%Y%m%dT%H%M%SZ}", f"{now:%Y%m%d}/{keys.region}/s3/aws4_request"
    parts = urllib.parse.urlsplit(url)
    signed = {
        "X-Amz-Algorithm": _ALGORITHM,
        "X-Amz-Credential": f"{keys.key_id}/{scope}",
        "X-Amz-Date": time,
        "X-Amz-Expires": str(seconds),
        "X-Amz-SignedHeaders": "host",
        **({"X-Amz-Security-Token": keys.token} if keys.token else {}),
        **query,
    }
    text = "&".join(f"{_quote(name)}={_quote(value)}" for name, value in sorted(signed.items()))
    request = f"{method}\n{parts.path or '/'}\n{text}\nhost:{parts.netloc}\n\nhost\nUNSIGNED-PAYLOAD"
    statement = f"{_ALGORITHM}\n{time}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{keys.secret}".encode()
    for step in scope.split("/"):
        key = hmac.digest(key, step.encode(), "sha256")
    return f"{url}?{text}&X-Amz-Signature={hmac.digest(key, statement.encode(), 'sha256').hex()}"


def _quote(text: str) -> str:
    return urllib.parse.quote(text, safe="-_.~")
