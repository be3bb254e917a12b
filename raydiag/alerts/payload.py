"""What Alertmanager sends to a webhook, version 4 of its payload, strictly read.

Source: Alertmanager's `template.Data` and `notify/webhook`
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raydiag.untrusted import parsed

MOST_BYTES = 1 << 20
_VERSION = "4"
MOST_ALERTS = 500
_MOST_LABELS, _MOST_CHARACTERS = 64, 4096
_MOST_OF_LABELS = 32_768  # characters, of all labels of an alert
FINGERPRINT = re.compile(r"[0-9a-f]{1,64}")
_STATES = ("firing", "resolved")


class TooManyAlerts(ValueError):
    """A notification has more of them than one may have."""


@dataclass(frozen=True)
class Alert:
    """One alert of a notification."""

    fingerprint: str  # hexadecimal; of its labels
    is_firing: bool
    starts_at: str  # RFC 3339, as it was sent
    labels: Mapping[str, str]

    @property
    def name(self) -> str:
        """Of the rule."""
        return self.labels["alertname"]

    @property
    def occasion(self) -> tuple[str, str]:
        """The same for each repetition of one firing."""
        return self.fingerprint, self.starts_at


def alerts_of(body: bytes) -> list[Alert]:
    """The alerts of a notification. Raises ValueError, with what is wrong, for anything else.

    TooManyAlerts is one of them.
    """
    document = _table(parsed(body, MOST_BYTES), "the body")
    if document.get("version") != _VERSION:
        raise ValueError(f"version is {document.get('version')!r:.40}, and has to be '{_VERSION}'")
    alerts = document.get("alerts")
    if not isinstance(alerts, list):
        raise ValueError("alerts is no list")
    if len(alerts) > MOST_ALERTS:
        most = f"max_alerts: {MOST_ALERTS}"
        raise TooManyAlerts(f"more than {MOST_ALERTS} alerts: set {most} in webhook_configs")
    return [_alert(_table(alert, "an alert")) for alert in alerts]


def _alert(alert: Mapping[str, Any]) -> Alert:
    status, fingerprint = alert.get("status"), alert.get("fingerprint")
    if status not in _STATES:
        raise ValueError("status of an alert is neither firing nor resolved")
    if not isinstance(fingerprint, str) or not FINGERPRINT.fullmatch(fingerprint):
        raise ValueError("fingerprint of an alert is no hexadecimal number")
    labels = _table(alert.get("labels"), "labels of an alert")
    if len(labels) > _MOST_LABELS or not all(map(_is_text, [*labels, *labels.values()])):
        raise ValueError(f"labels of an alert are no {_MOST_LABELS} short texts at most")
    if sum(map(len, [*labels, *labels.values()])) > _MOST_OF_LABELS:
        raise ValueError(f"labels of an alert have more than {_MOST_OF_LABELS} characters")
    if not labels.get("alertname"):
        raise ValueError("an alert has no label alertname")
    if not _is_text(alert.get("startsAt")):
        raise ValueError("startsAt of an alert is no text")
    return Alert(fingerprint, status == "firing", alert["startsAt"], labels)


def _table(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is no JSON object")
    return value


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MOST_CHARACTERS
