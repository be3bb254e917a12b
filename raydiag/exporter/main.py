"""The exporter's processes: this one collects, a child serves, readers read.

The main process has one thread. In each cycle it hands the server a page when all plugins have
ended, or after a second without those that have not; what comes later is on the next page. It ends
when the server does, because an exporter that nobody can ask is none.
"""

from __future__ import annotations

import gc
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Optional

from raydiag import __version__
from raydiag.errors import CannotRun, UsageError
from raydiag.exporter import listener, plugins, supervise
from raydiag.exporter.collector import Collector
from raydiag.exporter.metrics import OWN_PREFIX, Sample
from raydiag.exporter.page import OWN, MetricsPage, Text
from raydiag.exporter.server import PageServer, tls_context
from raydiag.exporter.signals import Signals
from raydiag.exporter.state import SavedState
from raydiag.file_writing import write_file
from raydiag.host import Host
from raydiag.procfs import boot_id, split_stat
from raydiag.untrusted import regular

if TYPE_CHECKING:
    from raydiag.exporter.external_plugins import ExternalPlugins

_PATIENCE_S = 1.0  # for all plugins, before a page goes out without the slow ones
_NICE = 19
_LAST_S = 60.0  # for one collection: far more than all deadlines together
_TIMING = "cycle"  # the plugin whose sample is the duration of the cycle

Log = Callable[[str], None]


@dataclass(frozen=True)
class Tls:
    certificate: str
    key: Optional[str] = None  # None: it is in the file of the certificate
    client_ca: Optional[str] = None  # None: clients need no certificate


@dataclass(frozen=True)
class ExporterSettings:
    """What the command line says."""

    interval_s: float = 10.0
    only: Sequence[str] = ()  # names of plugins; empty: all
    skip: Sequence[str] = ()
    plugin_directories: Sequence[str] = ()
    allow_unsafe_plugins: bool = False
    state_directory: Optional[str] = None  # None: state ends with the process
    host: str = ""  # value of the label; "": the node's short name
    root: str = "/"
    tensorboard_directory: str = ""
    address: str = "127.0.0.1"
    port: int = 9400
    tls: Optional[Tls] = None
    pid_file: Optional[str] = None

    @property
    def label(self) -> str:
        """Value of the label `host` on every series."""
        return self.host or os.uname().nodename.partition(".")[0]


class Exporter:
    """The collector and its page."""

    def __init__(self, settings: ExporterSettings, log: Log, keep_state: bool = True) -> None:
        """Raises UsageError for plugins that do not exist."""
        self._started = time.time()
        self._settings = settings
        self._log = log
        self._problem = ""
        _tell_readers(settings)
        own = [plugins.load(name) for name in chosen(settings.only, settings.skip)]
        boot = boot_id(Host(settings.root))
        self.page = MetricsPage(settings.label, settings.interval_s)
        self.state = SavedState(settings.state_directory, settings.label, boot, keep_state)
        foreign = _foreign(settings)
        root = settings.root
        self.collector = Collector(own, self.page, self.state, root, foreign, log)
        gc.collect()
        gc.freeze()  # what is shared with readers and server stays shared

    def render(self) -> Text:
        """The page as of now, once what it tells of is safe from a restart."""
        self.state.save()
        if self.state.problem != self._problem:
            self._problem = self.state.problem
            self._log(self._problem or "state is written again")
        now_s = time.monotonic()
        if self.collector.cycles:
            timing = Sample("hw_scrape_duration_seconds", {}, round(self.collector.duration_s(), 6))
            self.page.put(_TIMING, "", [timing], now_s)
        self.page.put(OWN, "", self._samples(), now_s)
        return self.page.render(now_s)

    def _samples(self) -> Iterator[Sample]:
        labels = {"version": __version__, "python": platform.python_version()}
        yield Sample(f"{OWN_PREFIX}build_info", labels, 1)
        yield Sample(f"{OWN_PREFIX}start_time_seconds", {}, round(self._started, 3))
        yield Sample(f"{OWN_PREFIX}interval_seconds", {}, self._settings.interval_s)
        yield from self.collector.samples(time.time())


