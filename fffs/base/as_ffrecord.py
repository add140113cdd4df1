"""Whether this package stands in for ffrecord in this process: checksum errors then have ffrecord's words."""

from __future__ import annotations

import os
import sys
from typing import Final

STANDIN: Final = os.path.join(os.path.dirname(os.path.dirname(__file__)), "standin")
"""The folder in which ``import ffrecord`` finds this package. Spawned processes inherit it with ``sys.path``."""


def is_installed() -> bool:
    """Return whether ``install_as_ffrecord`` was called in this process, or in the one that spawned it."""
    return STANDIN in sys.path
