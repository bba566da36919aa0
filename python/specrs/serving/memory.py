"""How much memory this process may still take."""

from __future__ import annotations

import sys
from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def available(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Return the bytes that can be had without swapping, the limits of control groups obeyed.

    1 GiB where the system does not tell.
    """
    known = [_free(proc), *_group_limits(proc, cgroups)]
    return min((bytes_ for bytes_ in known if bytes_ is not None), default=1 << 30)


def _free(proc: Path) -> int | None:
    """What the whole system has; None if it does not say."""
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    if sys.platform == "darwin":
        import os

        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return None


def _group_limits(proc: Path, cgroups: Path) -> list[int]:
    """What is left of the limit of this process's group, and of each group around it."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    left = []
    for line in lines:
        _, controllers, path = ([*line.split(":", 2), "", ""])[:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        version_1 = bool(controllers)
        root = cgroups / "memory" if version_1 else cgroups
        names = (
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            if version_1
            else ("memory.max", "memory.current", "inactive_file")
        )
        # In a container the path is often that of the host, and its own group is the root.
        group = root / path.strip("/")
        for folder in {root, group, *(g for g in group.parents if g.is_relative_to(root))}:
            room = _group_room(folder, *names)
            if room is not None:
                left.append(room)
    return left


def _group_room(folder: Path, limit: str, usage: str, cache: str) -> int | None:
    """What a group may still take; None if it has no limit. Its file cache can be given back."""
    try:
        most, taken = int((folder / limit).read_text()), int((folder / usage).read_text())
    except (OSError, ValueError):  # "max" is no limit
        return None
    try:
        statistics = dict(
            line.split() for line in (folder / "memory.stat").read_text().splitlines()
        )
        taken -= int(statistics.get(cache, 0))
    except (OSError, ValueError):
        pass
    return max(0, most - max(0, taken))
