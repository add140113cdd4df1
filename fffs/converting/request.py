"""Request: the arguments of a conversion; Content and Result: what is read and written."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Content(enum.Enum):
    """What is read from a source. Messages use the values."""

    ARCHIVE = "an archive"
    FOLDER = "a folder"
    ROWS = "a data set of several keys, or with sequences,"
    COLUMN = "a data set of one key"
    PACKED_ROWS = "a packed data set"
    PACK = "a packed folder"
    RECORDS = "records"
    ITEMS = "a table"


class Result(enum.Enum):
    """What is written: a packed folder, a data set, record files, or files in the format of another library."""

    PACK = enum.auto()
    DATA_SET = enum.auto()
    FILES = enum.auto()
    EXPORT = enum.auto()


@dataclass(frozen=True)
class Request:
    """The arguments of ``fffs.convert``. ``target`` has no slash at its end."""

    source: str
    target: str
    from_: str | None = None
    prefix: str | None = None
    to: str | None = None
    layout: str | None = None
    key: str | None = None
    column: str | None = None
    parts: int | None = None
    part_size: int | None = None
    jobs: int | None = None
    verify: bool = False
    force: bool = False
    align: bool = False
    verity: bool = False

    @property
    def bag_layout(self) -> str:
        """The layout of Bags and data sets."""
        return self.layout or "v1"

    @property
    def key_name(self) -> str:
        """The key that is made of records."""
        return "data" if self.key is None else self.key

    @property
    def for_packs(self) -> str:
        """An option that is given and that only packed folders have, or an empty text."""
        return "--align" if self.align else "--verity" if self.verity else ""

    @property
    def split(self) -> bool:
        """Whether the result is divided into parts."""
        return self.parts is not None or self.part_size is not None
