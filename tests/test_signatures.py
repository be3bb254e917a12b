"""The signature table holds what it promises, and its loader refuses every kind of mistake."""

from __future__ import annotations

import textwrap
import time

import pytest

from raydiag import catalog
from raydiag.catalog.literals import required_literals, without_digits
from raydiag.catalog.signatures import parse_signatures, table
from raydiag.errors import CatalogError
from raydiag.joblog.line_selection import selector
from raydiag.joblog.log_line import Hit, JobLogLine, Prefix, Selector
from raydiag.model import Severity
from raydiag.triage.signatures import BESIDE_LINES, Classifier, make_selector
from tools.alternatives import unneeded_alternatives

ROWS = table().rows
# Classes that are judged from steps, exits or the scheduler, not from a line.
JUDGED = {"hang", "unknown-death", "soft-success", "tgs-degradation"}
JOB_CLASSES = set(catalog.failure_table().log_priority) - JUDGED
EXAMPLES = [(row, text) for row in ROWS for text in row.examples]
NEAR_MISSES = [(row, text) for row in ROWS for text in row.near_misses]


LITERALS = {literal.encode() for row in ROWS for literal in row.literals}
SELECTORS = [make_selector([]), selector(LITERALS, fast=False)]
CLASSIFIER = Classifier()


def line(text: str, number: int = 1, training: bool = True) -> JobLogLine:
    return JobLogLine("job.log", number, text, text, Prefix(), None, None, training)


def hits(text: str, training: bool = True) -> list[Hit]:
    return list(CLASSIFIER(line(text, training=training)))


def rows_of(text: str, training: bool = True) -> set[str]:
    return {hit.row for hit in hits(text, training)}


def test_example_is_of_its_row() -> None:
    """One test for the whole table: thousands of tests would cost more than what they test."""
    strays = []
    for row, text in EXAMPLES:
        rows = rows_of(text, training=row.when != "before-training")
        if row.id not in rows:
            strays.append((row.id, text, rows))
    assert strays == []


def test_every_alternative_is_needed_by_an_example() -> None:
    """An alternative without an example may be misspelt, and no test fails."""
    unneeded = {}
    for row in ROWS:
        parts = unneeded_alternatives(row.pattern.pattern, row.examples, row.near_misses)
        if parts:
            unneeded[row.id] = parts
    assert unneeded == {}


def test_example_is_of_no_other_class_that_means_something_else() -> None:
    ambiguous = []
    for row, text in EXAMPLES:
        training = row.when != "before-training"
        classes = {hit.failure_class for hit in hits(text, training)} - {row.failure_class}
        if not classes <= MEANS_ALSO.get(row.id, set()):
            ambiguous.append((row.id, text, classes))
    assert ambiguous == []


# Lines that are about two things.
MEANS_ALSO: dict[str, set[str]] = {}


def test_near_miss_is_not_of_its_row() -> None:
    assert [(row.id, text) for row, text in NEAR_MISSES if row.id in rows_of(text)] == []


@pytest.mark.parametrize("select", SELECTORS)
def test_example_is_selected(select: Selector) -> None:
    unselected = []
    for row, text in EXAMPLES:
        if not list(select(b"0: " + text.encode() + b"\n")):
            unselected.append((row.id, text))
    assert unselected == []


def test_every_class_of_the_priority_has_a_row_or_a_judge() -> None:
    """A class that is new in the table of signatures gets its place in `log_priority`."""
    assert {row.failure_class for row in ROWS} - {""} == JOB_CLASSES
    assert catalog.failures().keys() >= JOB_CLASSES | JUDGED


# ---- what decides on a line


def test_harmless_line_is_evidence_of_nothing() -> None:
    text = "E0101 x.cc:1] failed call to cuInit: INTERNAL: CUDA error: UNKNOWN ERROR (303)"
    assert rows_of(text) == {"cuinit-303"}


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 12 bytes.", "oom-xla"),
        ("CUDA out of memory. Tried to allocate 2.00 GiB.", "oom-torch"),
        ("Out of memory: Killed process 12 (python3)", "oom-kernel"),
    ],
)
def test_memory_of_host_and_gpu_are_kept_apart(text: str, row: str) -> None:
    assert rows_of(text) == {row}


