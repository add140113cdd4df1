"""PathLike: what functions that want a path take."""

from __future__ import annotations

import os
from typing import Any

PathLike = str | bytes | os.PathLike[Any]
"""Names are bytes on Linux; as text they are those of ``os.fsdecode``."""
