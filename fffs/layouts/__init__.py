"""Layouts: what tree of names, or what view, a source is shown as. ``load_source`` opens any source.

One module per kind: ``packed`` (the tree stored in a packed folder), ``plain`` (one numbered file per record),
``union`` (several packed folders as one), ``granular`` (a folder per datapoint). What is too much for a tree, or has to
be decoded, are ``rows``: ``messages`` (features of records) and ``granular_rows``.
"""

from fffs.layouts.load import Paths, load_packed, load_records, load_shown, load_source

__all__ = ["Paths", "load_packed", "load_records", "load_shown", "load_source"]
