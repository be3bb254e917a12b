"""What a fault of a GPU driver means for whom, and what to do: in words, from the catalog."""

from collections.abc import Iterator, Sequence
from operator import attrgetter

from raydiag import catalog
from raydiag.catalog.driver_fault import words
from raydiag.explain.driver_fault.signs import FAULT
from raydiag.explain.driver_fault.types import InvestigatedNode

_MEMORY = frozenset(("gpu-memory-error", "gpu-memory-degrading", "amdgpu-bad-page-threshold"))
_SEND = "Send this report to whoever runs the node."


def meaning(text: str) -> str:
    """Of the first driver-fault function that a text names; "" where it names none."""
    for symbol, meant in words().signatures.items():
        if symbol in text:
            return meant
    return ""


def has_driver_fault(node: InvestigatedNode) -> bool:
    """Whether the error path of its driver is at fault, or may be."""
    return bool(node.signs) or FAULT in node.classes


def impact(node: InvestigatedNode) -> Iterator[str]:
    """On training, on monitoring, and on the node if it goes on; of other faults what they mean."""
    if has_driver_fault(node):
        for whom, text in words().impact.items():
            yield f"{whom}: {text}"
    for failure_class in node.classes:
        if failure_class != FAULT:
            yield f"{failure_class}: {catalog.failure(failure_class).explanation}"


def steps(node: InvestigatedNode) -> Sequence[str]:
    """What to do, the first thing first."""
    ordered: dict[str, None] = {}
    if has_driver_fault(node):
        ordered[words().recovery] = None
    for finding in node.findings:
        if finding.failure_class in node.classes and finding.failure_class != FAULT:
            ordered.update(dict.fromkeys(finding.next_steps))
    if has_driver_fault(node):
        ordered[_SEND] = None
    return list(ordered)


def return_criteria(node: InvestigatedNode) -> Iterator[str]:
    """When the vendor takes a GPU back, where memory of one is in question."""
    if _MEMORY.isdisjoint(node.classes) and not any(map(attrgetter("is_ill"), node.gpus)):
        return
    drivers = set(map(attrgetter("driver"), node.gpus))
    for event in node.events:
        drivers.add(event.event.partition("-")[0])
    for driver, criterion in words().return_criteria.items():
        if driver in drivers:
            yield f"Returned to the vendor ({driver}): {criterion}"