@pytest.mark.parametrize(
    "text",
    [
        "Training subprocess killed by SIGKILL (signal 9)",
        "[exec] Killed all processes in container trainer",
        "zoom into the room",
        "[cgroup] Sent SIGKILL to 0/0 processes",
        "(1) The process is killed by SIGKILL by OOM killer due to high memory usage.",
    ],
)
def test_word_alone_is_no_lack_of_host_memory(text: str) -> None:
    assert "oom-host" not in {hit.failure_class for hit in hits(text)}


def test_kill_that_hit_something_is_not_harmless() -> None:
    assert {hit.role for hit in hits("[cgroup] Sent SIGKILL to 3/8 processes")} <= {"either"}


def test_network_warning_counts_in_training_only() -> None:
    text = "mi2099:1:2 [0] transport.cc:90 NCCL WARN Cannot reach 10.0.0.4"
    assert rows_of(text, training=True) == {"nccl-warn"}
    assert rows_of(text, training=False) == set()


def test_error_of_the_collective_is_told_from_its_timeout() -> None:
    failed = hits("RuntimeError: NCCL error: ncclSystemError: system call failed")
    late = hits("mi2099:1:2 [0] NCCL WARN Timeout on stream 3")
    assert {hit.failure_class for hit in failed} == {"nccl-error"}
    assert {hit.failure_class for hit in late} == {"nccl-timeout"}


@pytest.mark.parametrize("gap", [1, BESIDE_LINES])
def test_cuda_error_beside_cuinit_is_harmless(gap: int) -> None:
    classify = Classifier()
    assert [hit.role for hit in classify(line("failed call to cuInit: UNKNOWN ERROR (303)"))]
    assert not classify(line("INTERNAL: CUDA error: no device", 1 + gap))
    assert classify(line("INTERNAL: CUDA error: no device", 2 + BESIDE_LINES))


def test_cuda_error_alone_counts() -> None:
    [hit] = Classifier()(line("INTERNAL: CUDA error: no device"))
    assert hit.row == "internal-cuda-error"


@pytest.mark.parametrize(
    "text",
    [
        '  File "/opt/train/nccl.py", line 12, in check',
        '    raise RuntimeError(f"NCCL error: {text}")',
        "Config param checkpoint_error: RESOURCE_EXHAUSTED",
        "  recompute_granularity ........ RESOURCE_EXHAUSTED",
        "+ echo 'No space left on device'",
        "ERROR 01-02 03:04:05 [core.py:398]     raise RuntimeError('NCCL error: x')",
        'MESSAGE="No space left on device"',
        "/opt/x.py:12: UserWarning: No space left on device",
    ],
)
def test_quoted_code_and_settings_are_no_evidence(text: str) -> None:
    assert hits(text) == []


def test_weak_row_gives_way_to_a_strong_one() -> None:
    assert rows_of("OSError: [Errno 28] No space left on device") == {"disk-full"}
    assert rows_of("OSError: something new") == {"python-error-line"}


