"""From a path or a job id to the files of one job.

    outputs/4711-llama/            job directory, in it `log -> ../4711-llama.log`
    outputs/4711-llama.log         the log; names as in `log_files`
    4711, 1778(1)                  a job id below outputs/, or one attempt of it
    outputs/                       where it holds one job and no other

What is not clear is said: in `notes` where the reading goes on, as CannotRun where it cannot.
"""

import contextlib
import itertools
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from raydiag.errors import CannotRun, NoSuchJob
from raydiag.joblog import log_files
from raydiag.joblog.facts import Resolved
from raydiag.joblog.log_files import ATTEMPT, STEM, natural
from raydiag.untrusted import regular

_ATTEMPT_ID = re.compile(r"^(\d+)(?:\((\d+)\)|_(\d+))$")
_LISTED = 8
_MOST_LOOKED_INTO = 1000
_LINK_BYTES = 4096  # of a file that holds nothing but a path
# What makes the directory around a log the directory of its job.
_PARTS = ("ray_logs", "prometheus", "tensorboard", "checkpoints")


@dataclass
class _FoundLogs:
    """A job on the way to being resolved."""

    named: str
    job_id: str | None = None
    name: str | None = None
    slurm_name: str | None = None
    job_dir: Path | None = None
    logs: list[str] = field(default_factory=list)
    attempts: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    empty: bool = False

    def identify(self, stem: str) -> None:
        """Takes job id and name from the name of a log or a directory, if it has them."""
        job = log_files.job_of(stem)
        if job:
            self.job_id, self.name = job

    def identify_log(self, name: str) -> None:
        """The same from the file name of a log, also as schedulers name them."""
        self.identify(log_files.stem(name) or name)
        job = log_files.scheduled(name)
        if job and self.job_id is None:
            self.job_id, self.slurm_name = job
            self.name = self.slurm_name


def resolve(named: str, outputs: str = "outputs") -> Resolved:
    """The files of one job: a job directory, one of its logs, or an id below `outputs`.

    Raises CannotRun when there is no such job, no access, or more than one that could be meant.
    """
    if not named:
        raise NoSuchJob("the name of the job is empty: name a directory, a log or a job id")
    path = Path(named)
    try:
        if path.is_dir():
            job = _directory(named, path)
        elif path.exists() or path.is_symlink():
            job = _file(named, path)
        else:
            job = _by_id(named, Path(outputs))
    except PermissionError as error:
        raise CannotRun(f"{error.filename or named}: permission denied") from None
    except (OSError, ValueError) as error:
        raise CannotRun(f"{named!r}: {getattr(error, 'strerror', None) or error}") from None
    return _resolved(job)


def resolve_all(
    names: Iterable[str], outputs: str = "outputs"
) -> tuple[list[Resolved], dict[str, CannotRun]]:
    """Each job once, however many of its files were named; and why other names are none."""
    jobs, problems = [], {}
    for name in dict.fromkeys(names):
        try:
            jobs.append(resolve(name, outputs))
        except CannotRun as error:
            problems[name] = error
    return _distinct(jobs), problems


def _distinct(jobs: Sequence[Resolved]) -> list[Resolved]:
    """Without those whose files are all read with another one's."""
    named = [(job, frozenset(map(os.path.realpath, _covered(job)))) for job in jobs]
    kept = []
    for index, (job, files) in enumerate(named):
        others = (other for place, (_, other) in enumerate(named) if place != index)
        earlier = (other for _, other in named[:index])
        if not any(files < other for other in others) and files not in earlier:
            kept.append(job)
    return kept


def _covered(job: Resolved) -> Sequence[str]:
    """The files that are read as one log; the directory of a job without any."""
    return (*job.logs, *job.rank_logs) or (job.job_dir or job.asked,)


def jobs_below(outputs: str) -> tuple[list[str], list[str]]:
    """What to resolve for every job below a directory, oldest id first; and what is no job.

    A directory without a log is a shared checkpoint directory, unless it is empty and named like a
    job: that one died before it could write anything.
    """
    try:
        names = sorted(os.listdir(outputs), key=natural)
    except OSError as error:
        raise CannotRun(f"{outputs}: {error.strerror}") from None
    jobs: dict[str, str] = {}  # path by name of the job
    no_jobs: list[str] = []
    for name in names:
        path = Path(outputs) / name
        if path.is_dir():
            if _is_job_directory(path):
                jobs[name] = str(path)
            else:
                no_jobs.append(str(path))
    for name in names:
        path = Path(outputs) / name
        job_name = _job_of_log(name)
        if job_name and path.is_file():
            jobs.setdefault(job_name, str(path))
    return sorted(jobs.values(), key=natural), no_jobs


