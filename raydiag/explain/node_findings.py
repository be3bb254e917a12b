"""What the rules find on the nodes of a cluster, each fault once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace

from raydiag import catalog
from raydiag.explain.merge import fault_of, merge
from raydiag.explain.names import Names
from raydiag.model import Confidence, Evidence, Finding, Observation, Snapshot
from raydiag.rules import judge
from raydiag.rules.machines import machine_names
from raydiag.rules.nodes import NODE_TABLE

NODES = "nodes"


def judge_nodes(snapshot: Snapshot) -> list[Finding]:
    """Every finding that the records of a snapshot support, each fault once, not yet completed."""
    names = Names(snapshot)
    machines = {name: machine for machine, name in machine_names(snapshot).items()}
    observations = [
        Observation(names.named(finding), NODES, rule) for rule, finding in judge(snapshot)
    ]
    signs = _signs(observations)
    findings = []
    for merged in merge(observations, by_process=True):
        finding = merged.finding
        weighed = _weighed(finding, signs.get(fault_of(finding, by_process=True), set()))
        findings.append(_with_address(names.named(weighed), machines))
    return findings


def _signs(observations: list[Observation]) -> Mapping[Hashable, set[str]]:
    """By fault the rules that show it; a hint is no sign."""
    signs: dict[Hashable, set[str]] = {}
    for observation in observations:
        if observation.finding.confidence is not Confidence.POSSIBLE:
            fault = fault_of(observation.finding, by_process=True)
            signs.setdefault(fault, set()).add(observation.row)
    return signs


def _weighed(finding: Finding, signs: set[str]) -> Finding:
    """Some classes need two independent signs, as kernel log and stuck tasks, to be confirmed."""
    if not catalog.failure(finding.failure_class).needs_two_signs:
        return finding
    if len(signs) > 1:
        return replace(finding, confidence=Confidence.CONFIRMED)
    return replace(finding, confidence=finding.confidence.at_most(Confidence.LIKELY))


def _with_address(finding: Finding, machines: Mapping[str, tuple[str, str]]) -> Finding:
    """The finding with its short host name; where machines share that, with the address as well."""
    if finding.host is None or finding.host not in machines:
        return finding
    host, address = machines[finding.host]
    if finding.host == host:
        return finding
    text = f"this is {host} at {address}; another machine has the same name"
    evidence = (Evidence(NODE_TABLE, text), *finding.evidence)
    return replace(finding, host=host, address=address, evidence=evidence)
