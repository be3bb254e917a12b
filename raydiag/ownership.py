"""Who could change what stands at a path: the file, a link on the way, any directory above."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection

_MOST_LINKS = 40
_OTHERS = stat.S_IWGRP | stat.S_IWOTH  # an access list of more users shows as a group's right


def changeable(path: str, owners: Collection[int] = ()) -> str:
    """How somebody besides root, us and these owners could change it; "" when nobody could.

    Walks the path as the kernel does, through each link. In a sticky directory of a trusted owner
    nobody can replace what he does not own. Raises OSError for a path that leads nowhere.
    """
    trusted = {0, os.geteuid(), *owners}
    names, links = os.path.abspath(path).split("/")[1:], 0
    place = "/"
    while True:
        status = os.lstat(place)
        is_link = stat.S_ISLNK(status.st_mode)
        if status.st_uid not in trusted:
            return f"{place} belongs to user {status.st_uid}"
        is_above = bool(names) and status.st_mode & stat.S_ISVTX
        may_write = status.st_mode & _OTHERS and not is_link and not is_above
        if may_write and not os.statvfs(place).f_flag & os.ST_RDONLY:
            return f"others may write to {place}"
        if is_link:
            links += 1
            if links > _MOST_LINKS:
                return f"{place} leads through too many links"
            target = os.readlink(place)
            names = [*target.split("/"), *names]
            place = "/" if target.startswith("/") else os.path.dirname(place)
            continue
        while names and names[0] in ("", "."):
            names.pop(0)
        if not names:
            return ""
        place = os.path.normpath(os.path.join(place, names.pop(0)))