def several_in(named: str) -> list[str]:
    """What to resolve for each job of a directory that holds several; else empty."""
    path = Path(named)
    if not path.is_dir() or _is_job_directory(path):
        return []
    logs = _live_logs(path)
    stems = [log_files.stem(log.name) for log in logs]
    if all(map(ATTEMPT.match, stems)) or all(map(log_files.STAMPED.search, stems)):
        logs = []  # of one job
    jobs, others = jobs_below(named)
    if len(jobs) <= 1:  # beside one job, or none, each log is a job of its own
        known = {log_files.stem(Path(job).name) or Path(job).name for job in jobs}
        jobs += [str(log) for log in logs if log_files.stem(log.name) not in known]
    return (jobs if len(jobs) > 1 else []) if jobs else _one_level_down(others)


def _one_level_down(directories: Iterable[str]) -> list[str]:
    """Jobs of directories of jobs, such as those of several users or dates."""
    jobs: list[str] = []
    for directory in itertools.islice(directories, _MOST_LOOKED_INTO):
        with contextlib.suppress(CannotRun):
            jobs += jobs_below(directory)[0]
    return jobs


def _is_job_directory(path: Path) -> bool:
    if _log_of(path, []) or log_files.rank_logs(path):
        return True
    return bool(STEM.match(path.name)) and _is_empty(path)


def _job_of_log(name: str) -> str:
    """What logs of one job have in common; "" for what is no live log of a job."""
    stem = log_files.live_stem(name)
    attempt = ATTEMPT.match(stem)
    if attempt:
        return f"{attempt['name']}_{attempt['id']}"
    return log_files.without_tag(stem) if STEM.match(stem) else ""


def _is_empty(path: Path) -> bool:
    with os.scandir(path) as entries:
        return next(iter(entries), None) is None


def _directory(named: str, path: Path) -> _FoundLogs:
    job = _FoundLogs(named, job_dir=path)
    job.identify(path.resolve().name)
    log = _log_of(path, job.notes)
    if log:
        job.logs = log_files.pieces(log)
    elif log_files.rank_logs(path):
        job.notes.append(f"{path}: no main log, only rank logs")
    elif _is_empty(path):
        if job.job_id is None:
            raise CannotRun(f"{path} is empty, and not named like the directory of a job")
        job.empty = True
    else:
        return _in_other_directory(job, path)
    return job


def _live_logs(path: Path) -> list[Path]:
    """Logs that are written to, but for those of the set-up."""
    live = []
    for entry in sorted(path.iterdir()):
        stem = log_files.live_stem(entry.name)
        if stem and entry.is_file() and not log_files.SET_UP_LOG.search(stem):
            live.append(entry)
    return live


def _in_other_directory(job: _FoundLogs, path: Path) -> _FoundLogs:
    """The log in a directory that is not a job directory."""
    live = _live_logs(path)
    if live:
        return _one_of(job, live, path)
    jobs = [
        entry for entry in sorted(path.iterdir()) if entry.is_dir() and _is_job_directory(entry)
    ]
    if len(jobs) == 1:
        return _directory(job.named, jobs[0])
    if jobs:
        raise CannotRun(f"{path} holds several jobs, name one of them: {_listed(jobs)}")
    if (path / "ray_logs").is_dir():
        job.notes.append(f"{path}: no main log, only ray_logs")
        return job
    reasons = ["it looks like a shared checkpoint directory", *job.notes]
    raise CannotRun(f"{path} holds no job log: {reasons[-1]}")


def _one_of(job: _FoundLogs, live: Sequence[Path], path: Path) -> _FoundLogs:
    """One log of several in a directory that is not a job directory."""
    stems = [log_files.stem(log.name) for log in live]
    if len(live) == 1:
        return _file(job.named, live[0])
    if all(map(ATTEMPT.match, stems)):
        return _attempts(job, live)
    if all(map(log_files.STAMPED.search, stems)):
        newest = max(live, key=_stamp)
        job.logs = log_files.pieces(newest)
        job.notes.append(f"{path}: the newest of {len(live)} logs, {newest.name}")
        return job
    raise CannotRun(f"{path} holds several logs, name one of them: {_listed(live)}")


def _stamp(path: Path) -> str:
    stamp = log_files.STAMPED.search(log_files.stem(path.name))
    return stamp[1] if stamp else ""


