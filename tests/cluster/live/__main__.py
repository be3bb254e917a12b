"""Plant, wait, ask, compare, and leave nothing."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.cluster.live.lab import Answer, Hosts, Lab, four_hosts, unavailable, watched_lab
from tests.cluster.live.plantings import PLANTINGS, Planting, summary

_ROW = "{name:24} {way:10} {said:34} {hosts:18} {confidence:10} {seconds:6} {right}"

_CONTROL_S = 150.0
_COLUMNS = ("name", "way", "said", "hosts", "confidence", "seconds", "right")
_TITLES = ("planted", "asked", "class", "hosts", "confidence", "s", "right")


def main() -> int:
    """Everything that was chosen; 1 when an answer was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.live", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", default=[], help="plantings whose name has one of these"
    )
    parser.add_argument("--keep", type=Path, help="leave documents and job directories here")
    parser.add_argument(
        "--control", type=int, metavar="N", help="only watch the steps, with N probes in between"
    )
    options = parser.parse_args()
    if reason := unavailable():
        raise SystemExit(reason)
    chosen = [each for each in PLANTINGS if _is_meant(each, options.only)]
    if options.control is not None:
        control(chosen, options.control)
        return 0
    _say(_ROW.format(**dict(zip(_COLUMNS, _TITLES, strict=True))))
    with tempfile.TemporaryDirectory(prefix="rdlab-") as scratch:
        keep = options.keep or Path(scratch)
        wrong = run(chosen, keep)
    return 1 if wrong else 0


def run(chosen: list[Planting], keep: Path) -> list[Answer]:
    """All of them, on one cluster as long as it is whole; the answers that were wrong."""
    wrong: list[Answer] = []
    waiting = list(chosen)
    while waiting:
        with four_hosts() as hosts:
            while waiting:
                planting = waiting.pop(0)
                place = keep / planting.name.replace(" ", "-").replace(",", "")
                wrong += _planted(hosts, planting, place)
                if planting.breaks:
                    break
    return wrong


def control(chosen: list[Planting], probes: int) -> None:
    """How the training goes on after each planting, with so many probes or none at all."""
    for planting in chosen:
        with four_hosts() as hosts, tempfile.TemporaryDirectory(prefix="rdlab-") as scratch:
            with watched_lab(hosts, Path(scratch)) as lab:
                lab.submit(f"toy-{int(time.time())}")
                planting.plant(lab)
                ended_s = lab.steps_end_within(_CONTROL_S, probes)
                states = hosts.cluster.node_states()
            ends = "steps go on" if ended_s is None else f"steps end after {ended_s:.0f} s"
            _say(f"{planting.name}, {probes} probes: {ends}; {states}")


def _planted(hosts: Hosts, planting: Planting, place: Path) -> list[Answer]:
    """One planting; a training that does not begin is told and is no answer."""
    answers: list[Answer] = []
    try:
        with watched_lab(hosts, place) as lab:
            answers += _live_answers(lab, planting)
        answers.append(lab.diagnose_directory())
    except (TimeoutError, OSError) as error:
        _say(f"{planting.name}: {error}")
    for answer in answers:
        (place / f"{answer.way}.json").write_text(json.dumps(answer.document, indent=1))
        _show(planting, answer)
    return [answer for answer in answers if not planting.is_right(answer)]


def _live_answers(lab: Lab, planting: Planting) -> list[Answer]:
    lab.patient, lab.children = planting.patient, planting.children
    planting.before(lab)
    if planting.alone:
        lab.start_alone()
    else:
        lab.submit(f"toy-{int(time.time())}", until_it_steps=planting.steps)
    time.sleep(10)
    planting.plant(lab)
    time.sleep(planting.wait_s)
    answers = [lab.probe(), lab.diagnose()]
    if not planting.ends and planting.expected("directory") == ("healthy",):
        lab.finish()
    return answers


def _show(planting: Planting, answer: Answer) -> None:
    said = summary(answer)[0]
    right = "right" if planting.is_right(answer) else "WRONG"
    others = summary(answer)[1:]
    row = _ROW.format(
        name=planting.name,
        way=answer.way,
        said=said.failure_class + (f" and {len(others)} more" if others else ""),
        hosts=",".join(said.hosts) or "-",
        confidence=said.confidence or "-",
        seconds=f"{answer.seconds:.1f}",
        right=right,
    )
    _say(row if right == "right" else f"{row}  {said.text}")


def _is_meant(planting: Planting, words: list[str]) -> bool:
    return not words or any(word in planting.name for word in words)


def _say(text: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
