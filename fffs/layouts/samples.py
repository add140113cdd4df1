"""Names of samples: the files of one training sample have the same name up to the first dot, as in WebDataset."""

from __future__ import annotations


def split_name(path: bytes) -> tuple[bytes, bytes] | None:
    """Return the key of the sample that a file belongs to, with its folder, and the rest of the name without the dot.

    None: the name has no dot, or begins with one, so that the file belongs to no sample.
    """
    folder, slash, name = path.rpartition(b"/")
    stem, dot, ending = name.partition(b".")
    return (folder + slash + stem, ending) if stem and dot else None
