"""The tables hold what they promise, and the loader refuses every kind of mistake."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from raydiag import catalog
from raydiag.catalog.failure_classes import parse_failures
from raydiag.catalog.kernel_table import parse_kernel_events, parse_nvidia_codes
from raydiag.errors import CatalogError
from raydiag.model import Severity
from raydiag.playbooks.registry import playbooks
from raydiag.probes.kernel_log import WordFilter
from tools.alternatives import unneeded_alternatives

PUBLISHED_EVENTS = {
    *("amdgpu-ras-ue", "amdgpu-ras-ce", "amdgpu-ras-deferred", "amdgpu-poison", "amdgpu-cper"),
    *("amdgpu-bad-page-threshold", "amdgpu-ring-timeout", "amdgpu-mes-hang", "amdgpu-smu"),
    *("amdgpu-reset", "amdgpu-reset-failed", "amdgpu-page-fault", "amdgpu-xgmi", "kfd-error"),
    *("amdgpu-device-lost", "amdgpu-other-error", "oom-kill", "oom-kill-cgroup", "hung-task"),
    *("soft-lockup", "hard-lockup", "rcu-stall", "kernel-oops", "kernel-panic", "segfault"),
    *("nvidia-xid", "nvidia-sxid", "nvidia-nvrm-other", "nvlink", "thermal-throttle"),
    *("pcie-aer-correctable", "pcie-aer-nonfatal", "pcie-aer-fatal", "pcie-link-down"),
    *("mce", "edac-ce", "edac-ue", "iommu-fault", "nfs-timeout", "nfs-ok", "rdma-error"),
    *("fs-readonly-remount", "fs-error", "io-error", "nvme-reset"),
    *("net-link-down", "net-link-up", "net-tx-timeout"),
}

ROWS = catalog.kernel_table().events
EXAMPLES = [(row, line) for row in ROWS for line in row.examples]
NEAR_MISSES = [(row, line) for row in ROWS for line in row.near_misses]


def test_example_belongs_to_its_row() -> None:
    """One test for the whole table: thousands of tests would cost more than what they test."""
    strays = []
    for row, line in EXAMPLES:
        hit = catalog.kernel_event(line)
        is_its_class = hit is not None and (row.finer or hit[0].event == row.event)
        if hit is None or not is_its_class or hit[0].pattern != row.pattern:
            strays.append((row.event, line, hit and hit[0].pattern.pattern))
    assert strays == []


def test_example_passes_the_filter_of_the_nodes() -> None:
    node_filter = WordFilter(catalog.kernel_table().words)
    dropped = [line for _, line in EXAMPLES if node_filter.lines_with(line.encode()) != [0]]
    assert dropped == []


def test_example_holds_the_words_of_its_row() -> None:
    wordless = []
    for row, line in EXAMPLES:
        groups = [word.split("&") for word in row.words]
        if not any(all(part in line.lower() for part in group) for group in groups):
            wordless.append((row.event, line))
    assert wordless == []


def test_near_miss_is_not_its_rows_event() -> None:
    hits = []
    for row, line in NEAR_MISSES:
        hit = catalog.kernel_event(line)
        if hit is not None and hit[0] is row:
            hits.append((row.event, line))
    assert hits == []


def test_every_alternative_is_needed_by_an_example() -> None:
    unneeded = []
    for row in ROWS:
        parts = unneeded_alternatives(row.pattern.pattern, row.examples, row.near_misses)
        unneeded += [(row.event, part) for part in parts]
    assert unneeded == []


def test_every_variant_is_named_by_a_rule() -> None:
    package = Path(catalog.__file__).parent.parent
    sources = "".join(path.read_text("utf-8") for path in package.rglob("*.py"))
    unused = []
    for entry in catalog.failures().values():
        unused += [(entry.id, name) for name in entry.variants if f'"{name}"' not in sources]
    assert unused == []


@pytest.mark.parametrize(
    "line",
    [
        "amdgpu 0000:1b:00.0: amdgpu: no uncorrectable hardware errors detected in umc block",
        "amdgpu 0000:1b:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block",
        "amdgpu 0000:1b:00.0: amdgpu: RAS INFO: ras initialized successfully, ability[7f] mask[7f]",
        "amdgpu 0000:1b:00.0: amdgpu: SMU is resumed successfully!",
        "amdgpu 0000:1b:00.0: amdgpu: RAP: optional rap ta ucode is not available",
        "[drm] Initialized amdgpu 3.59.0 for 0000:1b:00.0 on minor 1",
        "kfd kfd: amdgpu: added device 1002:74a1",
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.",
        "",
    ],
)
def test_healthy_line_states_nothing(line: str) -> None:
    assert catalog.kernel_event(line) is None


def test_published_events_stay() -> None:
    """Filters of users name them; a new event needs no place in this list."""
    assert {row.event for row in ROWS} >= PUBLISHED_EVENTS


def test_every_class_of_an_event_without_a_row_of_its_own_is_known() -> None:
    classes = catalog.failures()
    for row in ROWS:
        assert row.finding in classes
        assert set(row.finding_by_block.values()) <= classes.keys()


def test_block_decides_the_finding() -> None:
    row = next(row for row in ROWS if row.event == "amdgpu-ras-ue" and row.finding_by_block)
    assert row.finding_for("UMC") == "gpu-memory-error"
    assert row.finding_for("xgmi_wafl") == "xgmi-error"
    assert row.finding_for("gfx") == row.finding_for(None) == "gpu-ras-error"


def test_recovery_is_never_loud() -> None:
    assert {row.severity for row in ROWS if row.recovers} == {Severity.INFO}


@pytest.mark.parametrize("symbol", catalog.kernel_table().driver_fault_symbols)
def test_driver_fault_symbol_in_a_stack_is_a_driver_fault(symbol: str) -> None:
    for frame in (f" {symbol}+0x4c/0xb0 [amdgpu]", f"RIP: 0010:{symbol}+0x4c/0xb0 [amdgpu]"):
        hit = catalog.kernel_event(frame)
        assert hit is not None
        assert hit[0].finding == "gpu-driver-fault"


def test_driver_fault_is_not_critical_and_advises_no_kill() -> None:
    fault = catalog.failures()["gpu-driver-fault"]
    assert fault.severity is Severity.WARNING
    assert any("reboot" in step for step in fault.next_steps)
    assert {"d-state-accumulation", "hung-read"} <= set(fault.can_cause)


def test_tables_are_read_once() -> None:
    assert catalog.failures() is catalog.failures()
    assert catalog.kernel_table().events is catalog.kernel_table().events


def test_number_is_known_by_its_family() -> None:
    lost = catalog.nvidia_code("xid", 79)
    assert lost is not None
    assert (lost.name, lost.severity, lost.finding) == ("Xid 79", Severity.CRITICAL, "")
    assert catalog.nvidia_code("sxid", 79) is None
    assert catalog.nvidia_code("xid", 9999) is None


CODES = """
    - codes: {xid: [1, 2], sxid: [3]}
      title: something
      severity: warning
      finding: a
      also: [b]
      next_step: look
    """


def test_small_table_of_numbers_loads() -> None:
    classes = parse_failures(textwrap.dedent(FAILURES)).classes
    table = parse_nvidia_codes(textwrap.dedent(CODES), classes, {"b"})
    assert list(table) == [("xid", 1), ("xid", 2), ("sxid", 3)]
    assert table["sxid", 3].name == "SXid 3"


@pytest.mark.parametrize(
    ("line", "level", "known"),
    [
        ("GPU x: unfailing", -1, True),
        ("GPU x: Timed out", -1, True),
        ("GPU x: overtimed out", -1, False),
        ("GPU x: timed outs", 4, False),
        ("GPU x: no such page, failed", -1, False),
        ("GPU x: failed", 5, True),
        ("GPU x: failed", 6, False),
        ("GPU x: something", 3, True),
        ("GPU x: something", 4, False),
        ("NIC 3: it (-22)", -1, True),
        ("NIC x: it (-22)", -1, False),
        ("a GPU x: failed", -1, False),
    ],
)
def test_a_drivers_line_that_no_row_knows_is_told_by_its_level_or_its_words(
    line: str, level: int, known: bool
) -> None:
    classes = parse_failures(textwrap.dedent(FAILURES)).classes
    hit = parse_kernel_events(textwrap.dedent(EVENTS), classes).match(line, level)
    assert (hit is not None) is known
    assert hit is None or hit[0].unclassified


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("xid: [1, 2]", "xid: [1, 1]", "xid 1 is there twice"),
        ("xid: [1, 2]", "yid: [1, 2]", "codes must map"),
        ("xid: [1, 2]", "xid: [one]", "codes must map"),
        ("finding: a", "finding: z", "no failure class 'z'"),
        ("also: [b]", "also: [z]", "no row has the event 'z'"),
        ("title: something", "heading: x", "title is missing"),
        ("next_step: look", "next_step: look\n      more: x", "unknown key 'more'"),
        ("severity: warning", "severity: fatal", "no severity 'fatal'"),
    ],
)
def test_wrong_number_is_refused(old: str, new: str, problem: str) -> None:
    classes = parse_failures(textwrap.dedent(FAILURES)).classes
    with pytest.raises(CatalogError, match=r"nvidia_codes\.yaml") as caught:
        parse_nvidia_codes(textwrap.dedent(CODES.replace(old, new, 1)), classes, {"b"})
    assert problem in str(caught.value)


def test_words_of_two_parts_are_spelt_out() -> None:
    classes = parse_failures(textwrap.dedent(FAILURES)).classes
    text = textwrap.dedent(EVENTS).replace("words: [gpu]", 'words: ["gp|xx&3|4"]')
    table = parse_kernel_events(text, classes)
    assert table.events[0].words == ("gp&3", "gp&4", "xx&3", "xx&4")
    assert set(table.words) == {"gp&3|4", "rip:", "xx&3|4"}


def test_words_share_what_is_searched_for() -> None:
    classes = parse_failures(textwrap.dedent(FAILURES)).classes
    text = textwrap.dedent(EVENTS).replace(
        "words: [gpu]", 'words: ["gpux&fail", "failed x", "fail&x&y"]'
    )
    words = parse_kernel_events(text, classes).words
    assert set(words) == {"fail&failed x|gpux", "fail&x&y", "rip:"}


def test_words_that_others_imply_do_not_travel() -> None:
    classes = parse_failures(textwrap.dedent(FAILURES)).classes
    text = textwrap.dedent(EVENTS).replace(
        "words: [gpu]", 'words: ["gpux&fail", "fail", "failed x"]'
    )
    assert set(parse_kernel_events(text, classes).words) == {"fail", "rip:"}


FAILURES = """
    groups:
      some: [b]
    log_priority: [b]
    cascades:
    - rule: first a
      roots: [a]
      effects: [$some]
    classes:
    - id: a
      title: A
      severity: warning
      can_cause: [$some]
      ends: [b]
      concerns: monitoring
      next_steps: [look]
      explanation: why
      source: here
    - id: b
      title: B
      severity: info
      can_cause: []
      symptom: true
      next_steps: [look]
      explanation: why
      source: there
    """

EVENTS = r"""
    driver_fault_symbols: [f]
    trace_words: ["rip:"]
    quiet: ["nothing at all"]
    harmless: ["no such page"]
    failures: ["*fail*", timed out, "(-#"]
    drivers:
      - {event: a, begins: [gpu, "nic #:"]}
    events:
      - event: a
        pattern: 'gpu (?P<pid>\d+)'
        words: [gpu]
        severity: warning
        examples: ['gpu 3']
        near_misses: ['cpu 3']
        source: here
    """


def test_small_tables_load() -> None:
    classes = parse_failures(textwrap.dedent(FAILURES)).classes
    table = parse_kernel_events(textwrap.dedent(EVENTS), classes)
    assert list(classes) == ["a", "b"]
    assert table.words == ("gpu", "rip:")
    assert table.events[0].finding == "a"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("can_cause: [$some]", "can_cause: [c]", "a: no failure class 'c'"),
        ("can_cause: [$some]", "can_cause: [$others]", "no group 'others'"),
        ("some: [b]", "some: [c]", "some: no failure class 'c'"),
        ("some: [b]", "some: [$some]", "some: causes itself: some -> some"),
        ("some: [b]", "some: []", "groups: some is empty"),
        ("log_priority: [b]", "log_priority: [c]", "log_priority: no failure class 'c'"),
        ("roots: [a]", "roots: [c]", "cascades: no failure class 'c'"),
        ("effects: [$some]", "causes: [b]", "first a: effects is missing"),
        ("ends: [b]", "ends: [c]", "a: no failure class 'c'"),
        ("concerns: monitoring", "concerns: a job", "a: concerns must be one of job, monitoring"),
        ("symptom: true", "symptom: 1", "b: symptom must be true or false"),
        ("log_priority: [b]", "priority: [b]", "unknown key 'priority'"),
        ("can_cause: []", "can_cause: [a]", "causes itself: a -> b -> a"),
        ("can_cause: [$some]", "can_cause: [a]", "causes itself: a -> a"),
        ("id: b", "id: a", "twice"),
        ("severity: info", "severity: fatal", "b: no severity 'fatal'"),
        ("severity: info", "severity: 3", "b: severity must be a text"),
        ("title: B", "heading: B", "b: title is missing"),
        ("title: B", "title: B\n      colour: red", "b: unknown key 'colour'"),
        ("title: B", "title: B\n      title: C", "twice"),
        ("next_steps: [look]", "next_steps: []", "next_steps is empty"),
        ("next_steps: [look]", "next_steps: look", "must be a list"),
        ("source: there", "source: there\n      variants: {x: {level: 3}}", "b: x: unknown key"),
        (
            "source: there",
            "source: there\n      variants: {x: {severity: 3}}",
            "b: x: severity must",
        ),
        ("- id: a", "- [", "failures.yaml"),
    ],
)
def test_wrong_failure_is_refused(old: str, new: str, problem: str) -> None:
    text = FAILURES.replace(old, new, 1)
    with pytest.raises(CatalogError, match=r"failures\.yaml") as caught:
        parse_failures(textwrap.dedent(text))
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("- event: a", "- event: z", "z: no failure class 'z'"),
        ("severity: warning", "severity: warning\n        finding: z", "no failure class 'z'"),
        (
            "severity: warning",
            "severity: warning\n        finding_by_block: {umc: z}",
            "no failure class 'z'",
        ),
        ("severity: warning", "severity: warning\n        trace: 1", "trace must be true or false"),
        ("severity: warning", "severity: warning\n        recovers: [z]", "no row has the event"),
        ("severity: warning", "severity: warning\n        part_of: [z]", "no row has the event"),
        ("severity: warning", "severity: warning\n        level: 3", "unknown key 'level'"),
        ("severity: warning", "severity: warning\n        also: [z]", "no row has the event"),
        ("severity: warning", "severity: warning\n        many: 0", "many must be a whole number"),
        (
            "severity: warning",
            "severity: warning\n        codes: yid",
            "codes must be one of",
        ),
        ("(?P<pid>", "(?P<pid", "pattern: "),
        ("(?P<pid>", "(?P<colour>", "no meaning for group 'colour'"),
        (r"'gpu (?P<pid>\d+)'", "'x*'", "matches the empty line"),
        ("words: [gpu]", "words: [GPU]", "lower case"),
        ("words: [gpu]", "words: []", "words is empty"),
        ("        examples: ['gpu 3']\n", "", "examples is missing"),
        ("examples: ['gpu 3']", "examples: []", "examples is empty"),
        ("near_misses: ['cpu 3']", "near_misses: []", "near_misses is empty"),
        ("        source: here\n", "", "source is missing"),
        ("trace_words", "other_words", "trace_words is missing"),
        ("trace_words:", "more: [x]\n    trace_words:", "unknown key 'more'"),
        ("- event: a", "- 7", "kernel_events.yaml"),
        ('quiet: ["nothing at all"]', 'quiet: ["No 1"]', "must be in lower case"),
        ('quiet: ["nothing at all"]', 'quiet: ["gpu"]', "would hide a"),
        ("{event: a, begins", "{event: other, begins", "no row has the event 'other'"),
        ('begins: [gpu, "nic #:"]', "begins: []", "begins is empty"),
    ],
)
def test_wrong_kernel_event_is_refused(old: str, new: str, problem: str) -> None:
    classes = parse_failures(textwrap.dedent(FAILURES)).classes
    text = textwrap.dedent(EVENTS.replace(old, new, 1))
    with pytest.raises(CatalogError, match=r"kernel_events\.yaml") as caught:
        parse_kernel_events(text, classes)
    assert problem in str(caught.value)


def test_rows_of_one_event_agree_on_the_finding() -> None:
    classes = parse_failures(textwrap.dedent(FAILURES)).classes
    row = EVENTS[EVENTS.index("      - event") :]
    text = EVENTS.rstrip(" ") + row.replace("severity:", "finding: b\n        severity:").rstrip(
        " "
    )
    with pytest.raises(CatalogError, match="a: rows of one event must agree"):
        parse_kernel_events(textwrap.dedent(text), classes)


@pytest.mark.parametrize("text", ["", "7", "- 7", "a: [1", "[]"])
def test_text_that_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(CatalogError):
        parse_failures(text)
    with pytest.raises(CatalogError):
        parse_kernel_events(text, {})


def test_a_class_names_playbooks_that_exist() -> None:
    named = {name for entry in catalog.failures().values() for name in entry.playbooks}
    unnamed = {playbook.id for playbook in playbooks()} ^ named
    assert not unnamed, f"{unnamed}: a playbook stands in `playbooks` of a class of failures.yaml"