def _listed(paths: Sequence[Path]) -> str:
    text = ", ".join(map(str, paths[:_LISTED]))
    if len(paths) > _LISTED:
        text += f" and {len(paths) - _LISTED} more"
    return text


def _log_of(path: Path, notes: list[str]) -> Path | None:
    """The main log of a job directory: where `log` points to, else a file named like it."""
    link = path / "log"
    named_like_it = log_files.logs_named_like(path.resolve())
    if link.is_symlink():
        log = _log_by_link(link, named_like_it, notes)
        if log:
            return log
    elif link.is_file():
        target = _path_in(link)
        if target is not None:
            notes.append(f"{link} is a file that holds a path; read {target}")
        return target or link
    if len(named_like_it) > 1:
        listed = _listed(named_like_it)
        raise CannotRun(f"{path}: several logs could be meant, name one of them: {listed}")
    if named_like_it:
        notes.append(f"read {named_like_it[0]}, which is named like the directory")
        return named_like_it[0]
    return None


def _log_by_link(link: Path, named_like_it: Sequence[Path], notes: list[str]) -> Path | None:
    target = os.readlink(link)
    if os.path.isabs(target):
        notes.append(f"the link {link} is absolute: {target}")
    if not link.is_file():
        notes.append(f"the link {link} is broken: it names {target}")
        return None
    if named_like_it and not any(map(link.samefile, named_like_it)):
        notes.append(f"{link} is another file than {named_like_it[0]}; read what the link names")
    # By the shortest path that leads there: `dir/../x.log` reads badly.
    short = Path(os.path.normpath(link.parent / target))
    return short if short.exists() else link


def _path_in(link: Path) -> Path | None:
    """The log that a copied link names: archives and some checkouts turn links into small files."""
    try:
        with open(link, "rb", opener=regular) as file:
            text = file.read(_LINK_BYTES + 1).decode("utf-8", "replace").strip()
    except OSError:
        return None
    if len(text) > _LINK_BYTES or not text or "\n" in text or "\0" in text:
        return None
    target = Path(os.path.normpath(link.parent / text))
    if target.is_file() and log_files.stem(target.name):
        return target
    return None


def _file(named: str, path: Path) -> _FoundLogs:
    job = _FoundLogs(named)
    if path.is_symlink() and not path.exists():
        raise CannotRun(f"{path} is a broken link: it names {os.readlink(path)}")
    if not path.is_file():
        raise CannotRun(f"{path} is not a regular file")
    if path.name == "log":
        return _directory(named, path.parent)
    if log_files.is_rank_log(path.name):
        job.identify(path.parent.resolve().name)
        job.job_dir = path.parent
    else:
        job.identify_log(path.name)
        job.job_dir = _directory_of(path)
        if job.job_id is None and job.job_dir is not None:
            job.identify(job.job_dir.resolve().name)
    job.logs = log_files.pieces(path)
    return job


def _directory_of(log: Path) -> Path | None:
    """The job's directory: beside its log and named like it, or around it; None without one."""
    beside = log.parent / log_files.without_tag(log_files.stem(log.name) or log.name)
    if beside.is_dir():
        return beside
    is_like_one = STEM.match(log.parent.resolve().name) is not None
    is_like_one = is_like_one or any((log.parent / part).is_dir() for part in _PARTS)
    if is_like_one and _live_logs(log.parent) == [log]:
        return log.parent
    return None


def _by_id(named: str, outputs: Path) -> _FoundLogs:
    """A job id below `outputs`, or an attempt of it, `1778(1)` or `1778_1`."""
    job_id, index = named, None
    numbered = _ATTEMPT_ID.match(named)
    is_of_array = numbered is not None and any(_named_by_id(named, outputs))
    if numbered and not is_of_array:
        job_id, index = numbered[1], int(numbered[2] or numbered[3])
    if not (is_of_array or log_files.JOB_ID.match(job_id)) or os.sep in named:
        raise NoSuchJob(f"{named}: no such file, and not a job id")
    if not outputs.is_dir():
        raise NoSuchJob(f"{named}: no such file, and there is no directory {outputs} to look in")
    jobs, attempts = _named_by_id(job_id, outputs)
    if attempts and not jobs:
        return _attempts(_FoundLogs(named), attempts, index)
    if not jobs:
        raise NoSuchJob(f"{named}: no such job below {outputs}, and no such file")
    if len(jobs) > 1 or attempts:
        raise CannotRun(f"{named} could mean several jobs: {_listed([*jobs, *attempts])}")
    if jobs[0].is_dir():
        return _directory(named, jobs[0])
    return _file(named, jobs[0])


