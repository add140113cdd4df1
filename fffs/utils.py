"""The functions of ``ffrecord.utils``, which write an indexable object as record files."""

from __future__ import annotations

from fffs.packing.dump import dump, plan_parts

__all__ = ["dump", "plan_parts"]
