"""What the catalog says of one id: each class, event and number has an entry."""

from __future__ import annotations

import re

import pytest

from raydiag import catalog
from raydiag.catalog.entries import CatalogEntry, entry_of
from raydiag.errors import UsageError
from raydiag.model import Severity


def texts(entry: CatalogEntry) -> list[str]:
    return [line.text for line in (*entry.log_lines, *entry.kernel_lines)]


def test_a_class_of_job_logs() -> None:
    entry = entry_of("oom-host")
    assert (entry.id, entry.kind, entry.failure_class.id) == ("oom-host", "class", "oom-host")
    assert "cgroup-memory-pressure" in [cause.id for cause in entry.caused_by]
    assert any("Killed process" in line.text for line in entry.log_lines)
    # The kernel has a class of its own for the same event.
    assert any("Out of memory: Killed process" in line.text for line in entry.kernel_lines)


def test_a_class_that_depends_on_the_hardware_block() -> None:
    memory, others = texts(entry_of("gpu-memory-error")), texts(entry_of("gpu-ras-error"))
    assert any("umc block" in text for text in memory)
    assert not any("umc block" in text for text in others)
    assert any("gfx block" in text for text in others)


def test_an_event_that_has_no_class_of_its_own() -> None:
    entry = entry_of("amdgpu-ras-ue")
    assert (entry.kind, entry.severity) == ("kernel-event", Severity.CRITICAL)
    assert {"gpu-ras-error", "gpu-memory-error", "xgmi-error"} <= set(entry.evidence_of)


@pytest.mark.parametrize("asked", ["xid 79", "Xid79", "XID: 79", "xid-79", "79"])
def test_a_number_however_it_is_written(asked: str) -> None:
    entry = entry_of(asked)
    assert (entry.id, entry.kind, entry.failure_class.id) == ("Xid 79", "xid", "nvidia-xid")
    assert "fallen off" in entry.title
    assert all("Xid" in line.text and " 79," in line.text for line in entry.kernel_lines)


def test_a_number_has_the_class_that_its_row_names() -> None:
    assert entry_of("xid 48").failure_class.id == "gpu-memory-error"
    assert "DBE" in texts(entry_of("xid 48"))[0]


def test_a_number_of_a_switch() -> None:
    entry = entry_of("SXid 12028")
    assert (entry.id, entry.kind, entry.failure_class.id) == ("SXid 12028", "sxid", "nvidia-sxid")
    assert entry_of("12028") == entry


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [
        ("rcl-hang", "'rccl-hang'"),
        ("oom_hosts", "'oom-host'"),
        ("zzz", "'"),
        ("xid 9999", "Xid "),
        ("sxid 1", "SXid "),
        ("", "'"),
    ],
)
def test_what_there_is_not_answers_with_the_nearest(asked: str, nearest: str) -> None:
    with pytest.raises(UsageError, match=f"the nearest is {nearest}") as refused:
        entry_of(asked)
    assert "\n" not in str(refused.value)


def test_next_steps_name_no_file_of_one_repository() -> None:
    of_one = re.compile(r"\b(?:docs|configs|scripts)/|\w\.(?:md|rst|sh)\b|EXTRA_DIRS")
    named = []
    for failure_class in catalog.failures().values():
        named += list(filter(of_one.search, failure_class.next_steps))
    assert named == []


def test_every_id_has_an_entry_that_says_something() -> None:
    events = {row.event for row in catalog.kernel_table().events}
    numbers = [
        f"{family} {number}"
        for family in ("xid", "sxid")
        for number in catalog.nvidia_numbers(family)
    ]
    assert len(numbers) > 300
    for asked in (*catalog.failures(), *events, *numbers):
        entry = entry_of(asked)
        assert entry.id.lower() == asked
        assert entry.title and entry.next_steps and entry.sources, asked
        assert entry.failure_class.explanation, asked
