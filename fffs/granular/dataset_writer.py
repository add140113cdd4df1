"""DatasetWriter: writes a data set, row by row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from fffs.base.buffers import readable_bytes
from fffs.base.numbers import as_number
from fffs.base.paths import PathLike, without_zero
from fffs.errors import UsageError, WriterError
from fffs.granular import spec as specs
from fffs.granular.codecs import Codec
from fffs.granular.codecs import encoders as supplied
from fffs.granular.columns import NewColumns
from fffs.granular.grown_columns import GrownColumns
from fffs.granular.output_writer import Output, OutputWriter
from fffs.granular.spec import Type


class Columns(Output, Protocol):
    """The files of a data set, new or existing ones."""

    def append(self, blobs: Any, /) -> None:
        """Add an encoded row."""

    def complete(self) -> str:
        """Write all rows. None can be added afterwards. Returns the path that the folder has until ``finish``."""


class Encoder:
    """Encodes rows as blobs, according to a spec. Immutable."""

    def __init__(self, path: str, spec: Mapping[str, str], encoders: Mapping[str, Codec] | None, layout: str) -> None:
        if layout not in ("v1", "v3"):
            raise UsageError(f"{path}: layout {layout!r} cannot be written, only v1 and v3")
        self.path = path
        self.spec = specs.check_written(spec, path, layout)
        self._types = {key: Type.parse(kind) for key, kind in self.spec.items()}
        self._encode = {key: self._encoder(key, supplied if encoders is None else encoders) for key in self.spec}

    def _encoder(self, key: str, encoders: Mapping[str, Codec]) -> Codec:
        kind = self._types[key]
        if kind.text in encoders:
            return encoders[kind.text]
        if kind.name not in encoders:
            raise UsageError(
                f"{self.path}: there is no encoder for {kind.text!r}, the type of {key!r}; pass one in encoders="
            )
        encode, arguments = encoders[kind.name], kind.arguments
        return encode if not arguments else lambda value: encode(value, *arguments)

    def __call__(self, row: Mapping[str, Any]) -> list[memoryview | list[memoryview]]:
        """Return the blobs of a row, in the order of keys. Errors are raised before anything is written."""
        if row.keys() != self.spec.keys():
            missing, unknown = sorted(self.spec.keys() - row.keys()), sorted(map(str, row.keys() - self.spec.keys()))
            raise UsageError(f"{self.path}: a row must have exactly the keys of the spec; {missing=}, {unknown=}")
        blobs: list[memoryview | list[memoryview]] = []
        for key, kind in self._types.items():
            if not kind.sequence:
                blobs.append(self._blob(key, row[key]))
                continue
            if isinstance(row[key], (str, bytes, Mapping)) or not isinstance(row[key], Iterable):
                raise UsageError(f"{self.path}: {key!r} is a sequence; give a list, not {type(row[key]).__name__}")
            blobs.append([self._blob(key, value) for value in row[key]])
        return blobs

    def _blob(self, key: str, value: Any) -> memoryview:
        try:
            return readable_bytes(self._encode[key](value))
        except UsageError as error:
            raise UsageError(f"{self.path}: {key!r}: {error}") from error


class DatasetWriter(OutputWriter):
    """Writes rows to a data set in one folder.

    layout="v1" (granular 0.6.0 to 0.19.0, byte for byte what 0.6.0 writes): the folder must be new or empty, and
    appears, complete, when the writer is closed. layout="v3" (granular from 0.22): rows are appended to existing ones;
    flushed rows are permanent. Incomplete rows of a killed writer are cut off first, with a TornTailWarning. Columns
    that are missing or differ for another reason are an error, which says what to do. Readers that were opened before,
    without checksums, raise SourceChangedError.

    An exception in the with-block discards everything (v3: what was not flushed). Not thread-safe; must not be used in
    a child of fork.

    Examples:
        >>> spec = {"name": "utf8", "label": "int(8)"}
        >>> with fffs.granular.DatasetWriter("new", spec, fffs.granular.encoders) as writer:
        ...     number = writer.append({"name": "a", "label": 1})
        >>> len(fffs.granular.DatasetReader("new", fffs.granular.decoders))
        1

    """

    _output: Columns

    def __init__(
        self,
        directory: PathLike,
        spec: Mapping[str, str],
        encoders: Mapping[str, Codec] | None = None,
        layout: str = "v1",
        *,
        cut_to: int | None = None,
    ) -> None:
        """encoders: type -> function that returns bytes; default: ``fffs.granular.encoders``. cut_to (v3): a number of
        rows; all after them are deleted first, for columns of different lengths that are not to be copied again.
        """
        path = without_zero(directory)
        if cut_to is not None and layout != "v3":
            raise UsageError(f"{path}: cut_to= needs layout='v3'; a data set in layout v1 is new")
        if cut_to is not None:
            cut_to = as_number(cut_to, "numbers of rows, such as cut_to=,")
        self._open(path, Encoder(path, spec, encoders, layout), layout, cut_to)

    def _open(self, path: str, encoder: Encoder, layout: str, cut_to: int | None = None) -> None:
        self.path = path
        self._completed = False
        self._encoder = encoder
        self._output = self._columns(path, encoder.spec, layout, cut_to)
        self._begin(path)

    @staticmethod
    def _columns(path: str, spec: dict[str, str], layout: str, cut_to: int | None) -> Columns:
        """Open what rows are appended to."""
        return NewColumns(path, spec) if layout == "v1" else GrownColumns(path, spec, cut_to)

    @classmethod
    def of(cls, path: str, encoder: Encoder, layout: str) -> DatasetWriter:
        """Make a writer with an existing encoder."""
        writer = cls.__new__(cls)
        writer._open(path, encoder, layout)
        return writer

    @property
    def spec(self) -> dict[str, str]:
        """The keys, sorted, with their types."""
        return dict(self._encoder.spec)

    def append(self, datapoint: Mapping[str, Any], flush: bool = False) -> int:
        """Add a row: a value for each key of the spec, or a list of values for a sequence. Returns its number.

        Raises:
            UsageError: the keys differ from those of the spec. Nothing was written, nor if an encoder raises.
            WriterError: the writer is closed.
            WriteError: the operating system could not write. The writer is closed; the class says which rows stay.

        """
        self._need_incomplete()
        self.append_blobs(self._encoder(datapoint))
        if flush:
            self.flush()
        return len(self._output) - 1

    def complete(self) -> str:
        """Write all rows and their tables. Afterwards only ``close`` and ``discard`` may be called.

        Returns:
            The path of the data set until it is closed; for layout v1 it is temporary.

        Raises:
            WriteError: the operating system could not write. The writer is closed.

        """
        self._need_open()
        self._completed = True
        try:
            return self._output.complete()
        except BaseException:
            self.discard()
            raise

    def flush(self) -> None:
        """As in the base class. Raises WriterError after ``complete``."""
        self._need_incomplete()
        super().flush()

    def _need_incomplete(self) -> None:
        self._need_open()
        if self._completed:
            raise WriterError(f"{self.path}: the data set has been completed; it takes no more rows")

    def append_blobs(self, blobs: Any) -> None:
        """Add an encoded row."""
        self._need_incomplete()
        try:
            self._output.append(blobs)
        except BaseException:
            self.discard()
            raise