def run(settings: ExporterSettings, log: Log) -> int:
    """Collect and serve until a signal says to end; returns the exit code: 128 + its number.

    1 when the server has ended. Raises UsageError and CannotRun before anything is served.
    """
    supervise.end_with_watchdog()
    be_nice()
    exporter = Exporter(settings, log)
    scheme, who, context = "http", "whoever reaches this node", None
    if settings.tls:
        scheme, context = "https", tls_context(*astuple(settings.tls))
        if settings.tls.client_ca:
            who = "clients with a certificate"
    socket = listener.listen(settings.address, settings.port)
    place = listener.shown(*socket.getsockname()[:2])
    if listener.is_exposed(socket):
        log(f"{place} is not loopback or private: {who} can read its metrics")
    signals = Signals()
    server = PageServer(socket, settings.label, context)
    try:
        with _pid_file(settings.pid_file):
            log(f"serving {scheme}://{place}/metrics")
            _serve(exporter, server, signals, settings.interval_s)
    except EOFError as error:
        log(str(error))
        return 1
    finally:
        server.stop()
        exporter.collector.close()
        exporter.state.save()
        signals.restore()
    return 128 + signals.told


def collect_once(settings: ExporterSettings, log: Log) -> str:
    """One cycle of all plugins, as text; state is read and not written."""
    exporter = Exporter(settings, log, keep_state=False)
    signals = Signals()
    try:
        exporter.collector.begin()
        deadline = time.monotonic() + _LAST_S
        while not (exporter.collector.is_idle or signals.told or time.monotonic() > deadline):
            exporter.collector.work(deadline - time.monotonic(), [signals.fileno()])
        if signals.told:
            raise KeyboardInterrupt
        text = exporter.render()
    finally:
        exporter.collector.close()
        signals.restore()
    return (text.plugin_lines + text.own).decode()


def chosen(only: Sequence[str], skip: Sequence[str]) -> list[str]:
    """Names of the plugins to run. Raises UsageError for unknown names."""
    names = plugins.names()
    for option, names_asked in (("--only", only), ("--skip", skip)):
        for name in names_asked:
            if name not in names:
                raise UsageError(f"{option}: no plugin {name!r}; there are: {', '.join(names)}")
    return [name for name in names if name in (only or names) and name not in skip]


def _serve(exporter: Exporter, server: PageServer, signals: Signals, interval_s: float) -> None:
    """The loop. Raises EOFError when the server ended."""
    collector = exporter.collector
    server.publish(exporter.render(), time.monotonic(), interval_s)  # that there is an exporter
    due = time.monotonic()
    page_due: Optional[float] = None  # of this cycle; None: the page is out
    is_late = False  # something has not ended when the page went out
    while not signals.told:
        now = time.monotonic()
        if now >= due:
            collector.begin()
            due += interval_s * (1 + (now - due) // interval_s)  # cycles that were missed are
            page_due = now + min(_PATIENCE_S, interval_s / 2)
        wake = due if page_due is None else min(due, page_due)
        collector.work(wake - now, [signals.fileno(), server.fileno()])
        signals.clear()
        server.flush()
        is_over, now = collector.is_idle, time.monotonic()
        if (page_due is not None and (is_over or now >= page_due)) or (is_late and is_over):
            server.publish(exporter.render(), now, interval_s)
            page_due, is_late = None, not is_over


def _tell_readers(settings: ExporterSettings) -> None:
    """What plugins take from the environment, which readers inherit."""
    from raydiag.exporter import event_paths
    from raydiag.exporter.plugins import tensorboard

    if settings.host:
        os.environ[event_paths.HOST] = settings.host
    if settings.tensorboard_directory:
        os.environ[tensorboard.DIRECTORY] = settings.tensorboard_directory


def _foreign(settings: ExporterSettings) -> Optional[ExternalPlugins]:
    if not settings.plugin_directories:
        return None
    from raydiag.exporter.external_plugins import ExternalPlugins

    label, root, allow_unsafe = settings.label, settings.root, settings.allow_unsafe_plugins
    return ExternalPlugins(settings.plugin_directories, label, plugins.names(), root, allow_unsafe)


def be_nice() -> None:
    """Give way to training for good."""
    with suppress(OSError):
        os.nice(_NICE)


@contextmanager
def _pid_file(path: Optional[str]) -> Iterator[None]:
    """Pid and start time (clock ticks since boot) in a file as long as we run.

    The time is what makes it certain that a process of that pid is the one that wrote the file. A
    file that somebody else has written since is left. Raises CannotRun when it cannot be written.
    """
    if path is None:
        yield
        return
    _, values = split_stat(Host().read_text("/proc/self/stat", 4096), "/proc/self/stat")
    text = f"{os.getpid()}\n{values[19]}\n"
    try:
        write_file(path, text.encode(), 0o644, to_disk=False)
    except OSError as error:
        raise CannotRun(f"--pid-file {path}: cannot be written: {error.strerror}") from None
    try:
        yield
    finally:
        with suppress(OSError), open(path, encoding="ascii", opener=regular) as file:
            if file.read(64) == text:
                os.unlink(path)
