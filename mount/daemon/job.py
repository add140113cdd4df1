"""Job: what a daemon is started for, that is sources, mount point and options."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from fffs.base.cache_settings import SWITCH, cache_name
from fffs.base.paths import PathLike, absolute_path, named
from fffs.mount.daemon.log_file import refuse_source
from fffs.mount.options import MountOptions
from fffs.mount.system.mounts import canonical
from fffs.objects.names import absolute, is_remote, shown
from fffs.objects.overrides import environment_of

# mount(2) accepts one page at most, and a longer name is of no use in a listing of mounts.
LONGEST_NAME = 1000


@dataclass(frozen=True)
class Job:
    """Sources, mount point and options of a mount. Immutable. Paths are absolute: a daemon has no working folder."""

    sources: tuple[str, ...]
    mountpoint: str
    options: MountOptions
    debug: bool = False

    @property
    def name(self) -> str:
        """The source that mount(8) and findmnt(8) show. If there is only one, it can be mounted again by this name."""
        names = [shown(source) for source in self.sources]
        name = ":".join(names)
        if len(names) == 1 or len(name) < LONGEST_NAME:
            return name
        return f"{names[0]}:...({len(names)} sources)"

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the daemon in place of those of the process that starts it."""
        options, cache = self.options, self.options.cache or os.environ.get(SWITCH, "")
        return environment_of(cache, options.cache_size, options.endpoint_url)

    def encode(self) -> str:
        """Encode the job as text, for another process of this program."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Job:
        """Decode what ``encode`` returned."""
        fields = json.loads(text)
        options = MountOptions(**fields.pop("options"))
        return cls(tuple(fields.pop("sources")), options=options, **fields)


def make_job(
    sources: PathLike | Sequence[PathLike], mountpoint: PathLike, options: MountOptions, debug: bool = False
) -> Job:
    """Make a job from what a user gives: one source or several, with absolute or relative paths."""
    paths = [sources] if isinstance(sources, (str, bytes, os.PathLike)) else list(sources)
    found = tuple(_without_parents(absolute(named(path, "a source"))) for path in paths)
    if options.cache:
        options = replace(options, cache=cache_name(options.cache))
    if options.log:
        options = replace(options, log=absolute_path(named(options.log, "a log file")))
        refuse_source(options.log, (name for name in found if not is_remote(name)))
    return Job(found, canonical(mountpoint), options, debug)


def _without_parents(name: str) -> str:
    """Return the name of a source with its folder resolved up to the last ``..``.

    The name is shown as the source of the mount, and the kernel follows it as a path where no such folders are.
    """
    if is_remote(name) or ".." not in name.split("/"):
        return name
    folder, _, rest = f"{name}/".rpartition("/../")
    return os.path.join(os.path.realpath(f"{folder}/.."), rest).rstrip("/") or "/"
