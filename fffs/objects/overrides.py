"""Options about stores as variables of the environment, which programs and daemons set for themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Final

from fffs.base.cache_settings import SIZE, SWITCH, cache_name
from fffs.base.paths import absolute_path
from fffs.base.sizes import parse_budget
from fffs.errors import UsageError
from fffs.objects.names import check_endpoint


def environment_of(cache: str, cache_size: str | int, endpoint_url: str) -> dict[str, str]:
    """Return the variables that say the same. Empty options say nothing.

    Raises:
        UsageError: an option is wrong.

    """
    variables = {SWITCH: cache_name(cache)} if cache else {}
    if cache_size != "":
        try:
            parse_budget(cache_size)
        except ValueError as error:
            raise UsageError(f"the size of the cache: {error}") from None
        variables[SIZE] = str(cache_size)
    if endpoint_url:
        check_endpoint(endpoint_url, "the endpoint")
        # The second variable would make the first one ineffective.
        variables |= {"AWS_ENDPOINT_URL_S3": endpoint_url, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "false"}
    return variables


_PATHS: Final = frozenset(
    {
        "AWS_CA_BUNDLE",
        "AWS_CONFIG_FILE",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        "AWS_SHARED_CREDENTIALS_FILE",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AZURE_FEDERATED_TOKEN_FILE",
        "CLOUDSDK_CONFIG",
        "CURL_CA_BUNDLE",
        "FSSPEC_CONFIG_DIR",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GOOGLE_SERVICE_ACCOUNT",
        "GOOGLE_SERVICE_ACCOUNT_PATH",
        "HF_HOME",
        "HOME",
        "REQUESTS_CA_BUNDLE",
        "SSL_CERT_DIR",  # may be several
        "SSL_CERT_FILE",
        "TMPDIR",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
        "XDG_STATE_HOME",
    }
)


def with_absolute_paths(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables that name the same files in every folder, as for a daemon, which has none."""
    found = dict(environment)
    with contextlib.suppress(OSError):  # the current folder was removed: relative paths lead nowhere
        for name in _PATHS & found.keys():
            parts = found[name].split(":") if name == "SSL_CERT_DIR" else [found[name]]
            found[name] = ":".join(absolute_path(part) if part and part[0] not in "/~" else part for part in parts)
    return found
