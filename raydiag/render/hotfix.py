"""What a hotfix would do, did, or left, as a report; equal hosts folded together.

The documents are those of `raydiag.hotfix.documents`; `raydiag/schemas/hotfix.json` states them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any

from raydiag.nodeset import fold
from raydiag.render import document as documents
from raydiag.render.formats import count, filled, grouped, joined, utc
from raydiag.render.report import Bullet, Bullets, Paragraph, Report, Section, Tone, Toned, bullets

_TONES = {
    **dict.fromkeys(("verified", "planned", "same"), Tone.GOOD),
    **dict.fromkeys(("refused", "rolled back"), Tone.DOUBTFUL),
    **dict.fromkeys(("change", "untouched"), Tone.PLAIN),
}
_SHOWN_DIGITS = 12  # of a hash
_MOST_HOSTS_WITH_PROCESSES = 16

_Json = Mapping[str, Any]


def hotfix_document(answer: _Json, generated_at: float) -> dict[str, Any]:
    """The JSON document of `raydiag hotfix`: what the head answered, with the common head."""
    return {**documents.head("hotfix", generated_at), **answer}


def hotfix_report(answer: _Json, plan_shown: bool) -> Report:
    """The report of `raydiag hotfix`; `plan_shown`: what was planned is above it already."""
    if answer["command"] == "status":
        sections = list(map(_rollout, answer["rollouts"]))
        if not sections:
            sections.append(Section(blocks=[Paragraph("No rollout is on record.")]))
    else:
        sections = _outcome(answer, plan_shown or answer["command"] == "rollback")
    sections.append(Section("Coverage", [_blind(answer)]))
    return Report(sections)


def _outcome(answer: _Json, plan_shown: bool) -> list[Section]:
    sections = [_summary(answer)]
    hosts = _folded(answer["hosts"], lambda host: _host(host, plan_shown))
    blocks = [Bullets(list(hosts))]
    if not plan_shown:
        sections.append(Section("Files", [bullets(_plan(answer))]))
        blocks.append(bullets(_processes(answer)))
    sections.append(Section("Hosts", blocks))
    events = [joined([utc(event["at"]), event["text"]]) for event in answer["events"]]
    sections.append(Section("Events", [bullets(events)]))
    return sections


def _summary(answer: _Json) -> Section:
    outcome, rollout = str(answer["outcome"]), answer["rollout"]
    tone = _TONES.get(outcome, Tone.BAD)
    remarks = [filled("why: {}", answer["reason"])]
    if outcome == "incomplete":
        undo = f"raydiag hotfix rollback {rollout}"
        remarks.append(f"when these hosts answer again, or are repaired: {undo}")
    summary = Paragraph(_subject(answer) + _result(answer), tone, strong=True)
    return Section(blocks=[summary, bullets(remarks)])


def _subject(answer: _Json) -> str:
    if answer["rollout"]:
        return f"Rollout {answer['rollout']}: "
    return "Plan: " if answer["command"] == "plan" else ""


def _result(answer: _Json) -> str:
    outcome = str(answer["outcome"])
    changing = list(map(itemgetter("state"), answer["hosts"])).count("change")
    sentences = {
        "planned": f"{count(changing, 'host')} to change; nothing has been changed yet.",
        "verified": f"live and verified on {count(changing, 'host')}.",
        "nothing to do": "nothing to do.",
        "refused": "refused, nothing was changed.",
        "rolled back": "rolled back: every host has its old files again.",
        "incomplete": "NOT rolled back everywhere: see the hosts below.",
    }
    sentence = sentences.get(outcome, f"{outcome}.")
    return sentence if _subject(answer) else sentence[0].upper() + sentence[1:]


def _host(host: _Json, plan_shown: bool) -> tuple[str, ...]:
    """The state of a host, then what is to be said of it."""
    details = [] if plan_shown else list(map(_change, host["changes"]))
    details += [*host["reasons"], host["outcome_reason"], *host["notes"]]
    if host["driver_fault"]:
        details.append(f"shows the GPU driver fault: {host['driver_fault']}")
    return (host["outcome"] or host["state"], *filter(None, details))


def _change(change: _Json) -> str:
    old = change["old_sha256"][:_SHOWN_DIGITS] or "(new)"
    restart = ", exporter restarted" if change["restart"] else ""
    return f"{change['path']}  {old} -> {change['new_sha256'][:_SHOWN_DIGITS]}{restart}"


def _plan(answer: _Json) -> Iterator[str]:
    """The files, and the order in which hosts get them."""
    for file in answer["files"]:
        digest = f"sha256 {file['sha256'][:_SHOWN_DIGITS]}"
        yield joined([file["name"], digest, f"{file['size_bytes']} bytes"])
    if answer["canary"]:
        yield f"canary {answer['canary']}"
        yield f"batches: {' | '.join(map(fold, answer['batches']))}"
    for directory in answer["directories"]:
        hosts = fold(directory["hosts"])
        shared = f"{directory['path']} ({directory['source']}) is one directory of {hosts}"
        yield shared + filled(", written once, by {}", directory["writer"])


def _processes(answer: _Json) -> Iterator[str]:
    """What a restart would end, host by host."""
    ending = list(filter(itemgetter("ends"), answer["hosts"]))
    for host in ending[:_MOST_HOSTS_WITH_PROCESSES]:
        processes = ", ".join(map("{role} {pid}".format_map, host["ends"]))
        restarts = f"restarts {host['restarts']}, {host['restarts_left']} left"
        yield f"{host['host']} ends {processes}; {restarts}"
    unnamed = len(ending) - _MOST_HOSTS_WITH_PROCESSES
    if unnamed > 0:
        yield f"and on {count(unnamed, 'more host')}: see --format json"


def _rollout(rollout: _Json) -> Section:
    """One rollout of `status`."""
    state = str(rollout["state"])
    began = utc(rollout["began_at"]) if rollout["began_at"] else "at an unknown time"
    summary = f"Rollout {rollout['rollout']}: {state}. Began {began}, by {rollout['who'] or '?'}."
    remarks = [filled("why: {}", rollout["reason"])]
    if state in ("its driver died", "incomplete"):
        remarks.append(f"undo it: raydiag hotfix rollback {rollout['rollout']}")
    hosts = Bullets(list(_folded(rollout["hosts"], _content)))
    tone = _TONES.get(state, Tone.BAD)
    return Section(blocks=[Paragraph(summary, tone, strong=True), bullets(remarks), hosts])


def _content(host: _Json) -> tuple[str, ...]:
    """What the files of a host hold now, then what is to be said of it."""
    details = []
    for file in host["files"]:
        details.append(f"{file['path']}: {file['content']} ({file['sha256'][:_SHOWN_DIGITS]})")
    details.append(filled("not seen: {}", host["unseen"]))
    details.append(filled("ended there: {}", host["ended"]))
    details += [host["outcome_reason"], *host["notes"]]
    return (f"content {host['content']}", *filter(None, details))


def _folded(
    hosts: Iterable[_Json], description_of: Callable[[_Json], tuple[str, ...]]
) -> Iterator[Bullet]:
    """Hosts of which the same is said share an entry."""
    for (state, *details), alike in grouped(hosts, description_of).items():
        names = map(itemgetter("host"), alike)
        tone = _TONES.get(state, Tone.PLAIN if state.startswith("content ") else Tone.BAD)
        yield Bullet(fold(names), details, badge=Toned(state, tone))


def _blind(answer: _Json) -> Bullets:
    blind = answer["coverage"]["nodes"]["blind"]
    return bullets(map("not seen: {host}: {reason}".format_map, blind))
