"""Layouts: the tree of names, or the view, that a source is shown as. ``load_source`` opens any source.

One module per layout: ``packed`` (the tree stored in a packed folder), ``plain`` (one numbered file per record),
``union`` (several packed folders as one), ``granular`` (a folder per datapoint). A source that is too large for a tree,
or must be decoded, is shown as ``rows``: ``messages`` (features of records) and ``granular_rows``.
"""

from fffs.layouts.load import Paths, load_files, load_packed, load_records, load_shown, load_source

__all__ = ["Paths", "load_files", "load_packed", "load_records", "load_shown", "load_source"]
