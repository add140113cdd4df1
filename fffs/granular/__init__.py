"""Data sets and Bags of danijar's granular (all three layouts) and DeepMind's bagz, read in batches by the engine.

``BagReader``, ``BagWriter``: one list of byte strings. ``DatasetReader``, ``DatasetWriter`` and their sharded
counterparts: a folder with one Bag per key. ``encoders``, ``decoders``: the supplied codecs (``fffs.granular.codecs``).

Examples:
    >>> fffs.granular.encoders["int"](7, "8")
    b'\\x07\\x00\\x00\\x00\\x00\\x00\\x00\\x00'
    >>> fffs.granular.decoders["utf8"](b"caf\\xc3\\xa9")
    'café'

"""

from __future__ import annotations

from fffs.granular.bag_reader import BagReader
from fffs.granular.bag_writer import BagWriter
from fffs.granular.codecs import decoders, decoders_0_6, encoders, encoders_0_6
from fffs.granular.dataset_reader import DatasetReader, ShardedDatasetReader
from fffs.granular.dataset_writer import DatasetWriter
from fffs.granular.sharded_writer import ShardedDatasetWriter

__all__ = [
    "BagReader",
    "BagWriter",
    "DatasetReader",
    "DatasetWriter",
    "ShardedDatasetReader",
    "ShardedDatasetWriter",
    "decoders",
    "decoders_0_6",
    "encoders",
    "encoders_0_6",
]
