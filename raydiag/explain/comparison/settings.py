"""What two jobs were started with, side by side: a difference may explain everything.

Source: the header and PASSTHROUGH_ARGS of a job's log; MaxText's `Config param KEY: VALUE`.
"""

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raydiag.errors import ReadError
from raydiag.joblog.facts import JobFacts
from raydiag.joblog.lines import open_log
from raydiag.joblog.tables import tables

_CONFIG = re.compile(rb"\bConfig param (\w{1,64}): ([^\r\n]{0,300})")
_MOST_BYTES, _CHUNK = 8 << 20, 1 << 16
_TRAINING = b"completed step: "  # nothing of the configuration follows
UNSET = "not set"
_TABLES = tables("raydiag.explain.comparison", "tables.yaml")
_FACTS, _NEUTRAL = frozenset(_TABLES["facts"]), frozenset(_TABLES["neutral"])

# Names and places: they differ from job to job and change nothing.
_BOOKKEEPING = re.compile(
    r"(?:^|_)(?:dir|directory|path|file|filename|name|id|tag|port|host|hosts|url|user|time|date)$"
    r"|^(?:run_name|steps|hash|seed_file|log_\w+|upload_\w+|vertex_\w+|tensorboard_\w+)$"
)


@dataclass(frozen=True)
class JobSettings:
    """One job's settings by name."""

    given: Mapping[str, str] = field(default_factory=dict)  # on its command line, or its header
    effective: Mapping[str, str] = field(default_factory=dict)  # as the framework printed them

    def get(self, name: str) -> str | None:
        """The value of a setting; None where nothing tells."""
        return self.given.get(name, self.effective.get(name))

    def is_on(self, name: str) -> bool:
        """Whether a flag is set."""
        return (self.get(name) or "").strip().lower() in ("true", "1", "yes")


@dataclass(frozen=True)
class Setting:
    """One name that differs."""

    parameter: str
    a: str
    b: str
    explains: bool  # it may change how fast training is


def read(facts: JobFacts, versions: Mapping[str, Any]) -> JobSettings:
    """From the log's start; `versions`: what the metrics say that the job ran on."""
    header = facts.header
    arguments = dict(header.passthrough)
    named = {
        "NNODES": header.nnodes or (len(header.nodelist) or None),
        **versions,
        "model": header.model_name,
        "model alias": header.model_alias,
        "experiment tag": header.exp_tag,
        "job name": header.job_name,
        "RAY": int(header.ray),
    }
    assert named.keys() <= _FACTS
    arguments |= {name: str(value) for name, value in named.items() if value is not None}
    effective = dict(header.config)
    for path in facts.resolved.logs[:1]:
        effective |= _printed(path)
    return JobSettings(arguments, effective)


def _printed(path: str) -> dict[str, str]:
    """Everything that the framework lists before its first step."""
    values: dict[str, str] = {}
    incomplete, bytes_left = b"", _MOST_BYTES
    # Of a log that cannot be read, triage has said so.
    with contextlib.suppress(ReadError, OSError, EOFError), open_log(path).stream as stream:
        while bytes_left > 0 and (chunk := stream.read(_CHUNK)):
            bytes_left -= len(chunk)
            data, _, incomplete = (incomplete + chunk).rpartition(b"\n")
            for name, value in _CONFIG.findall(data):
                values.setdefault(name.decode(), value.decode("utf-8", "replace").strip())
            if _TRAINING in data:
                break
    return values


def differences(a: JobSettings, b: JobSettings) -> list[Setting]:
    """What differs, what may explain first. A name that one log does not print is no difference.

    What stands on one command line alone differs from the other's default, unless that is printed.
    """
    settings = []
    for name in dict.fromkeys([*a.given, *b.given, *a.effective, *b.effective]):
        pair = _pair(name, a, b)
        if pair is not None:
            explains = name not in _NEUTRAL and not _BOOKKEEPING.search(name)
            settings.append(Setting(name, *pair, explains))
    return sorted(settings, key=lambda setting: (not setting.explains, setting.parameter))


def _pair(name: str, a: JobSettings, b: JobSettings) -> tuple[str, str] | None:
    mine, theirs = a.get(name), b.get(name)
    if mine is None or theirs is None:
        # Where only one of the logs lists its configuration, nothing says what the other has.
        if name in _FACTS or name not in {*a.given, *b.given}:
            return None
        return mine or UNSET, theirs or UNSET
    if _plain(mine) == _plain(theirs):
        return None
    return mine, theirs


def _plain(text: str) -> str:
    """`True` and `true`, `1e-5` and `0.00001` are the same."""
    word = text.strip().strip("\"'").lower()
    try:
        return repr(float(word))
    except ValueError:
        return word
