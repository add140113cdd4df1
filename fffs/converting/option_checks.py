"""Checks of options: refuses, before anything is written, an option that has no effect on a conversion."""

from __future__ import annotations

from fffs.converting.foreign.exports import Export
from fffs.converting.request import Content, Request, Result
from fffs.errors import UsageError
from fffs.formats.table import Format


def refuse_unused(request: Request, content: Content, result: Result, written: Format | Export | None) -> None:
    """Raise UsageError if an option was given that has no effect on this result.

    written: the format of the files; None for a data set.
    """
    if request.key is not None and not _has_key(content, result, written):
        raise UsageError(
            f"{request.target}: {content.value} becomes no file, key or column that --key names; omit --key"
        )
    if request.layout is not None and not _has_layout(result, written):
        raise UsageError(f"{request.target}: --layout is for Bags and data sets only; omit --layout")


def _has_key(content: Content, result: Result, written: Format | Export | None) -> bool:
    if isinstance(written, Export):
        return written.uses_key and content in (Content.RECORDS, Content.COLUMN)
    return result is Result.DATA_SET and content is Content.RECORDS


def _has_layout(result: Result, written: Format | Export | None) -> bool:
    return result is Result.DATA_SET or (isinstance(written, Format) and written.has_layouts)
