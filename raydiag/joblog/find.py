"""From a path or a job id to the files of one job.

    outputs/4711-llama/            job directory, in it `log -> ../4711-llama.log`
    outputs/4711-llama.log         the log; `.out`, rotated `.log.1`, `.log.2.gz`, `-TGS_812.log`
    outputs/k8s-20260310-080957-475e-llama/rank-3.log
    outputs/llama_1778_date_26-03-10_time_08-09-57.log     one attempt of a requeued job

What is not clear is said: in `notes` where the reading goes on, as CannotRun where it cannot.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from raydiag.errors import CannotRun
from raydiag.joblog.facts import Resolved

_ID = r"k8s[-_]\d+[-_]\d+[-_][\da-f]+|k8s[-_]\d+(?:[-_]\d+)*|local_[\d_]+(?:[a-f][\da-f]*)?|\d+"
_STEM = re.compile(rf"^({_ID})-(.+)$")
_ASKED_ID = re.compile(rf"^(?:{_ID})$")
_ATTEMPT_ID = re.compile(r"^(\d+)(?:\((\d+)\)|_(\d+))$")
_PIECE = re.compile(
    r"^(?P<base>.+?\.(?:log|out|txt|err))"
    r"(?:\.(?P<number>\d{1,4})|-(?P<date>\d{8}(?:-\d+)?))?(?P<packed>\.(?:gz|zst|bz2|xz))?$"
)
_TAGGED = re.compile(r"-TGS_[\d.]+$")
_ATTEMPT = re.compile(
    r"^(?P<name>.+)_(?P<id>\d+)_date_(?P<date>\d\d-\d\d-\d\d)_time_(?P<time>\d\d-\d\d-\d\d)$"
)
_SETUP = re.compile(r"_ray_[a-z]+_\d{8}_\d{6}$")
_STAMPED = re.compile(r"_(\d{8}_\d{6})$")
_RANK = re.compile(r"^rank-(\d{1,6})\.log$")
_LISTED = 8


@dataclass
class _FoundLogs:
    """A job on the way to being resolved."""

    asked: str
    job_id: Optional[str] = None
    name: Optional[str] = None
    job_dir: Optional[Path] = None
    logs: list[str] = field(default_factory=list)
    attempts: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    empty: bool = False


def resolve(asked: str, outputs: str = "outputs") -> Resolved:
    """The files of one job: a job directory, one of its logs, or an id below `outputs`.

    Raises CannotRun when there is no such job, no access, or more than one that could be meant.
    """
    path = Path(asked)
    try:
        if path.is_dir():
            found = _directory(asked, path)
        elif path.exists() or path.is_symlink():
            found = _file(asked, path)
        else:
            found = _by_id(asked, Path(outputs))
    except PermissionError as error:
        raise CannotRun(f"{error.filename or asked}: permission denied") from None
    except (OSError, ValueError) as error:
        raise CannotRun(f"{asked!r}: {getattr(error, 'strerror', None) or error}") from None
    return _resolved(found)


def jobs_below(outputs: str) -> tuple[list[str], list[str]]:
    """What to resolve for every job below a directory, oldest id first; and what is no job.

    A directory without a log is a shared checkpoint directory, unless it is empty and named like a
    job: that one died before it could write anything.
    """
    try:
        names = sorted(os.listdir(outputs), key=_natural)
    except OSError as error:
        raise CannotRun(f"{outputs}: {error.strerror}") from None
    jobs, others, seen = [], [], set()
    for name in names:
        path = Path(outputs) / name
        if not path.is_dir():
            continue
        if _log_of(path, []) or (_STEM.match(name) and _is_empty(path)) or _ranks(path):
            jobs.append(str(path))
            seen.add(name)
        else:
            others.append(str(path))
    for name in names:
        stem = _stem(name)
        path = Path(outputs) / name
        piece = _PIECE.match(name)
        if not stem or not piece or piece["number"] or piece["date"] or not path.is_file():
            continue
        attempt = _ATTEMPT.match(stem)
        key = f"{attempt['name']}_{attempt['id']}" if attempt else _TAGGED.sub("", stem)
        if key not in seen and (attempt or _STEM.match(stem)):
            seen.add(key)
            jobs.append(str(path))
    return sorted(jobs, key=_natural), others


def _natural(text: str) -> list[tuple[int, int, str]]:
    """Numbers in a name by their value."""
    parts = re.findall(r"(\d+)|(\D+)", text)
    return [(0, int(n), "") if n and len(n) < 19 else (1, 0, n or t) for n, t in parts]


def _stem(name: str) -> str:
    """`4711-llama` of `4711-llama.log.2.gz`; "" when it is not named like a log."""
    found = _PIECE.match(name)
    return found["base"].rpartition(".")[0] if found else ""


def _is_empty(path: Path) -> bool:
    with os.scandir(path) as entries:
        return next(iter(entries), None) is None


def _identify(found: _FoundLogs, stem: str) -> None:
    attempt = _ATTEMPT.match(stem)
    if attempt:
        found.job_id, found.name = attempt["id"], attempt["name"]
    elif matched := _STEM.match(_TAGGED.sub("", stem)):
        found.job_id, found.name = matched[1], matched[2]


def _directory(asked: str, path: Path) -> _FoundLogs:
    found = _FoundLogs(asked, job_dir=path)
    stem = path.resolve().name
    _identify(found, stem)
    log = _log_of(path, found.notes)
    if log:
        found.logs = _pieces(log)
        return found
    ranks = _ranks(path)
    if ranks:
        found.notes.append(f"{path}: no main log, only rank logs")
        return found
    if _is_empty(path):
        if found.job_id is None:
            raise CannotRun(f"{path} is empty, and not named like the directory of a job")
        found.empty = True
        return found
    inside = sorted(p for p in path.iterdir() if _stem(p.name) and p.is_file())
    live = [p for p in inside if not _is_rotated(p.name) and not _SETUP.search(_stem(p.name))]
    if not live:
        if (path / "ray_logs").is_dir():
            found.notes.append(f"{path}: no main log, only ray_logs")
            return found
        why = found.notes[-1] if found.notes else "it looks like a shared checkpoint directory"
        raise CannotRun(f"{path} holds no job log: {why}")
    return _among(found, live, path)


def _among(found: _FoundLogs, live: Sequence[Path], path: Path) -> _FoundLogs:
    """One log of several in a directory that is not a job directory."""
    if len(live) == 1:
        found.logs = _pieces(live[0])
        _identify(found, _stem(live[0].name))
        return found
    attempts = [p for p in live if _ATTEMPT.match(_stem(p.name))]
    if attempts and len(attempts) == len(live):
        return _attempts(found, attempts)
    stamped = [p for p in live if _STAMPED.search(_stem(p.name))]
    if len(stamped) == len(live):
        newest = max(stamped, key=lambda p: _STAMPED.search(_stem(p.name))[1])  # type: ignore[index]
        found.logs = _pieces(newest)
        found.notes.append(f"{path}: the newest of {len(live)} logs, {newest.name}")
        return found
    raise CannotRun(f"{path} holds several logs, name one of them: {_listed(live)}")


def _listed(paths: Iterable[Path]) -> str:
    names = [str(p) for p in paths]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _log_of(path: Path, notes: list[str]) -> Optional[Path]:
    """The main log of a job directory: where `log` points to, else a file named like it."""
    link = path / "log"
    real = path.resolve()
    beside = _beside(real)
    if link.is_symlink():
        target = os.readlink(link)
        if os.path.isabs(target):
            notes.append(f"the link {link} is absolute: {target}")
        if link.is_file():
            if beside and not any(os.path.samefile(link, one) for one in beside):
                notes.append(f"{link} is another file than {beside[0]}; read what the link names")
            return _target(link)
        notes.append(f"the link {link} is broken: it names {target}")
    elif link.is_file():
        named = _named_in(link)
        if named is not None:
            notes.append(f"{link} is a file that holds a path; read {named}")
        return named or link
    if len(beside) > 1:
        raise CannotRun(f"{path}: several logs could be meant, name one of them: {_listed(beside)}")
    if beside:
        notes.append(f"read {beside[0]}, which is named like the directory")
        return beside[0]
    return None


def _target(link: Path) -> Path:
    """What a link names, by the shortest honest path: `dir/../x.log` reads badly."""
    target = os.path.normpath(link.parent / os.readlink(link))
    return Path(target) if os.path.exists(target) else link


def _named_in(link: Path) -> Optional[Path]:
    """The log that a copied link names: archives and some checkouts turn links into small files."""
    if link.stat().st_size > 4096:
        return None
    text = link.read_bytes().decode("utf-8", "replace").strip()
    if not text or "\n" in text or "\0" in text:
        return None
    target = Path(os.path.normpath(link.parent / text))
    return target if target.is_file() and _stem(target.name) else None


def _beside(real: Path) -> list[Path]:
    """Live logs next to a job directory that are named like it."""
    try:
        names = sorted(os.listdir(real.parent))
    except OSError:
        return []
    live = [n for n in names if n.startswith(real.name) and not _is_rotated(n)]
    return [
        real.parent / name
        for name in live
        if _stem(name) and _TAGGED.sub("", _stem(name)) == real.name
        if (real.parent / name).is_file()
    ]


def _is_rotated(name: str) -> bool:
    found = _PIECE.match(name)
    return bool(found and (found["number"] or found["date"]))


def _ranks(path: Path) -> list[Path]:
    ranks = [(int(found[1]), name) for name in os.listdir(path) if (found := _RANK.match(name))]
    return [path / name for _, name in sorted(ranks)]


def _pieces(log: Path) -> list[str]:
    """Rotated pieces of a log, oldest first, and the log itself."""
    base = _PIECE.match(log.name)
    if not base or _is_rotated(log.name):
        return [str(log)]
    pieces: list[tuple[int, str, str]] = []
    try:
        names = os.listdir(log.parent)
    except OSError:
        names = []
    for name in names:
        found = _PIECE.match(name)
        if not found or found["base"] != base["base"] or name == log.name:
            continue
        if found["number"]:
            pieces.append((-int(found["number"]), "", name))
        elif found["date"]:
            pieces.append((-100000, found["date"], name))
    return [str(log.parent / name) for _, _, name in sorted(pieces)] + [str(log)]


def _file(asked: str, path: Path) -> _FoundLogs:
    found = _FoundLogs(asked)
    if path.is_symlink() and not path.exists():
        raise CannotRun(f"{path} is a broken link: it names {os.readlink(path)}")
    if path.name == "log" and path.is_symlink() and (path.parent / "log").exists():
        return _directory(asked, path.parent)
    if not path.is_file():
        raise CannotRun(f"{path} is not a regular file")
    rank = _RANK.match(path.name)
    stem = path.parent.resolve().name if rank else _stem(path.name) or path.name
    _identify(found, stem)
    plain = _TAGGED.sub("", stem)
    beside = path.parent if rank else path.parent / plain
    if beside.is_dir() and beside != path:
        found.job_dir = beside
    found.logs = _pieces(path)
    return found


def _by_id(asked: str, outputs: Path) -> _FoundLogs:
    """A job id below `outputs`, or an attempt of it, `1778(1)` or `1778_1`."""
    wanted, index = asked, None
    if one := _ATTEMPT_ID.match(asked):
        wanted, index = one[1], int(one[2] or one[3])
    if not _ASKED_ID.match(wanted) or os.sep in asked:
        raise CannotRun(f"{asked}: no such file, and not a job id")
    if not outputs.is_dir():
        raise CannotRun(f"{asked}: no such file, and there is no directory {outputs} to look in")
    names = sorted(os.listdir(outputs), key=_natural)
    stems: dict[str, Path] = {}
    attempts: list[Path] = []
    for name in names:
        path = outputs / name
        stem = name if path.is_dir() else "" if _is_rotated(name) else _stem(name)
        attempt = _ATTEMPT.match(stem)
        if attempt and attempt["id"] == wanted and path.is_file():
            attempts.append(path)
        elif stem and name.startswith(f"{wanted}-"):
            stems.setdefault(_TAGGED.sub("", stem), path)
    if attempts and not stems:
        return _attempts(_FoundLogs(asked), attempts, index)
    if not stems:
        raise CannotRun(f"{asked}: no such job below {outputs}, and no such file")
    if len(stems) > 1 or attempts:
        candidates = [*stems.values(), *attempts]
        raise CannotRun(f"{asked} could mean several jobs: {_listed(candidates)}")
    path = next(iter(stems.values()))
    return _directory(asked, path) if path.is_dir() else _file(asked, path)


def _attempts(found: _FoundLogs, paths: Sequence[Path], index: Optional[int] = None) -> _FoundLogs:
    """Several logs of one job id, ordered by the time in their names."""
    ordered = sorted(paths, key=_attempt_time)
    ids = {_ATTEMPT.match(_stem(p.name))["id"] for p in ordered}  # type: ignore[index]
    if len(ids) > 1:
        raise CannotRun(f"several jobs' logs, name one of them: {_listed(ordered)}")
    if index is not None:
        if index >= len(ordered):
            raise CannotRun(f"{found.asked}: there are only {len(ordered)} attempts")
        ordered = ordered[: index + 1]
    _identify(found, _stem(ordered[-1].name))
    found.logs = _pieces(ordered[-1])
    found.attempts = [_pieces(path) for path in ordered[:-1]]
    return found


def _attempt_time(path: Path) -> tuple[str, str]:
    found = _ATTEMPT.match(_stem(path.name))
    return (found["date"], found["time"]) if found else ("", "")


def _resolved(found: _FoundLogs) -> Resolved:
    job_dir = found.job_dir
    workers: list[str] = []
    hosts: list[str] = []
    ranks: list[str] = []
    if job_dir is not None:
        hosts, workers = _worker_logs(job_dir / "ray_logs")
        known = {os.path.realpath(path) for path in found.logs}
        ranks = [str(path) for path in _ranks(job_dir) if os.path.realpath(path) not in known]
        if found.logs and not any(_RANK.match(os.path.basename(p)) for p in found.logs):
            ranks = [path for path in ranks if not path.endswith(f"{os.sep}rank-0.log")]
    script = _script(job_dir)
    return Resolved(
        asked=found.asked,
        job_id=found.job_id,
        name=found.name,
        job_dir=str(job_dir) if job_dir is not None else None,
        logs=tuple(found.logs),
        attempts=tuple(tuple(one) for one in found.attempts),
        rank_logs=tuple(ranks),
        worker_logs=tuple(workers),
        ray_log_hosts=tuple(hosts),
        notes=tuple(found.notes),
        empty_dir=found.empty,
        kubernetes=bool(found.job_id and found.job_id.startswith("k8s")) or bool(ranks),
        batch_script=script,
    )


def _worker_logs(ray_logs: Path) -> tuple[list[str], list[str]]:
    """Hosts, and worker*.out and .err in both layouts, in order of host and name."""
    hosts, files = [], []
    try:
        entries = sorted(ray_logs.iterdir(), key=lambda p: _natural(p.name))
    except OSError:
        return [], []
    for host in entries:
        if not host.is_dir():
            continue
        hosts.append(host.name)
        for folder in [host, *sorted(host.glob("session_*/logs")), host / "logs"]:
            for kind in ("worker*.out*", "worker*.err*"):
                files += [str(p) for p in sorted(folder.glob(kind)) if p.is_file()]
    return hosts, list(dict.fromkeys(files))


def _script(job_dir: Optional[Path]) -> Optional[str]:
    if job_dir is None:
        return None
    scripts = sorted([*job_dir.glob("*.sbatch"), *job_dir.glob("*.slurm")])
    return str(scripts[0]) if scripts else None
