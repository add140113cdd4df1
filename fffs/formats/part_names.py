"""Names of files in sets: FFRecord parts, TFRecord shards (``name-00000-of-00010``), OFRecord parts (``part-0``)."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final

from fffs.base.part_sets import MANIFEST, UNCOUNTED, UNFINISHED
from fffs.base.paths import PathLike
from fffs.errors import FffsError, FormatError, ReadError, SourceNotFoundError, UsageError
from fffs.formats.ffrecord import SUFFIX
from fffs.formats.ofrecord import NAME as OFRECORD_NAME
from fffs.formats.tfrecord import NAME, SIDECARS
from fffs.objects.fsspec_url import folder_and_chain, is_fsspec_url, split_chain
from fffs.objects.locations import exists, has_objects, is_folder, list_folder
from fffs.objects.names import is_url, shown

SHARD: Final = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{1,9})-of-(?P<total>[0-9]{1,9})(?P<end>\.[^/]*)?", re.DOTALL)
PATTERN: Final = re.compile(
    r"(?P<stem>.+)(?:-[?*]+-of-(?P<total>[0-9]{1,9})|@(?P<count>[0-9]{1,9}))(?P<end>\.[^/]*)?", re.DOTALL
)
# A set of packs. Fewer digits may be those of a year.
PACKS: Final = re.compile(rf"(?P<stem>.+)-[0-9]{{5,9}}-of-(?P<total>[0-9]{{5,9}}){re.escape(SUFFIX)}", re.DOTALL)
# A file of Spark or Hadoop, with the number of the task that wrote it, which may have more digits than five.
TASK: Final = re.compile(r"(?P<stem>part-(?:[mr]-)?)(?P<number>[0-9]{5,9})(?:[-.].*)?", re.DOTALL)
UNCOUNTED_PACKS: Final = re.compile(rf"(?P<stem>.+){UNCOUNTED}", re.DOTALL)
PART_DIGITS: Final = 5
NAMED: Final = 5  # maximum number of missing files that a message lists

Group = tuple[str, str, int]
"""What the names of a set of shards have in common: stem, end and total."""


def expand_shards(path: PathLike) -> list[str]:
    """Return the TFRecord files that a path stands for, in order.

    Args:
        path: a file, which may be a single shard; a pattern of all shards (``name-*-of-00010``,
            ``name-?????-of-00010`` or ``name@10``); the name that the shards of exactly one set have in common; or a
            folder, for its sets of shards and other ``.tfrecord`` files.

    Raises:
        SourceNotFoundError: there are no files, or shards of a set are missing; the message lists them.
        FormatError: the number of a shard is too large for the set, or two shards have the same number.
        UsageError: several sets have that name.
        ReadError: the folder cannot be listed.

    Examples:
        >>> [os.path.basename(path) for path in fffs.tfrecord.expand_shards("shards/test.tfrecord-*-of-00002")]
        ['test.tfrecord-00000-of-00002', 'test.tfrecord-00001-of-00002']

    """
    name = os.fsdecode(path)
    if is_folder(name):
        folder, chain = folder_and_chain(name)
        return [file + chain for file in _all_of_folder(folder, _list(name, name))]
    folder, base, chain = split_chain(name)
    if not base or exists(name):
        return [name]
    names = _list(folder + chain or ".", name)
    if pattern := PATTERN.fullmatch(base):
        total = int(pattern["total"] or pattern["count"])
        wanted = (pattern["stem"], pattern["end"] or "", total)
        found = {wanted: _groups(names, lambda key: key == wanted).get(wanted, {})}
    else:
        found = _groups(names, lambda key: base in (key[0], key[0] + key[1]))
    if not found:
        raise SourceNotFoundError(f"{name}: no such file, and no shards of that name")
    if len(found) > 1:
        totals = " and ".join(sorted(f"-of-{key[2]:05}{key[1]}" for key in found))
        raise UsageError(f"{name}: several sets of shards have that name ({totals}); specify one of them")
    (group, shards), *_ = found.items()
    return [os.path.join(folder, shard) + chain for shard in _complete(folder or ".", group, shards)]


def expand_parts(path: PathLike, prefix: str = "part-") -> list[str]:
    """Return the OFRecord files that a path stands for: a file itself, or the parts in a folder by number.

    Raises:
        SourceNotFoundError: there are no parts, or some are missing; the message lists them.
        FormatError: two parts have the same number.
        ReadError: the folder cannot be listed.

    Examples:
        >>> fffs.ofrecord.expand_parts("ofrecord")
        ['ofrecord/part-0', 'ofrecord/part-1']

    """
    name = os.fsdecode(path)
    if not is_folder(name):
        return [name]
    folder, chain = folder_and_chain(name)
    return [part + chain for part in numbered_parts(folder, _list(name, name), prefix)]


def numbered_parts(folder: str, names: list[str], prefix: str) -> list[str]:
    """Return the files of a folder with these names that are called by a prefix and a number, by number.

    Zeros before a number do not matter. Raises as ``expand_parts``.
    """
    _refuse_unfinished(folder, names)
    numbered: dict[int, str] = {}
    for entry in names:
        number = entry[len(prefix) :]
        if not entry.startswith(prefix) or not re.fullmatch("[0-9]{1,9}", number):  # as in OFRECORD_NAME
            continue
        _add(numbered, int(number), entry, folder)
    if not numbered:
        raise SourceNotFoundError(f"{folder}: no parts ({prefix}0, {prefix}1, …) in this folder")
    _refuse_gaps(numbered, max(numbered) + 1, folder, "part")
    return [os.path.join(folder, numbered[k]) for k in range(len(numbered))]


def ffrecord_parts(folder: str, names: list[str]) -> list[str]:
    """Return the FFRecord files of a folder with these names, sorted as ffrecord does, so that record numbers agree.

    Raises:
        SourceNotFoundError: some parts of a set (``NAME-00000-of-00020.ffr``) are missing; the message lists them.
        FormatError: the number of a part is too large, or two parts have the same number.

    """
    parts = sorted(name for name in names if name.endswith(SUFFIX) and not name.startswith("."))
    _refuse_unfinished(folder, names)
    for group, found in _groups(name for name in parts if PACKS.fullmatch(name)).items():
        _complete(folder, group, found, "part")
    return [os.path.join(folder, part) for part in parts]


def complete_sets(folder: str, names: Iterable[str], *, from_one: bool = False) -> list[str]:
    """Return these names of files in a folder in order, shards by number. from_one: the numbers of a set may begin with
    1. Raises as ``expand_shards`` if some of a set are missing.
    """
    names = list(names)
    files = [name for name in names if SHARD.fullmatch(name) is None]
    for group, shards in _groups(names).items():
        first = int(from_one and 0 not in shards and group[2] in shards)
        files += _complete(folder, group, shards, first=first)
    return sorted(files, key=_in_order)


def ofrecord_parts(folder: str, names: list[str]) -> list[str]:
    """Return the OFRecord parts of a folder with these names, by number. Raises as ``expand_parts``."""
    return numbered_parts(folder, names, "part-") if any(OFRECORD_NAME.fullmatch(name) for name in names) else []


def tfrecord_shards(folder: str, names: list[str]) -> list[str]:
    """Return the TFRecord files of a folder with these names, shards by number. Raises as ``expand_shards``."""
    return _all_of_folder(folder, names) if any(NAME.search(name) for name in names) else []


def sets_among(paths: Iterable[str]) -> dict[str, list[str]]:
    """Return the parts of each set of packs, by a pattern of their paths; not what is no part of a set."""
    sets: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        folder, name = os.path.split(path)
        if match := PACKS.fullmatch(name):
            sets[os.path.join(folder, f"{match['stem']}-*-of-{match['total']}{SUFFIX}")].append(path)
        elif match := UNCOUNTED_PACKS.fullmatch(name):
            sets[os.path.join(folder, f"{match['stem']}-*-{match['job']}{SUFFIX}")].append(path)
    return dict(sets)


def are_one_set(paths: Iterable[str]) -> bool:
    """Return whether these are the parts of one set of packs, and nothing else."""
    paths = list(paths)
    return list(map(len, sets_among(paths).values())) == [len(paths)]


def is_set_of_shards(path: str) -> bool:
    """Return whether a path that does not exist is a pattern of shards, or the beginning of their names."""
    folder, stem = os.path.split(path)
    if PATTERN.fullmatch(stem):
        return True
    try:
        return any(name.startswith(f"{stem}-0") and "-of-" in name for name in list_folder(folder or "."))
    except (OSError, UsageError):
        return False


def part_name(prefix: str, number: int, total: int, end: str = "") -> str:
    """Return the name of a part. Numbers have at least five digits, all the same, so that names sort by number."""
    return f"{prefix}{number:0{max(PART_DIGITS, len(str(total - 1)))}}{end}"


def shard_name(stem: str, number: int, total: int, end: str = "") -> str:
    """Return the name of a shard. Raises UsageError unless 0 <= number < total.

    Examples:
        >>> fffs.tfrecord.shard_name("train.tfrecord", 3, 10)
        'train.tfrecord-00003-of-00010'

    """
    if not 0 <= number < total:
        raise UsageError(f"there is no shard {number} of {total}")
    return f"{stem}-{number:05}-of-{total:05}{end}"


def ffrecord_part(_stem: str, number: int, total: int) -> str:
    """Return the name that ffrecord gives a part in a folder of FFRecord files."""
    return part_name("PART_", number, total, SUFFIX)


def ffrecord_shard(stem: str, number: int, total: int) -> str:
    """Return the name of a part of a set of FFRecord files. ffrecord reads a folder in the order of its names."""
    digits = max(PART_DIGITS, len(str(total - 1)))
    return f"{stem}-{number:0{digits}}-of-{total:05}{SUFFIX}"


def ofrecord_part(_stem: str, number: int, total: int) -> str:
    """Return the name of a part in a folder of OFRecord files."""
    return part_name("part-", number, total)


def tfrecord_shard(stem: str, number: int, total: int) -> str:
    """Return the name of a shard in a folder of TFRecord files, without leading dots: readers ignore hidden files."""
    return shard_name(stem.lstrip(".") or "records", number, total, ".tfrecord")


def _refuse_unfinished(folder: str, names: list[str]) -> None:
    """Raise FormatError if the parts of a set in a store are not complete."""
    if UNFINISHED in names and MANIFEST not in names and _has_plan(folder):
        raise FormatError(
            f"{shown(folder)}: its parts are still being written; or run fffs plan commit {shown(folder)}, or abort"
        )


def _has_plan(folder: str) -> bool:
    """Return whether there is something in the folder of a plan. Some stores keep it when the plan is gone."""
    if not is_url(folder) or is_fsspec_url(folder):
        return True
    return has_objects(f"{folder.rstrip('/')}/{UNFINISHED}/")


def _all_of_folder(folder: str, names: list[str]) -> list[str]:
    _refuse_unfinished(folder, names)
    names = [name for name in sorted(names) if not name.startswith(".") and not name.endswith(SIDECARS)]
    files = complete_sets(folder, [name for name in names if SHARD.fullmatch(name) or NAME.search(name)])
    if not files:
        raise SourceNotFoundError(f"{folder}: no TFRecord files in this folder")
    return [os.path.join(folder, name) for name in files]


def _in_order(name: str) -> tuple[str, int, str]:
    """Return the sort key of a name: numbers of shards and tasks count as such, with or without leading zeros."""
    if numbered := SHARD.fullmatch(name) or TASK.fullmatch(name):
        return numbered["stem"], int(numbered["number"]), name
    return name, -1, name


def _groups(names: Iterable[str], wanted: Callable[[Group], bool] = lambda _: True) -> dict[Group, dict[int, str]]:
    """Group the shards among the names into the wanted sets: number -> name for each. Raises FormatError."""
    groups: dict[Group, dict[int, str]] = defaultdict(dict)
    for name in names:
        shard = SHARD.fullmatch(name)
        if shard and not name.endswith(SIDECARS):
            key = (shard["stem"], shard["end"] or "", int(shard["total"]))
            if wanted(key):
                _add(groups[key], int(shard["number"]), name, name)
    return groups


def _add(numbered: dict[int, str], number: int, name: str, where: str) -> None:
    if number in numbered:
        raise FormatError(f"{where}: {numbered[number]} and {name} have the same number; remove one of them")
    numbered[number] = name


def _complete(folder: str, group: Group, shards: dict[int, str], kind: str = "shard", first: int = 0) -> list[str]:
    stem, end, total = group
    where = os.path.join(folder, f"{stem}-?????-of-{total:05}{end}")
    last = first + total - 1
    for number, name in shards.items():
        if number > last:
            raise FormatError(f"{where}: the number of {name} is too large, the last is {last}; rename the file")
    _refuse_gaps(shards, total, where, kind, first)
    return [shards[k] for k in range(first, last + 1)]


def _refuse_gaps(numbered: dict[int, str], total: int, where: str, kind: str, first: int = 0) -> None:
    """Raise SourceNotFoundError if numbers are missing. The total comes from a name: allocate nothing of that size."""
    missing = total - len(numbered)
    if not missing:
        return
    some: list[str] = []
    k = first
    while len(some) < min(missing, NAMED):
        if k not in numbered:
            some.append(str(k))
        k += 1
    more = f" and {missing - NAMED} more" if missing > NAMED else ""
    raise SourceNotFoundError(
        f"{where}: {kind} {', '.join(some)}{more} missing (there are {len(numbered)} of {total}); copy them, too"
    )


def _list(folder: str, shown: str) -> list[str]:
    try:
        return sorted(list_folder(folder))
    except (FileNotFoundError, NotADirectoryError):
        raise SourceNotFoundError(f"{shown}: no such file") from None
    except FffsError:
        raise
    except OSError as error:
        raise ReadError(error.errno, shown) from error