def _named_by_id(job_id: str, outputs: Path) -> tuple[list[Path], list[Path]]:
    """Directories or logs of the jobs of that id, one for each job; and logs of its attempts."""
    jobs: dict[str, Path] = {}
    attempts: list[Path] = []
    for name in sorted(log_files.names_in(outputs), key=natural):
        path = outputs / name
        stem = name if path.is_dir() else log_files.live_stem(name)
        attempt = ATTEMPT.match(stem)
        if attempt and attempt["id"] == job_id and path.is_file():
            attempts.append(path)
        elif stem and name.startswith(f"{job_id}-"):
            jobs.setdefault(log_files.without_tag(stem), path)
        elif stem and path.is_file() and (log_files.scheduled(name) or ("",))[0] == job_id:
            jobs[name] = path
    return list(jobs.values()), attempts


def _attempts(job: _FoundLogs, paths: Sequence[Path], index: int | None = None) -> _FoundLogs:
    """Several logs of one job id, ordered by the time in their names."""
    ordered = sorted(paths, key=log_files.attempt_time)
    ids = {log_files.job_of(log_files.stem(path.name)) or ("",) for path in ordered}
    if len({job[0] for job in ids}) > 1:
        raise CannotRun(f"several jobs' logs, name one of them: {_listed(ordered)}")
    if index is not None:
        if index >= len(ordered):
            raise CannotRun(f"{job.named}: there are only {len(ordered)} attempts")
        ordered = ordered[: index + 1]
    job.identify(log_files.stem(ordered[-1].name))
    *job.attempts, job.logs = map(log_files.pieces, ordered)
    return job


def _resolved(job: _FoundLogs) -> Resolved:
    job_dir, script, series_dir = job.job_dir, None, None
    hosts: list[str] = []
    worker_logs: list[str] = []
    ranks: list[str] = []
    if job_dir is not None:
        hosts, worker_logs = log_files.worker_logs(job_dir / "ray_logs")
        ranks = _other_ranks(job_dir, job.logs)
        script = log_files.batch_script(job_dir)
        if (job_dir / "prometheus").is_dir():
            series_dir = str(job_dir / "prometheus")
        ranks = _inside(job, job_dir, ranks)
        worker_logs = _inside(job, job_dir, worker_logs)
    directory = job_dir
    if directory is None and os.path.isdir(job.named):
        directory = Path(job.named)
    if directory is not None:
        job.logs = _inside(job, directory, job.logs)
    return Resolved(
        asked=job.named,
        job_id=job.job_id,
        name=job.name,
        job_dir=str(job_dir) if job_dir is not None else None,
        logs=tuple(job.logs),
        attempts=tuple(map(tuple, job.attempts)),
        rank_logs=tuple(ranks),
        worker_logs=tuple(worker_logs),
        ray_log_hosts=tuple(hosts),
        notes=tuple(job.notes),
        slurm_name=job.slurm_name,
        series_dir=series_dir,
        empty_dir=job.empty,
        kubernetes=(job.job_id or "").startswith("k8s") or bool(ranks),
        batch_script=script,
    )


def _inside(job: _FoundLogs, job_dir: Path, paths: Sequence[str]) -> list[str]:
    """Those that lie in the job's directory or beside it, and what was named itself.

    Whoever writes to a job's directory could have shown by links what only we may read. Raises
    CannotRun where nothing is left.
    """
    outputs = os.path.dirname(os.path.realpath(job_dir)).rstrip("/")
    inside, notes = [], []
    for path in paths:
        real = os.path.realpath(path)
        if real.startswith(f"{outputs}/") or path == job.named:
            inside.append(path)
        else:
            notes.append(f"{path} leads out of the job's directory: to read {real}, name it")
    if notes and not inside:
        raise CannotRun(notes[0])
    job.notes += notes
    return inside


def _other_ranks(job_dir: Path, logs: Sequence[str]) -> list[str]:
    """Logs of ranks that are not the main log; rank 0's is the same as a main log beside it."""
    main = set(map(os.path.realpath, logs))
    ranks = [str(path) for path in log_files.rank_logs(job_dir)]
    if logs and not any(map(log_files.is_rank_log, logs)):
        main.add(os.path.realpath(job_dir / "rank-0.log"))
    return [path for path in ranks if os.path.realpath(path) not in main]
