"""What the shell exporter's log of plugin errors says against a file that was replaced.

Source: /tmp/metrics_exporter.log; "[...] gpu_metrics_plugin timed out after 10s", and what bash
prints: "/a/gpu_metrics_plugin.sh: line 7: nosuch: command not found"
"""

from __future__ import annotations

import os
import re

from raydiag.hotfix.log_tail import size, tail
from raydiag.hotfix.messages import Verify
from raydiag.hotfix.process import SCRIPT

_EARLIER_BYTES = 1 << 20  # of the log before the change, where the same error may stand
_NUMBERS = re.compile(r"\d+")


def new_error(request: Verify, may_be_disabled: bool) -> str:
    """The first new line of the log that blames the replaced file; "" when none does.

    `may_be_disabled`: the plugin may ask not to be run on this node (exit status 99).
    """
    if not os.path.exists(request.plugin_log):
        return ""
    begin = request.plugin_log_bytes
    if size(request.plugin_log) < begin:
        begin = 0  # it was begun anew
    new_text = tail(request.plugin_log, begin)
    error = _exporter_message(request.name, new_text, may_be_disabled)
    error = error or _new_shell_error(request, new_text, begin)
    return f"{request.plugin_log}: {error[:200]}" if error else ""


def gpu_timeouts(plugin_log: str) -> int:
    """How often the GPU plugin has timed out since the exporter's last start."""
    text = tail(plugin_log)
    return text[text.rfind("] Starting on port ") + 1 :].count("gpu_metrics_plugin timed out")


def _exporter_message(name: str, new_text: str, may_be_disabled: bool) -> str:
    """A line of the exporter: the plugin timed out, or is not run any more."""
    plugin = "" if name == SCRIPT else name.removesuffix(".sh")
    for line in new_text.split("\n"):
        is_disabled = " exited 99 " in line and not may_be_disabled
        if f"] {plugin}" in line and (" timed out after " in line or is_disabled):
            return line.strip()
    return ""


def _new_shell_error(request: Verify, new_text: str, begin: int) -> str:
    """A line of bash about the file that it did not print before the change."""
    mark = f"{request.name}: line "
    errors = [line.strip() for line in new_text.split("\n") if mark in line]
    if not errors:
        return ""
    earlier = tail(request.plugin_log, max(0, begin - _EARLIER_BYTES))
    if not earlier.endswith(new_text):
        earlier = new_text
    earlier = earlier[: len(earlier) - len(new_text)]
    known_shapes = set(map(_shape, earlier.split("\n")))
    return next((error for error in errors if _shape(error) not in known_shapes), "")


def _shape(line: str) -> str:
    return _NUMBERS.sub("#", line.strip())
