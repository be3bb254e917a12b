"""What the administrator of one node with a GPU driver fault has to know, ready to send."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from functools import partial
from itertools import chain, filterfalse

from raydiag import __version__
from raydiag.explain.driver_fault import advice
from raydiag.explain.driver_fault.signs import FAULT
from raydiag.explain.driver_fault.types import (
    GpuEvent,
    GpuState,
    InvestigatedNode,
    Investigation,
    KernelStack,
    NodeVerdict,
    StuckTasks,
)
from raydiag.model import Severity
from raydiag.nodeset import fold
from raydiag.render.formats import count, filled, number, or_dash, utc
from raydiag.render.groups import evidence_line
from raydiag.render.report import (
    TONES,
    Block,
    Bullet,
    Bullets,
    KeyValues,
    Paragraph,
    Quote,
    Section,
    Steps,
    Table,
    Tone,
    Toned,
    bullets,
    severity_label,
    table,
)

COUNTER = "hw_dmesg_gpu_errors_total"
_MOST_STACKS, _MOST_EVIDENCE = 3, 8
_OTHERS = {
    NodeVerdict.CLEAN: "{} clean",
    NodeVerdict.SUSPECT: "{} suspect",
    NodeVerdict.CONFIRMED: "{} with a confirmed fault",
    NodeVerdict.UNREACHABLE: "{} did not answer",
    NodeVerdict.NOT_CHECKED: "{} could not be checked",
}
_HOURS_OF_A_YEAR = 8766.0


def admin_sections(node: InvestigatedNode, investigation: Investigation) -> Iterator[Section]:
    """The report on one node."""
    yield Section(
        f"Report for the administrator: {node.host}",
        [
            Paragraph(f"{node.host}: {node.verdict.value}. {_sentence(node.reason)}", strong=True),
            KeyValues(list(_facts(node, investigation)), ("Item", "Value")),
        ],
        tone=Tone.BAD if node.verdict is NodeVerdict.CONFIRMED else Tone.DOUBTFUL,
        is_chapter=True,
    )
    yield Section("Signs", [bullets(_signs(node))])
    yield Section("Findings", [Bullets(list(_findings(node)))])
    yield Section("Kernel call stack, verbatim", list(_stacks(node)))
    yield Section("What the kernel log says of the GPUs", [_events(node)])
    yield Section("GPUs", [*_gpus(node), bullets(advice.return_criteria(node))])
    impact = [*advice.impact(node), *_accumulation(node)]
    yield Section("Impact", [bullets(impact)])
    yield Section("Recovery and next steps", [Steps(advice.steps(node))])
    yield Section("Could not be read", [bullets(node.unread)])


# ---- the facts of one line


def _facts(node: InvestigatedNode, investigation: Investigation) -> Iterator[tuple[str, str]]:
    yield "Hostname", " ".join(filter(None, (node.host, filled("({})", node.address))))
    yield "Kernel (uname -r)", node.versions.get("kernel", "not read")
    for component, name in (("amdgpu", "amdgpu module version"), ("nvidia", "NVIDIA driver")):
        if component in node.versions:
            yield name, node.versions[component]
    if not {"amdgpu", "nvidia"} & node.versions.keys():
        yield "amdgpu module version", "not read: no GPU driver is loaded, or /sys is not visible"
    yield COUNTER, _counter(node)
    yield "Tasks stuck in the driver (state D)", _stuck(node.stuck)
    yield "Onset", _onset(node)
    yield "Onset by the kernel log", _kernel_onset(node)
    yield "Onset by the metric", _metric_onset(node)
    yield "Other nodes", others(node, investigation)
    yield "Found", f"{utc(investigation.seen_at)} by raydiag {__version__}, read-only"


def _counter(node: InvestigatedNode) -> str:
    if node.errors_counter is None:
        return f"not known: {node.errors_counter_source or 'no metrics were read'}"
    return f"{node.errors_counter:.0f}  ({node.errors_counter_source})"


def _stuck(stuck: StuckTasks) -> str:
    if not stuck.count:
        return "not read" if stuck.count is None else "0"
    places = ", ".join(f"{tasks} in {name or '?'}" for name, tasks in stuck.channels.items())
    own = f", {stuck.readers} of them readers of raydiag" if stuck.readers else ""
    return f"{stuck.count}: {places}{own}"


def _onset(node: InvestigatedNode) -> str:
    if node.onset.first is None:
        return "not known"
    if not node.dated:
        return f"{node.onset.first:.3f} s after boot"
    return f"{'not later than ' if node.onset.is_bound else ''}{utc(node.onset.first)}"


def _kernel_onset(node: InvestigatedNode) -> str:
    onset = node.onset
    if onset.kernel is None:
        return "no line about it"
    if not node.dated:
        return f"{onset.kernel:.3f} s after boot: the log has no dates"
    bound = "not later than " if onset.kernel_not_later_than else ""
    lost = "; earlier records are overwritten" if onset.kernel_not_later_than else ""
    drift = f"time since boot + btime, good to {onset.kernel_uncertainty_s:.0f} s"
    return f"{bound}{utc(onset.kernel)}  ({drift}{lost})"


def _metric_onset(node: InvestigatedNode) -> str:
    onset = node.onset
    if onset.metric is None and node.errors_counter is not None:
        return f"none: no series of {COUNTER} is above zero"
    if onset.metric is None:
        return f"none: {node.errors_counter_source or 'no metrics were read'}"
    if onset.metric_not_later_than:
        return f"not later than {utc(onset.metric)}, the first sample of {COUNTER}"
    return f"{utc(onset.metric)}, when {COUNTER} rose first"


def others(node: InvestigatedNode, investigation: Investigation) -> str:
    """Whether all others are clean, with how many were checked and how many did not answer."""
    rest = investigation.others(node)
    total = sum(map(len, rest.values()))
    if not total:
        return "none: no other node was asked, so there is nothing to compare with"
    if not investigation.was_asked:
        known = f"{count(total, 'other node')} ({fold(chain.from_iterable(rest.values()))})"
        return f"{known} have series and none was asked: whether they are clean is not known"
    asked = f"{count(total, 'other node')} asked"
    if set(rest) == {NodeVerdict.CLEAN}:
        return f"All other nodes are clean: {asked}, all answered ({fold(rest[NodeVerdict.CLEAN])})"
    parts = []
    for verdict, hosts in rest.items():
        parts.append(f"{_OTHERS[verdict].format(len(hosts))} ({fold(hosts)})")
    silent = len(rest.get(NodeVerdict.UNREACHABLE, ()))
    return f"{asked}, {silent} did not answer: {'; '.join(parts)}"


# ---- signs, stacks, events


def _signs(node: InvestigatedNode) -> Iterator[str]:
    for sign in node.signs:
        is_known = sign.time is not None and node.dated
        since = f"  (since {utc(sign.time or 0.0)})" if is_known else ""
        yield f"{sign.kind.value}: {sign.text}  [{sign.source}]{since}"
        yield filled("that means: {}", advice.meaning(sign.text))


def _findings(node: InvestigatedNode) -> Iterator[Bullet]:
    for finding in node.findings:
        severity = finding.severity or Severity.WARNING
        place = (filled("GPU {}", finding.gpu), finding.device, finding.task)
        what = " ".join(filter(None, (finding.failure_class, *place)))
        title = f"{what}: {finding.title}, {finding.confidence.value}"
        lines = list(map(evidence_line, finding.evidence[:_MOST_EVIDENCE]))
        if finding.failure_class == FAULT:
            lines = []  # the stack below has them
        yield Bullet(title, lines, severity_label(severity))


def _stacks(node: InvestigatedNode) -> Iterator[Block]:
    """Each whole; of like ones the first."""
    for stack in node.stacks[:_MOST_STACKS]:
        alike = f" The first of {stack.count} alike." if stack.count > 1 else ""
        told = advice.meaning(stack.symbol) or stack.headline
        yield Paragraph(filled("{}: ", stack.symbol) + f"{told}.{alike}")
        yield Quote(list(stack_lines(stack, node.dated)))
    if len(node.stacks) > _MOST_STACKS:
        yield Paragraph(f"{len(node.stacks) - _MOST_STACKS} more of another form: JSON has them.")


def stack_lines(stack: KernelStack, dated: bool) -> Iterator[str]:
    """The lines as the kernel wrote them, each after its time."""
    for line in stack.lines:
        yield f"{_clock(line.time_s, dated)}  {line.text}"


def _clock(time_s: float, dated: bool) -> str:
    if not dated:
        return f"[{time_s:14.6f}]"
    at = datetime.fromtimestamp(time_s, timezone.utc)
    return f"{at:%Y-%m-%d %H:%M:%S.%f}Z"


def _events(node: InvestigatedNode) -> Table:
    rows = map(partial(_event_row, dated=node.dated), node.events)
    return table(("First", "GPU", "Event", "Times", "Meaning and what to do"), rows)


def _event_row(event: GpuEvent, dated: bool) -> Sequence[str | Toned]:
    when = utc(event.first) if dated else f"{event.first:.3f} s after boot"
    bound = "not later than " if event.not_later_than else ""
    place = or_dash(event.gpu) + filled(" {}", event.device)
    tone = TONES[event.severity]
    advice = (
        event.meaning if event.severity is Severity.INFO else event.meaning + ". " + event.next_step
    )
    return bound + when, place, Toned(event.event, tone), str(event.count), advice


# ---- the GPUs


def _gpus(node: InvestigatedNode) -> Iterator[Block]:
    """A row for each that has something to tell; the others in a sentence."""
    named = {event.device for event in node.events}
    telling = [gpu for gpu in node.gpus if gpu.is_ill or gpu.address in named]
    header = ("GPU", "PCI address", "UUID", "Errors", "Bad pages or rows", "Resets", "Runs")
    yield table(header, map(_gpu_row, telling))
    others = Counter(map(_state, filterfalse(telling.__contains__, node.gpus)))
    for state, how_many in others.items():
        yield Paragraph(f"{count(how_many, 'GPU')} {state}.")


def _state(gpu: GpuState) -> str:
    if not gpu.errors:
        return "whose counters were not read"
    return "with corrected errors only" if _counts(gpu) else "without an error"


def _counts(gpu: GpuState) -> str:
    """`umc: 2 uncorrected, 14 corrected`; "" without an error."""
    texts = []
    for block, counts in gpu.errors.items():
        named = zip(("uncorrected", "corrected", "deferred"), counts, strict=True)
        told = ", ".join(f"{value} {name}" for name, value in named if value)
        texts.append(filled(f"{block}: {{}}", told))
    if gpu.bad_pages and any(gpu.bad_pages):
        texts.append(f"{sum(gpu.bad_pages)} bad {'rows' if gpu.driver == 'nvidia' else 'pages'}")
    return "; ".join(filter(None, texts))


def _gpu_row(gpu: GpuState) -> Sequence[str]:
    pages = "not read"
    if gpu.bad_pages is not None:
        pages = "{} retired, {} pending, {} failed".format(*gpu.bad_pages)
    errors = _counts(gpu) or ("none" if gpu.errors else "not read")
    rank = gpu.rank or "-"
    return str(gpu.gpu), gpu.address, gpu.uuid or "-", errors, pages, str(gpu.resets), rank


def _accumulation(node: InvestigatedNode) -> Iterator[str]:
    """How the node fills up with tasks that hang."""
    stuck = node.stuck
    if not advice.has_driver_fault(node) or stuck.pid_max is None:
        return
    room = f"{stuck.pids_in_use} of {stuck.pid_max} process ids are in use"
    if stuck.per_hour is None or stuck.hours_left is None:
        yield f"{room}."
        return
    years = stuck.hours_left / _HOURS_OF_A_YEAR
    lasts = f"{years:.1f} years" if years >= 1 else f"{stuck.hours_left / 24:.1f} days"
    rate = f"{number(round(stuck.per_hour, 1))} stuck tasks came each hour"
    since = f" since {utc(stuck.first_start)}" if stuck.first_start else ""
    yield f"{rate}{since}; {room}, which lasts {lasts} at that rate."


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
