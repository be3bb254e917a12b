"""Cycles of foreign plugins as the collector makes them: real files, real guarded readers."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raydiag import sandbox
from raydiag.exporter import external_run
from raydiag.exporter.external_plugins import Ask, ExternalPlugins, PluginOutcome
from raydiag.sandbox import Reader

HOST = "n1"
PATIENCE_S = 120.0  # only a hang takes that long


def _serve(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"answer": external_run.answer(request)}


class Cycles:
    """Some directories of plugins, and readers that live across cycles."""

    def __init__(self, *directories: Path, taken: tuple[str, ...] = ()) -> None:
        self.foreign = ExternalPlugins([str(one) for one in directories], HOST, taken)
        self.readers: dict[str, Reader] = {}
        self.gone: list[str] = []

    def ask(self, ask: Ask) -> dict[str, Any] | None:
        """The answer; None when it did not come before the deadline, and the reader was left."""
        if ask.reader not in self.readers:
            self.readers[ask.reader] = Reader(_serve, ask.reader)
        reader = self.readers[ask.reader]
        name = sandbox.tag(ask.source)
        held = sandbox.lock(name)
        if held is None:
            return None
        reader.ask(ask.request, name, held)
        answer, deadline = None, time.monotonic() + ask.timeout_s
        try:
            while (left_s := deadline - time.monotonic()) > 0:
                select.select([reader], [], [], left_s)
                for message in reader.receive():
                    answer = message.get("answer", answer)
                    if "end" in message:
                        return answer
        except EOFError:
            pass
        self.readers.pop(ask.reader).abandon()
        return None

    def run(
        self, now_s: float | None = None, timeouts: Mapping[str, float] | None = None
    ) -> dict[str, PluginOutcome]:
        """One cycle; outcomes by plugin.

        `timeouts` are given to these plugins in place of their own. All others have as long as they
        need, however busy the machine is.
        """
        now_s = time.time() if now_s is None else now_s
        self.gone = []
        for look in self.foreign.looks():
            answer = self.ask(look._replace(timeout_s=PATIENCE_S))
            self.gone += self.foreign.looked(look, answer, "no answer")
        outcomes = {}
        for asked in list(self.foreign.asks()):
            ask: Ask | None = asked
            while ask is not None:
                ask.request["timeout_s"] = (timeouts or {}).get(ask.plugin, PATIENCE_S)
                patient = ask._replace(timeout_s=PATIENCE_S)
                outcome = self.foreign.took(ask, self.ask(patient), now_s, "no answer in time")
                outcomes[ask.plugin] = outcome
                ask = outcome.then
        return outcomes

    def facts(self, now_s: float = 0.0) -> dict[tuple[str, str], float]:
        """(metric without its prefix, plugin) -> value."""
        return {
            (sample.name[len("raydiag_exporter_") :], sample.labels["plugin"]): sample.value
            for sample in self.foreign.samples(now_s)
        }

    def close(self) -> None:
        for reader in self.readers.values():
            reader.abandon()


@contextmanager
def cycles(*directories: Path, taken: tuple[str, ...] = ()) -> Iterator[Cycles]:
    made = Cycles(*directories, taken=taken)
    try:
        yield made
    finally:
        made.close()


def values(outcome: PluginOutcome) -> dict[str, float]:
    """What the plugin gave: `name{labels}` -> value."""
    assert outcome.samples is not None, outcome
    return {
        sample.name
        + ("{" + ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items())) + "}")
        * bool(sample.labels): sample.value
        for sample in outcome.samples
    }


def write(path: Path, text: str, mode: int = 0o755) -> Path:
    """Whole or not at all, as a rollout does."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    new.chmod(mode)
    new.replace(path)
    return path
