"""A job of four hosts by the minute, as the answers of a server would show it: well, until changed.

Times of the tests are seconds after `T0`. Rows keep what a server keeps: a question that tells only
what is wrong has no row where nothing is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Optional

import numpy as np

from raydiag import catalog
from raydiag.model import Observation, Status, Window
from raydiag.playbooks import run
from raydiag.playbooks.observations import PlaybookOutcome
from raydiag.timeline.answers import Answers
from raydiag.timeline.context import Context, Mask, TrainingJob
from raydiag.timeline.queries import FILL, TRAINING, templates
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.tsdb.discovery_types import Discovery, Family, HostSeries
from raydiag.tsdb.series import Floats, Query, QueryResult, Series

T0 = 1_700_000_000.0
LENGTH_S, STEP_S, EACH_S = 5400.0, 15.0, 10.0
TRAINED_FROM = 300.0
HOSTS = ("n1", "n2", "n3", "n4")
ACTIVE_WATTS, IDLE_WATTS = 900.0, 260.0
GB = 1e9

TB = {*re.findall(r"tb_\w+", TRAINING.promql)} - {FILL}

Labels = tuple[tuple[str, str], ...]


class World:
    """Answers by question; every value can be changed before it is judged."""

    def __init__(
        self, hosts: Sequence[str] = HOSTS, seed: int = 0, device: str = "AMD Instinct MI355X"
    ) -> None:
        self.hosts = tuple(hosts)
        self.times = T0 + np.arange(0.0, LENGTH_S + 1, STEP_S)
        self.rng = np.random.default_rng(seed)
        self.rows: dict[str, dict[Labels, Floats]] = {one.id: {} for one in templates()}
        self.failed: dict[str, str] = {}
        self.metrics = {metric for one in templates() for metric in one.metrics} | TB
        self.masks: list[Mask] = [Mask("warm-up", T0 - 1e6, T0 + TRAINED_FROM + 50)]
        self.job = TrainingJob(
            status="running", start=T0, step_time_s=EACH_S, coordinator=self.hosts[0]
        )
        self.device = device
        self._gpus()
        self._host()
        self._network()
        self._training()

    # ---- a job that is well

    def _noise(self, level: float, sigma: float) -> Floats:
        return level + self.rng.normal(0.0, sigma, self.times.size)

    def _gpus(self) -> None:
        before = self.times < T0 + TRAINED_FROM
        for host in self.hosts:
            for stat, shift in (("min", -12.0), ("avg", 0.0), ("max", 12.0)):
                power = self._noise(ACTIVE_WATTS + shift, 4.0)
                power[before] = IDLE_WATTS + shift / 4
                self.put("gpu-power", power, host=host, stat=stat)
                heat = self._noise(70.0 + shift / 4, 0.5)
                self.put("gpu-temperature", heat, host=host, stat=stat)
                self.put("gpu-clock", self._noise(2200.0 + shift, 5.0), host=host, stat=stat)
                use = self._noise(98.0 + shift / 12, 0.3)
                use[before] = 0.0
                self.put("gpu-utilisation", use, ray=True, host=host, stat=stat)
            self.put("gpu-vram", np.full(self.times.size, 250 * GB), host=host)
            self.put("gpu-count", np.full(self.times.size, 8.0), host=host)
            for metric, value in (
                ("hw_dmesg_gpu_errors_total", 0.0),
                ("hw_gpu_user_processes", 8.0),
                ("hw_scrape_duration_seconds", 0.1),
            ):
                self.put("driver", np.full(self.times.size, value), host=host, __name__=metric)
            self.put("capacity", np.full(self.times.size, 309 * GB), host=host, __name__=VRAM)
            self.put(
                "capacity",
                np.full(self.times.size, 2000 * GB),
                ray=True,
                host=host,
                __name__="ray_node_mem_total",
            )

    def _host(self) -> None:
        for host in self.hosts:
            self.put(
                "memory",
                self._noise(200 * GB, 0.5 * GB),
                ray=True,
                host=host,
                __name__="ray_node_mem_used",
            )
            for metric, level, sigma in (
                ("hw_mem_dirty_bytes", 3e6, 1e5),
                ("hw_mem_writeback_bytes", 1e5, 1e3),
                ("hw_io_pressure_full_pct", 0.1, 0.02),
                ("hw_io_pressure_some_pct", 0.2, 0.02),
            ):
                self.put("storage", self._noise(level, sigma), host=host, __name__=metric)
            self.put("tasks", self._noise(44.0, 2.0), host=host, __name__="hw_procs_running")
            self.put("tasks", self.times * 0, host=host, __name__="hw_procs_blocked")
            self.put("context-switches", self._noise(1e5, 1e3), host=host)
            self.put("cpu", self._noise(26.0, 0.5), ray=True, host=host)
            self.put("alive", self.times.copy(), host=host)
            self.put("alive", self.times.copy(), ray=True, host=host)
            self.put("up", np.ones(self.times.size), job="node_hw", instance=f"{host}:9400")

    def _network(self) -> None:
        for host in self.hosts:
            self.put("tcp-retransmits", np.abs(self._noise(0.2, 0.05)), host=host)
            for question in ("rdma-retransmits", "rdma-timeouts"):
                self.put(question, np.zeros(self.times.size), host=host)
            self.put("rdma-cnp", np.abs(self._noise(6.0, 0.5)), host=host)
            self.put("rdma-sent", self._noise(2e10, 1e8), host=host)

    def _training(self) -> None:
        self.ended = T0 + np.arange(TRAINED_FROM, LENGTH_S + 1, EACH_S)
        count = self.ended.size
        self.scalars: dict[str, Floats] = {
            "tb_step": np.arange(count, dtype=np.float64),
            "tb_learning_loss": 2 + 8 * np.exp(-np.arange(count) / 150),
            "tb_learning_grad_norm": 0.5 + self.rng.normal(0, 0.05, count),
            "tb_learning_raw_grad_norm": 0.5 + self.rng.normal(0, 0.05, count),
            "tb_learning_current_learning_rate": 3e-7 * np.arange(1.0, count + 1),
            "tb_perf_step_time_seconds": EACH_S + self.rng.normal(0, 0.03, count),
            "tb_perf_per_device_tokens_per_sec": 2250 + self.rng.normal(0, 7, count),
        }

    # ---- changes

    def put(self, question: str, values: Floats, ray: bool = False, **labels: str) -> None:
        """A row. Ray's have no label `host`, as in real life."""
        if ray:
            host = labels.pop("host")
            labels |= {"instance": f"{host}:55080", "ip": f"10.0.0.{self.hosts.index(host) + 1}"}
            if question == "gpu-utilisation":
                labels["GpuDeviceName"] = self.device
        rows = self.rows.setdefault(question, {})
        rows[tuple(sorted(labels.items()))] = np.array(values, dtype=np.float64)

    def set(
        self,
        question: str,
        value: float,
        start: float = 0.0,
        end: float = LENGTH_S,
        hosts: Optional[Sequence[str]] = None,
        metric: Optional[str] = None,
    ) -> None:
        """One value from `start` to `end` in the rows of these hosts and this metric or stat."""
        inside = (self.times >= T0 + start) & (self.times <= T0 + end)
        wanted = self.hosts if hosts is None else hosts
        found = False
        for labels, row in self.rows[question].items():
            known = dict(labels)
            host = known.get("host") or known.get("instance", "").split(":")[0]
            name = known.get("__name__") or known.get("stat") or known.get("metric")
            if host in wanted and metric in (None, name):
                row[inside] = value
                found = True
        assert found, f"no row of {question} for {wanted} and {metric}"

    def only(self, question: str, value: float, start: float, end: float, **labels: str) -> None:
        """A row of a question that tells only what is wrong."""
        row = np.full(self.times.size, np.nan)
        row[(self.times >= T0 + start) & (self.times <= T0 + end)] = value
        self.put(question, row, False, **labels)

    def stop(self, time: float) -> None:
        """No step ends after `time`."""
        keep = self.ended <= T0 + time
        self.ended = self.ended[keep]
        self.scalars = {name: values[keep] for name, values in self.scalars.items()}

    def lose_steps(self, first: int, last: int) -> None:
        """No sample has these steps."""
        keep = np.r_[0:first, last : self.ended.size]
        self.ended = self.ended[keep]
        self.scalars = {name: values[keep] for name, values in self.scalars.items()}

    def hang(self, time: float, power: float = 300.0, use: float = 100.0) -> None:
        """Every GPU spins from `time` on."""
        self.stop(time)
        self.set("gpu-power", power, time + 10)
        self.set("gpu-utilisation", use, time + 10)

    def die(self, host: str, time: float) -> None:
        """Its series end; the server goes on repeating them for a while."""
        last = self.times[self.times <= T0 + time][-1]
        for labels, row in self.rows["alive"].items():
            known = dict(labels)
            if host in (known.get("host"), known.get("instance", "").split(":")[0]):
                row[self.times > last] = last
                row[self.times > last + 300] = np.nan

    def pause(self, host: str, start: float, end: float) -> None:
        """None of its series has a sample between the two times."""
        inside = (self.times > T0 + start) & (self.times < T0 + end)
        for labels, row in self.rows["alive"].items():
            known = dict(labels)
            if host in (known.get("host"), known.get("instance", "").split(":")[0]):
                row[inside] = self.times[self.times <= T0 + start][-1]

    def scalar(
        self, name: str, value: float, start: float, end: float = LENGTH_S, factor: bool = False
    ) -> None:
        inside = (self.ended >= T0 + start) & (self.ended <= T0 + end)
        row = self.scalars[name]
        row[inside] = row[inside] * value if factor else value

    def save(self, start: float, end: float) -> None:
        """A stretch that is known as a checkpoint save."""
        self.masks.append(Mask("save", T0 + start, T0 + end))

    def without(self, *metrics: str) -> None:
        """As if these had never been exported."""
        self.metrics -= set(metrics)
        for one in templates():
            if not self.metrics.intersection(one.metrics):
                self.rows[one.id] = {}

    # ---- what is judged

    @property
    def context(self) -> Context:
        end = float(self.times[-1])
        hosts = tuple(
            HostSeries(name, (name,), (f"{name}:9400", f"{name}:55080"), (f"10.0.0.{i + 1}",))
            for i, name in enumerate(self.hosts)
        )
        families = (Family("hw_gpu_", (), resolution_s=STEP_S),)
        seen = Discovery(
            "test", tuple(sorted(self.metrics)), families, hosts, (), Window(T0, end), self.hosts
        )
        return Context(self.job, Window(T0, end), end, seen, self.hosts, masks=tuple(self.masks))

    def answers(self) -> Answers:
        found = []
        window = Window(float(self.times[0]), float(self.times[-1]), STEP_S)
        for question, rows in self.rows.items():
            query = Query(question, question, window)
            if question == "training":
                continue
            if question in self.failed:
                found.append(QueryResult(query, Status.ERROR, self.failed[question]))
                continue
            series = tuple(Series.of(dict(labels), self.times, row) for labels, row in rows.items())
            wanted = next((one.metrics for one in templates() if one.id == question), None)
            if wanted is None or self.metrics.intersection(wanted):
                found.append(QueryResult(query, Status.OK, series=series))
        if "tb_step" in self.metrics:
            found.append(self._training_answer(window))
        return Answers(found, self.context.discovery)

    def _training_answer(self, window: Window) -> QueryResult:
        fill = {FILL: np.zeros(self.ended.size)}
        # A bridge without news repeats the last step, with times of its own.
        late = np.arange(self.ended[-1] + 150, window.end, 150.0)
        series = []
        for name, values in {**self.scalars, **fill}.items():
            if name not in self.metrics | {FILL}:
                continue
            again = np.full(late.size, 1.0 if name == FILL else values[-1])
            times = np.concatenate([self.ended, late])
            labels = {"__name__": name, "host": self.hosts[0]}
            series.append(Series.of(labels, times, np.concatenate([values, again])))
        return QueryResult(Query("training", "training", window), Status.OK, series=tuple(series))

    def tell(self, **facts: object) -> None:
        """What the job's log says besides."""
        self.job = replace(self.job, **facts)  # type: ignore[arg-type]

    def scene(self) -> RunTimeline:
        return RunTimeline(self.context, self.answers())

    def judge(self, *only: str) -> PlaybookOutcome:
        return run(self.context, self.answers(), only or None)


VRAM = "hw_gpu_vram_total_bytes"


def classes(outcome: PlaybookOutcome, severe: bool = False) -> set[str]:
    """Failure classes that were seen; `severe`: without remarks."""
    return {
        one.finding.failure_class
        for one in outcome.observations
        if not severe or one.finding.severity is None or one.finding.severity.value != "info"
    }


def holds(outcome: PlaybookOutcome, playbook: str) -> Mapping[str, Optional[bool]]:
    """Rows of one playbook: whether any of that name holds."""
    report = next(one for one in outcome.reports if one.playbook == playbook)
    found: dict[str, Optional[bool]] = {}
    for row in report.rows:
        found[row.row] = row.holds if not found.get(row.row) else True
    return found


def is_symptom(observation: Observation) -> bool:
    """Whether it explains nothing by itself, here or as a class."""
    failure_class = catalog.failure(observation.finding.failure_class)
    return observation.symptom or failure_class.symptom