def test_groups_are_told_without_their_numbers() -> None:
    [hit] = hits("srun: error: Task launch for StepId=1.0 failed on node mi2099: Node failure")
    assert hit.groups == {"host": "mi2099"}
    [hit] = hits("failed (exitcode: -6) local_rank: 7 (pid: 4242) of binary: python")
    assert hit.groups == {"signal": "6", "local_rank": "7", "pid": "4242"}


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        (
            "subprocess.CalledProcessError: Command '['ssh', 'mi2099', 'hostname', '-I']' "
            "returned non-zero exit status 255.",
            {"host": "mi2099", "code": "255"},
        ),
        (
            "torch.distributed.checkpoint.api.CheckpointException: CheckpointException "
            "ranks:dict_keys([3, 7])",
            {"rank": "3"},
        ),
        (
            "A worker died or was killed while executing a task by an unexpected system error. "
            "Node ID: 00ff Worker IP address: 10.0.0.3 Worker port: 10016 Worker PID: 1942",
            {"ip": "10.0.0.3", "pid": "1942"},
        ),
        (  # Ray's ids are long
            "A worker died or was killed while executing a task by an unexpected system error. "
            "To troubleshoot the problem, check the logs for the dead worker. Lease ID: "
            f"{'1f' * 32} Worker ID: {'2e' * 28} Node ID: {'3d' * 28} Worker IP address: 10.0.0.3 "
            "Worker port: 10016 Worker PID: 1942 Worker exit type: SYSTEM_ERROR",
            {"ip": "10.0.0.3", "pid": "1942"},
        ),
        (
            "Memory on the node (IP: 10.0.0.3, ID: 00ff) where the task was running was full",
            {"ip": "10.0.0.3"},
        ),
        (
            "RuntimeError: [/opt/gloo/transport/tcp/pair.cc:525] Read error [10.0.0.3]:41000: "
            "Connection reset by peer",
            {"peer": "10.0.0.3"},
        ),
    ],
)
def test_whom_a_line_names(text: str, groups: dict[str, str]) -> None:
    [hit] = hits(text)
    assert dict(hit.groups) == groups


def test_class_of_the_line_that_ends_a_traceback() -> None:
    assert CLASSIFIER.failure_class("ModuleNotFoundError: No module named 'x'") == "import-error"
    assert CLASSIFIER.failure_class("ValueError: x") is None
    assert CLASSIFIER.failure_class("all is well") is None


def test_what_is_remembered_is_bounded() -> None:
    classify = Classifier()
    for number in range(20_000):
        name = "".join(chr(97 + int(digit)) for digit in str(number))
        classify(line(f"ValueError: {name}"))
    assert len(classify._shapes) <= 8192


def test_no_line_takes_long() -> None:
    """Each literal again and again, as long as a line can be."""
    for row in ROWS:
        for literal in sorted(row.literals)[:3]:
            text = (literal * (65536 // len(literal) + 1))[:65536]
            started = time.process_time()
            row.pattern.search(text)
            if row.unless:
                row.unless.search(text)
            assert time.process_time() - started < 0.5, (row.id, literal)


# ---- literals


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("abcdef", {"abcdef"}),
        ("x.*abcdef", {"abcdef"}),
        ("abcd|efgh", {"abcd", "efgh"}),
        ("(?:No|no) space", {"No space", "no space"}),
        ("[Bb]us error", {"Bus error", "bus error"}),
        (r"abc\d+defghi", {"defghi"}),
        ("abcd(?:efgh)?", {"abcd", "abcdefgh"}),
        ("(?:abcd)+", {"abcd"}),
        ("(?:abcd)*", set()),
        ("(?!no)abcd", {"abcd"}),
        ("a|bcdef", set()),
        ("(?i:abcdef)", set()),
        (r"\d+", set()),
        ("1234", set()),
        ("[^a]bcdef", {"bcdef"}),
        ("[a-z]cdef", {"cdef"}),
    ],
)
def test_literals_that_each_match_holds(pattern: str, expected: set[str]) -> None:
    assert required_literals(pattern) == expected


def test_each_example_holds_a_literal() -> None:
    without = []
    for row, text in EXAMPLES:
        if not any(literal in text for literal in row.literals):
            without.append((row.id, text))
    assert without == []


def test_digits_are_taken_out() -> None:
    assert without_digits("[Errno 28] 1x") == "[Errno ] x"


# ---- the loader

SMALL = r"""
    quotes: ['^code']
    signatures:
      - id: one
        class: disk-full
        role: root
        patterns: ['no space (?P<path>\S+)']
        examples: ['no space /a']
        near_misses: ['space']
        source: here
      - id: two
        role: harmless
        patterns: ['all is well']
        examples: ['all is well']
        near_misses: ['all']
        source: there
    """


