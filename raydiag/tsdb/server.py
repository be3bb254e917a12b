"""A temporary Prometheus over a private view: on loopback, scraping nothing, gone with us.

It has asked the kernel to end it when its parent ends, which a fresh interpreter does before it
becomes Prometheus, because after a fork in Python nothing is safe to call. The kernel means the
parent's thread: the server lives no longer than the thread that started it.

Source: prctl(2) PR_SET_PDEATHSIG; `prometheus --help-long`.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from raydiag import environment, parent_death
from raydiag.errors import CannotRun
from raydiag.tsdb import ports
from raydiag.tsdb.client import Client

_READY_S = 180.0  # a large log is replayed first
_TRIES = 20  # ports
_POLL_S = 0.02
_KEEP = "10y"  # blocks older than the default of 15 days would be deleted, from the view
_END_PATIENCE_S = 3.0
_CONFIGURATION = "global: {scrape_interval: 999h}\nscrape_configs: []\n"
_LOOKBACK = "15m"  # what ray_* need, whose values are renewed every few minutes

_FIELD = re.compile(r'(?<!\w)(\w{1,64})=("(?:[^"\\]|\\.)*"|\S*)')


class StartFailed(CannotRun):
    """The server ended before it was ready; the message is its own last error."""


class _PortTaken(StartFailed):
    """Somebody bound our port between our choice and the server's use of it."""


def program() -> str:
    """The prometheus binary: RAYDIAG_PROMETHEUS, else on PATH. Raises CannotRun."""
    named = os.environ.get("RAYDIAG_PROMETHEUS")
    path = shutil.which(named or "prometheus")
    if path is not None:
        return path
    if named:
        raise CannotRun(f"RAYDIAG_PROMETHEUS={named}: there is no such program")
    raise CannotRun(
        "the program prometheus is needed to read the job's data and is not on PATH: take it from "
        "prometheus.io/download (no installation needed) and let RAYDIAG_PROMETHEUS name it"
    )


class PrometheusServer:
    """One server, our own child, from its start until it is certainly over."""

    def __init__(self, data: Path, private: Path, port: int) -> None:
        """Starts it. `private` takes the configuration and the server's log."""
        self.url = f"http://127.0.0.1:{port}"
        self._data = data
        self._log = private / f"server-{port}.log"
        config = private / "prometheus.yml"
        command = [*parent_death.ending_with(os.getpid(), signal.SIGKILL), program()]
        options = {
            "config.file": config,
            "storage.tsdb.path": data,
            "storage.tsdb.retention.time": _KEEP,
            # Nothing is compacted: that would copy blocks into the view.
            "storage.tsdb.min-block-duration": _KEEP,
            "storage.tsdb.max-block-duration": _KEEP,
            "query.lookback-delta": _LOOKBACK,
            "web.listen-address": f"127.0.0.1:{port}",
            "log.level": "info",
            "log.format": "logfmt",
        }
        command += [f"--{name}={value}" for name, value in options.items()]
        try:
            config.write_text(_CONFIGURATION, encoding="ascii")
            with open(self._log, "wb") as log:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=private,
                    env=environment.named(),
                    start_new_session=True,  # Ctrl-C reaches only us, who end it
                )
        except OSError as error:
            raise CannotRun(f"cannot start a server in {private}: {error.strerror}") from None

    @property
    def pid(self) -> int:
        """Of the server."""
        return self._process.pid

    def wait_until_ready(self, wait: Callable[[float], None]) -> None:
        """Until it answers for our data. Raises StartFailed."""
        client = Client(self.url, deadline_s=5.0)
        started = time.monotonic()
        while self._process.poll() is None:
            # Who answers on the port may be somebody else: the path proves that it is ours.
            flags = client.metadata("status/flags")
            if flags.ok and flags.data.get("storage.tsdb.path") == str(self._data):
                return
            waited = time.monotonic() - started
            if waited > _READY_S:
                raise StartFailed(f"prometheus was not ready within {_READY_S:.0f} s")
            wait(waited)
            time.sleep(_POLL_S)
        words = self._last_words()
        if "address already in use" in words:
            raise _PortTaken(words)
        raise StartFailed(f"prometheus does not start: {words or 'it wrote no log'}")

    def troubles(self) -> list[str]:
        """The errors that it met in its data, oldest first; what it does about them is no news."""
        errors = []
        for fields in self._log_records():
            about_data = fields.get("component") == "tsdb" and "err" in fields
            if about_data and fields.get("level") in ("warn", "error"):
                text = f"{fields.get('msg', '')}: {fields['err']}"
                errors.append(text.replace(f"{self._data}/", ""))
        return list(dict.fromkeys(errors))

    def _last_words(self) -> str:
        error = ""
        for fields in self._log_records():
            if fields.get("level") == "error":
                error = fields.get("err", error)
        if error:
            return error.replace(f"{self._data}/", "")
        lines = self._text().strip().splitlines()
        return lines[-1][:300] if lines else ""

    def _log_records(self) -> Iterator[dict[str, str]]:
        for line in self._text().splitlines():
            yield {key: _unquoted(value) for key, value in _FIELD.findall(line)}

    def _text(self) -> str:
        try:
            return self._log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def end(self) -> None:
        """Leave nothing running. Its data is a view: there is nothing to be saved."""
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel: not awaited
            self._process.wait(_END_PATIENCE_S)


@contextlib.contextmanager
def running(
    data: Path, private: Path, wait: Callable[[float], None] = lambda waited_s: None
) -> Iterator[PrometheusServer]:
    """Serve `data` on the first free port while the block runs.

    `wait` is called now and then with the seconds waited. Raises StartFailed, CannotRun.
    """
    server = _started(data, private, wait)
    try:
        yield server
    finally:
        server.end()


def _started(data: Path, private: Path, wait: Callable[[float], None]) -> PrometheusServer:
    tried: list[int] = []
    while True:
        tried.append(ports.free(tried))
        server = PrometheusServer(data, private, tried[-1])
        try:
            server.wait_until_ready(wait)
            return server
        except _PortTaken:
            server.end()
            if len(tried) >= _TRIES:
                raise
        except BaseException:
            server.end()
            raise


def _unquoted(value: str) -> str:
    if not value.startswith('"'):
        return value
    return value[1:-1].replace('\\"', '"').replace("\\\\", "\\")
