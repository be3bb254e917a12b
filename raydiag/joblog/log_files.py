"""Names of log files, and the files that belong together: rotated pieces, ranks, Ray workers.

4711-llama.log, 4711-llama.out, rotated 4711-llama.log.1 and .log.2.gz, 4711-llama-TGS_812.log
llama_1778_date_26-03-10_time_08-09-57.log     one attempt of a requeued job
slurm-4711.out, llama-4711.err, 4711_3.out     as Slurm names them: slurm-%j, %x-%j, %A_%a
job-driver-raysubmit_Ab3.log                   as Ray names them
rank-3.log                                     in the directory of a Kubernetes job
"""

import itertools
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

_ID = (
    r"k8s[-_]\d+[-_]\d+[-_][\da-f]+|k8s[-_]\d+(?:[-_]\d+)*|local_[\d_]+(?:[a-f][\da-f]*)?|\d+"
    r"|raysubmit_\w+"
)
STEM = re.compile(rf"^({_ID})-(.+)$")
JOB_ID = re.compile(rf"^(?:{_ID})$")
ATTEMPT = re.compile(
    r"^(?P<name>.+)_(?P<id>\d+)_date_(?P<date>\d\d-\d\d-\d\d)_time_(?P<time>\d\d-\d\d-\d\d)$"
)
SET_UP_LOG = re.compile(r"_ray_[a-z]+_\d{8}_\d{6}$")
STAMPED = re.compile(r"_(\d{8}_\d{6})$")
_PIECE = re.compile(
    r"^(?P<base>.+?\.(?:log|out|txt|err))"
    r"(?:\.(?P<number>\d{1,4})|-(?P<date>\d{8}(?:-\d+)?))?(?P<packed>\.(?:gz|zst|bz2|xz))?$"
)
_SCHEDULED = (
    re.compile(r"^slurm-(?P<id>\d{1,10}(?:_\d{1,7})?)\.(?:out|err|log)$"),
    re.compile(r"^(?:job-driver-)?(?P<id>raysubmit_\w+)\.(?:out|err|log)$"),
    # Less digits are a rank's or a node's number more often than a job's id.
    re.compile(
        r"^(?:(?!worker-|python-)(?P<name>[A-Za-z].*?)-)?(?P<id>[1-9]\d{2,9}(?:_\d{1,7})?)"
        r"\.(?:out|err)$"
    ),
)
_TAGGED = re.compile(r"-TGS_[\d.]+$")
_RANK = re.compile(r"^rank-(\d{1,6})\.log$")
_NUMBER_OR_TEXT = re.compile(r"(\d{1,18})|(\D+)")


def natural(text: str) -> list[tuple[int, int, str]]:
    """Sorts numbers in a name by their value."""
    return [
        (0, int(number), "") if number else (1, 0, words)
        for number, words in _NUMBER_OR_TEXT.findall(text)
    ]


def stem(name: str) -> str:
    """`4711-llama` of `4711-llama.log.2.gz`; "" when it is not named like a log."""
    piece = _PIECE.match(name)
    return piece["base"].rpartition(".")[0] if piece else ""


def without_tag(log_stem: str) -> str:
    """`4711-llama` of `4711-llama-TGS_812`."""
    return _TAGGED.sub("", log_stem)


def is_rotated(name: str) -> bool:
    """Whether it is an older piece of a log."""
    piece = _PIECE.match(name)
    return bool(piece and (piece["number"] or piece["date"]))


def live_stem(name: str) -> str:
    """The stem of a log that is written to; "" for an older piece of one, and for other names."""
    return "" if is_rotated(name) else stem(name)


def job_of(log_stem: str) -> tuple[str, str] | None:
    """Job id and name, by the stem of a log or the name of a directory; None where it has none."""
    attempt = ATTEMPT.match(log_stem)
    if attempt:
        return attempt["id"], attempt["name"]
    plain = STEM.match(without_tag(log_stem))
    return (plain[1], plain[2]) if plain else None


def scheduled(name: str) -> tuple[str, str | None] | None:
    """Job id and name by the name of a log that Slurm or Ray has named; None for any other."""
    piece = _PIECE.match(name)
    if piece is None or job_of(stem(name)):
        return None
    for pattern in _SCHEDULED:
        if match := pattern.match(piece["base"]):
            return match["id"], match.groupdict().get("name")
    return None


def attempt_time(path: Path) -> tuple[str, str]:
    """Date and time in the name of an attempt's log; sorts as text."""
    attempt = ATTEMPT.match(stem(path.name))
    return (attempt["date"], attempt["time"]) if attempt else ("", "")


def is_rank_log(path: str) -> bool:
    """Whether a file is the log of one rank."""
    return _RANK.match(os.path.basename(path)) is not None


def rank_logs(directory: Path) -> list[Path]:
    """The logs of ranks in a directory, by rank."""
    paths = (path for path in directory.iterdir() if is_rank_log(path.name))
    return sorted(paths, key=_by_name)


def _by_name(path: Path) -> list[tuple[int, int, str]]:
    return natural(path.name)


def pieces(log: Path) -> list[str]:
    """Rotated pieces of a log, oldest first, and the log itself."""
    base = _PIECE.match(log.name)
    if not base or is_rotated(log.name):
        return [str(log)]
    older: list[tuple[int, str, str]] = []
    for name in names_in(log.parent):
        piece = _PIECE.match(name)
        if not piece or piece["base"] != base["base"] or name == log.name:
            continue
        if piece["number"]:
            older.append((-int(piece["number"]), "", name))
        elif piece["date"]:
            older.append((-100000, piece["date"], name))
    return [str(log.parent / name) for _, _, name in sorted(older)] + [str(log)]


def names_in(directory: Path) -> list[str]:
    """Of what lies in a directory; empty where it cannot be read."""
    try:
        return os.listdir(directory)
    except OSError:
        return []


def logs_named_like(directory: Path) -> list[Path]:
    """Live logs next to a job directory that are named like it."""
    paths = []
    for name in sorted(names_in(directory.parent)):
        if without_tag(live_stem(name)) == directory.name:
            paths.append(directory.parent / name)
    return list(filter(Path.is_file, paths))


def worker_logs(ray_logs: Path) -> tuple[list[str], list[str]]:
    """Hosts, and worker*.out and .err in both layouts, in order of host and name."""
    try:
        hosts = list(filter(Path.is_dir, sorted(ray_logs.iterdir(), key=_by_name)))
    except OSError:
        return [], []
    files = itertools.chain.from_iterable(map(_worker_logs_of, hosts))
    return [host.name for host in hosts], list(dict.fromkeys(map(str, files)))


def _worker_logs_of(host: Path) -> Iterator[Path]:
    folders: Iterable[Path] = (host, *sorted(host.glob("session_*/logs")), host / "logs")
    for folder in folders:
        for kind in ("worker*.out*", "worker*.err*"):
            yield from filter(Path.is_file, sorted(folder.glob(kind)))


def batch_script(job_dir: Path) -> str | None:
    """The first batch script in a job directory."""
    scripts = sorted((*job_dir.glob("*.sbatch"), *job_dir.glob("*.slurm")))
    return str(scripts[0]) if scripts else None