def test_small_table_loads() -> None:
    small = parse_signatures(textwrap.dedent(SMALL), {"disk-full"})
    assert [row.id for row in small.rows] == ["one", "two"]
    assert small.by_id["two"].failure_class == ""
    assert small.by_id["one"].literals == {"no space "}


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("class: disk-full", "class: disk-empty", "one: no failure class 'disk-empty'"),
        ("        class: disk-full\n", "", "one: class is missing"),
        ("role: root", "role: cause", "one: role must be one of"),
        ("role: root", "role: root\n        stage: lunch", "one: stage must be one of"),
        ("role: root", "role: root\n        when: never", "one: when must be one of"),
        ("role: root", "role: root\n        weak: 1", "weak must be true or false"),
        ("role: root", "role: root\n        colour: red", "unknown key 'colour'"),
        ("role: root", "role: root\n        unless: ['(']", "a pattern: "),
        ("role: root", "role: root\n        instead_of: [three]", "one: no other row 'three'"),
        ("role: root", "role: root\n        instead_of: [one]", "one: no other row 'one'"),
        ("role: root", "role: root\n        beside: three", "one: no other row 'three'"),
        ("role: harmless", "role: harmless\n        class: disk-full", "unknown key 'class'"),
        ("id: two", "id: one", "one: the id is there twice"),
        ("(?P<path>", "(?P<path", "patterns: "),
        ("(?P<path>", "(?P<colour>", "no meaning for group 'colour'"),
        ("'no space (?P<path>\\S+)'", "'x*'", "matches the empty line"),
        ("'no space (?P<path>\\S+)'", "'a|b'", "no literal that every match holds"),
        ("examples: ['no space /a']", "examples: []", "examples is empty"),
        ("near_misses: ['space']", "near_misses: []", "near_misses is empty"),
        ("        source: here\n", "", "source is missing"),
        ("quotes: ['^code']", "quotes: ['[']", "a pattern: "),
        ("quotes: ['^code']", "quotes: []", "quotes is empty"),
        ("quotes:", "more: 1\n    quotes:", "unknown key 'more'"),
    ],
)
def test_wrong_table_is_refused(old: str, new: str, problem: str) -> None:
    text = SMALL.replace(old, new, 1)
    assert text != SMALL
    with pytest.raises(CatalogError, match=r"signatures\.yaml") as caught:
        parse_signatures(textwrap.dedent(text), {"disk-full"})
    assert problem in str(caught.value)


def test_any_character_reaches_only_so_far() -> None:
    text = textwrap.dedent(SMALL.replace("all is well']\n", "all is.*well']\n", 1))
    row = parse_signatures(text, {"disk-full"}).by_id["two"]
    assert row.pattern.search("all is " + "x" * 280 + " well")
    assert not row.pattern.search("all is " + "x" * 900 + " well")


# ---- what may follow from what


@pytest.mark.parametrize(
    ("cause", "effects"),
    [
        ("oom-host", {"nccl-timeout", "heartbeat-timeout"}),
        ("nccl-error", {"hang", "train-timeout", "heartbeat-timeout"}),
        ("node-fail", {"hang"}),
        ("xla-compile-fail", {"python-exception", "subprocess-fail"}),
        ("hang", {"heartbeat-timeout"}),
    ],
)
def test_known_cascades_are_edges(cause: str, effects: set[str]) -> None:
    assert effects <= set(catalog.failures()[cause].can_cause)


@pytest.mark.parametrize("name", sorted(JOB_CLASSES | JUDGED))
def test_every_class_says_what_to_do(name: str) -> None:
    entry = catalog.failures()[name]
    assert entry.next_steps and entry.explanation and entry.source


def test_mild_classes_are_no_problem() -> None:
    known = catalog.failures()
    assert {name for name in JOB_CLASSES | JUDGED if known[name].severity is Severity.INFO} == {
        "cancelled",
        "soft-success",
    }
    assert known["ray-start-fail"].severity is Severity.WARNING
