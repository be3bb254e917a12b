"""What a node looks like before a hotfix: exporter, directory, files, watchdog, what is served."""

from __future__ import annotations

import contextlib
import os
import time

from raydiag.hotfix import discovery, replace, restart, target_directory
from raydiag.hotfix.journal import Journal, short_host
from raydiag.hotfix.log_tail import size
from raydiag.hotfix.messages import Inspect, Inspection, NodeRequest, Restart, ServedPage
from raydiag.hotfix.replace import ReplaceRefused
from raydiag.hotfix.served_page import parse
from raydiag.probes.exporter import fetch

_FETCH_LIMIT_S = 2.0


def inspect(request: Inspect) -> Inspection:
    """See `Inspect`. Looks only, and so runs in a guarded reader."""
    exporters = discovery.find(request)
    directory, files, refusals = None, [], []
    path = request.directory or exporters.directory
    try:
        if path is not None:
            directory = target_directory.directory(path)
            for name in request.names:
                files.append(target_directory.target(request, directory.real_path, name))
        target_directory.chosen(request, exporters)
    except ReplaceRefused as error:
        refusals.append(str(error))
    journal = Journal(request.journal)
    return Inspection(
        host=short_host(),
        time=time.time(),
        exporter=exporters.exporter,
        ends_on_restart=tuple(exporters.processes()) if exporters.exporter else (),
        directory=directory,
        files=tuple(files),
        watchdog=exporters.watchdog,
        served=_served(request),
        plugin_log_bytes=size(request.plugin_log),
        driver_fault=discovery.driver_fault(request),
        unfinished=tuple(journal.unfinished()),
        leftovers=tuple(replace.leftovers(directory.real_path) if directory else ()),
        refuse_replace=tuple(refusals),
        refuse_restart=restart.refusals(exporters, Restart().least_left),
    )


def _served(request: NodeRequest) -> ServedPage:
    outcome, reason, body = fetch(request.port, _FETCH_LIMIT_S)
    page = parse(body)
    duration_s = next(iter(page.values_of("hw_scrape_duration_seconds")), None)
    age_s = None
    with contextlib.suppress(OSError):
        age_s = round(max(0.0, time.time() - os.stat(request.metrics_file).st_mtime), 2)
    if outcome == "ok" and page.broken:
        outcome, reason = "error", f"what is served is not valid: {page.broken}"
    return ServedPage(outcome, reason, page.metrics, duration_s, age_s)
