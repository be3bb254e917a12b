"""The program that lets Ray forget a job of ours, some seconds after the command that ran it.

`afterwards` runs its text in an interpreter without our package and without others': standard
library only.
"""

import contextlib
import json
import signal
import sys
import time
import urllib.request
from typing import Optional

_CALL_S, _LIFE_S = 2.0, 12  # for one call; for all of it


def forget(url: str, token: Optional[str], monitored_s: float, is_near: bool) -> None:
    """Delete, and once more: a monitor that was late has brought it back.

    `is_near`: no proxy of the environment can reach it.
    """
    proxies = urllib.request.ProxyHandler({} if is_near else None)
    opener = urllib.request.build_opener(proxies)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    for _ in range(2):
        time.sleep(monitored_s)
        request = urllib.request.Request(url, headers=headers, method="DELETE")
        with contextlib.suppress(OSError):
            opener.open(request, timeout=_CALL_S).close()


if __name__ == "__main__":
    signal.alarm(_LIFE_S)
    forget(**json.load(sys.stdin))
