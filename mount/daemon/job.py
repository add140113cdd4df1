"""What a daemon is told to do: sources, mount point, options."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from fffs.base.paths import PathLike, named
from fffs.mount.options import MountOptions
from fffs.mount.system.mounts import canonical

# mount(2) takes a page at most, and nobody reads more in a listing of mounts.
LONGEST_NAME = 1000


@dataclass(frozen=True)
class Job:
    """Immutable. All paths are absolute: a daemon has no working folder."""

    sources: tuple[str, ...]
    mountpoint: str
    options: MountOptions
    debug: bool = False

    @property
    def name(self) -> str:
        """What mount(8) and findmnt(8) show as the source: one that can be mounted again if there is only one."""
        name = ":".join(self.sources)
        if len(self.sources) == 1 or len(name) < LONGEST_NAME:
            return name
        return f"{self.sources[0]}:...({len(self.sources)} sources)"

    def encode(self) -> str:
        """As text, for another process of this program."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Job:
        """The inverse of encode."""
        fields = json.loads(text)
        options = MountOptions(**fields.pop("options"))
        return cls(tuple(fields.pop("sources")), options=options, **fields)


def make_job(
    sources: PathLike | Sequence[PathLike], mountpoint: PathLike, options: MountOptions, debug: bool = False
) -> Job:
    """A job from what a user gives: one source or several, relative paths too."""
    paths = [sources] if isinstance(sources, (str, bytes, os.PathLike)) else list(sources)
    found = tuple(os.path.abspath(named(path, "a source")) for path in paths)
    return Job(found, canonical(mountpoint), options, debug)
