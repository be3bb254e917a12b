"""What to do about what ssh says, on one line: the advice stands in `ssh_errors.yaml`."""

from collections.abc import Mapping
from importlib import resources

import yaml

_TABLE = resources.files(__package__).joinpath("ssh_errors.yaml")
_ADVICE: Mapping[str, str] = yaml.safe_load(_TABLE.read_text("utf-8"))
_NO_NEWS = (
    "Connection closed by UNKNOWN",
    "kex_exchange_identification",
    "stdio forwarding failed",
)
_PROHIBITED = "administratively prohibited"
_OPEN_FAILED = "open failed"


def not_opened(login: str, words: str) -> str:
    """Why there is no forward; `words` is all that ssh said."""
    for sign, advice in _ADVICE.items():
        complaints = [line.strip() for line in words.splitlines() if sign in line]
        if complaints:
            return f"ssh {login}: {_cut(complaints[0].strip('@ '))}; {advice}"
    return f"ssh {login}: {_last(words)}; try `ssh -o BatchMode=yes {login} true` by hand"


def broken(login: str, target: str, words: str, ended: bool) -> str:
    """Why the forward does not carry to `target`; "" when it does. `ended`: ssh is gone."""
    failed = [line for line in words.splitlines() if _OPEN_FAILED in line]
    if failed and _PROHIBITED in failed[-1]:
        return (
            f"ssh {login}: its ssh server does not allow this user to forward: {_cut(failed[-1])}"
        )
    if failed:
        reason = failed[-1].partition(f"{_OPEN_FAILED}: ")[2]
        return (
            f"ssh {login} works, but nothing answers at {target} there ({_cut(reason)}): is this "
            "the head node of a cluster that is up? Give another port with --address "
            "http://127.0.0.1:PORT"
        )
    if ended:
        return f"ssh {login}: the connection was lost: {_last(words)}; try again"
    return ""


def _last(words: str) -> str:
    """The last line that tells something."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(_NO_NEWS)]
    return _cut((telling or lines or ["it ended without a message"])[-1])


def _cut(text: str) -> str:
    return text if len(text) <= 300 else text[:297] + "..."
