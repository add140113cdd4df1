"""PackedFolder: an image folder in one file, as a data set with the conventions of torchvision's ImageFolder."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fffs.base.cache_settings import cache_options, caching
from fffs.base.numbers import resolve
from fffs.base.paths import PathLike
from fffs.errors import SourceNotFoundError
from fffs.layouts import load_packed
from fffs.layouts.view import TreeView
from fffs.reader import FileReader
from fffs.records.reopening import OpenedNames, refuse_others
from fffs.torch.batch import share_threads
from fffs.torch.dataset import Dataset
from fffs.torch.image_folder import find_samples
from fffs.torch.indices import only_sample, several


class PackedFolder(Dataset):
    """A folder with a subfolder for each class, packed with ``fffs pack``: samples are (image, class number).

    ::

        photos = fffs.torch.PackedFolder("photos.ffr", transform=decode)
        loader = fffs.torch.DataLoader(photos, batch_size=128, shuffle=True, num_workers=4)

    Classes, samples and their order are those of ``torchvision.datasets.ImageFolder`` for the original folder, except
    that all files are samples unless ``extensions`` are given, and that links to folders are not followed. The
    transform decodes images: it gets the bytes of a file, a 1-D writable uint8 array, for
    ``PIL.Image.open(io.BytesIO(data))`` or ``torchvision.io.decode_image(torch.from_numpy(data))``. May be forked and
    pickled. A copy, as in a worker that was not forked, raises SourceChangedError if the file is another one.

    Attributes:
        classes: the names of the subfolders, sorted.
        class_to_idx: class name -> class number.
        samples (imgs): (path in the folder, class number) of each sample; made at the first access.
        targets: the class number of each sample; made at the first access.

    Examples:
        >>> photos = fffs.torch.PackedFolder("photos.ffr", transform=bytes)
        >>> photos.classes, photos[2]
        (['cat', 'dog'], (b'first dog', 1))

    """

    def __init__(
        self,
        fname: PathLike | list[Any] | tuple[Any, ...],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        extensions: str | Sequence[str] | None = None,
        check_data: bool = True,
        *,
        cache: PathLike | None = None,
        cache_size: str | int | None = None,
    ) -> None:
        """fname: the packed file, or several, which are merged. extensions: of samples, such as ``(".jpg", ".png")``.
        cache, cache_size: as for ``Dataset``.

        Raises:
            FormatError: not a packed folder. SourceNotFoundError: it has no classes, or a class without samples.

        """
        self.transform, self.target_transform = transform, target_transform
        self.extensions = tuple([extensions] if isinstance(extensions, str) else extensions or ())
        self._names = OpenedNames(fname if isinstance(fname, (list, tuple)) else [fname])
        self._options = cache_options(cache, cache_size)
        with self._load(check_data) as source:
            tree, fnames = source.tree, [file.index.path for file in source.store.files]
            super().__init__(fnames, check_data, **self._options)
            self._identity = source.store.identity
            assert isinstance(self.reader, FileReader)
            refuse_others(self.reader.store, self._identity)  # the file was replaced between the two opens
        found = find_samples(tree, self.extensions)
        self.classes, self._records, self._targets = found.classes, found.records, found.targets
        self.class_to_idx = {name: k for k, name in enumerate(self.classes)}
        if not self.classes:
            raise SourceNotFoundError(f"{fnames[0]}: has no subfolders; each class needs one")
        missing = np.flatnonzero(np.bincount(self._targets, minlength=len(self.classes)) == 0)
        if len(missing):
            names = ", ".join(self.classes[k] for k in missing)
            ending = f" ending in {' or '.join(self.extensions)}" if self.extensions else ""
            raise SourceNotFoundError(f"{fnames[0]}: every subfolder is a class, but no file{ending} is in: {names}")

    def _load(self, check_data: bool) -> TreeView:
        with caching(self._options.get("cache"), self._options.get("cache_size")):
            return load_packed(self._names.now(), check_data)

    @property
    def samples(self) -> list[tuple[str, int]]:
        """(path in the folder, class number) of each sample. Raises SourceChangedError: the file was replaced."""
        if "_samples" not in self.__dict__:
            with self._load(self.reader.check_data) as source:
                refuse_others(source.store, self._identity)
                self._samples = list(find_samples(source.tree, self.extensions))
        return self._samples

    @property
    def imgs(self) -> list[tuple[str, int]]:
        """Torchvision's other name for ``samples``."""
        return self.samples

    @property
    def targets(self) -> list[int]:
        """The class number of each sample."""
        if "_target_list" not in self.__dict__:
            self._target_list: list[int] = self._targets.tolist()
        return self._target_list

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, indices: Any) -> Any:
        """Return (sample, target) for an integer, or a list of these, read in one batch, for a list."""
        numbers = several(indices, len(self))
        if numbers is None:
            return only_sample(PackedFolder.__getitem__(self, [operator.index(indices)]), self)
        chosen = resolve(numbers, len(self))
        share_threads()
        return self.process(chosen.tolist(), self.reader.read(self._records[chosen]))

    def announce(self, indices: list[int]) -> None:
        """As in ``Dataset``."""
        if type(self).__getitem__ is PackedFolder.__getitem__ and isinstance(self.reader, FileReader):
            self.reader.prefetch(self._records[resolve(indices, len(self))])

    def process(self, indices: list[int], data: list[Any]) -> list[tuple[Any, Any]]:
        """Return transformed samples and targets."""
        targets = self._targets[indices].tolist()
        samples = [self.transform(image) for image in data] if self.transform else data
        if self.target_transform:
            targets = [self.target_transform(target) for target in targets]
        return list(zip(samples, targets, strict=True))

    def __getstate__(self) -> dict[str, Any]:
        # Leave out what is made at the first access: workers do not need it.
        return {key: value for key, value in self.__dict__.items() if key not in ("_samples", "_target_list")}
