"""The files of Google's credentials."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from fffs.objects.aws_profile import stamp

_DEFAULT: Final = "~/.config/gcloud/application_default_credentials.json"
_NAMED: Final = ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT")  # the latter as obstore has it


def has_default_credentials() -> bool:
    """Whether there is the file that gcloud writes."""
    return os.path.exists(os.path.expanduser(_DEFAULT))


def google_stamps(environment: Mapping[str, str]) -> tuple[object, ...]:
    """Return what changes when a file of credentials does."""
    named = filter(None, map(environment.get, _NAMED))
    return tuple(stamp(path) for path in (os.path.expanduser(_DEFAULT), *named))
