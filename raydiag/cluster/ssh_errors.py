"""ssh's error messages, as one line that says what to do.

Source: OpenSSH 8.2 to 9.9, sshconnect.c, channels.c, readconf.c
"""

from __future__ import annotations

# In ssh's own words, the first that is there decides: what a jump host says comes before the
# "Connection closed" of the ssh behind it, but the cause of a cause is found by its rank here.
_ADVICE = (
    (
        "IDENTIFICATION HAS CHANGED",
        "the host key has changed: either the machine was reinstalled, or somebody intercepts "
        "the connection. Ask its admin for the fingerprint, then `ssh-keygen -R HOST`",
    ),
    (
        "Host key verification failed",
        "the host key is not known: log in once by hand and compare the fingerprint",
    ),
    (
        "Permission denied (",
        "no login: raydiag cannot ask for a passphrase or a password, so put the key into an agent "
        "with ssh-add, and look whether `ssh -o BatchMode=yes HEAD true` works",
    ),
    ("Too many authentication failures", "no login: name the key with IdentityFile in the config"),
    ("administratively prohibited", "a machine on the way does not allow forwarding for this user"),
    ("Could not resolve hostname", "no such name: give [USER@]HOST as for ssh"),
    ("Name or service not known", "no such name, as the jump host sees it"),
    ("Address already in use", "a LocalForward of the ssh configuration for that host wants a port "
     "that is taken: end the other ssh, or give --ssh-config FILE without it"),
    ("remote port forwarding failed", "a RemoteForward of the ssh configuration for that host does "
     "not stand: end the other ssh, or give --ssh-config FILE without it"),
    ("Connection refused", "no ssh server answers there: is it the right machine, and is it up?"),
    ("timed out", "it does not answer: is it up, and is a jump host (-J) needed?"),
    ("No route to host", "there is no route to it: is it up, and is a jump host (-J) needed?"),
    ("Network is unreachable", "there is no route to it: is a jump host (-J) needed?"),
    ("Can't open user config file", "give another --ssh-config FILE"),
    ("configuration option", "look at the ssh configuration"),
)  # fmt: skip
_NO_NEWS = (
    "Connection closed by UNKNOWN",
    "kex_exchange_identification",
    "stdio forwarding failed",
)
_PROHIBITED = "administratively prohibited"
_OPEN_FAILED = "open failed"


def not_opened(login: str, words: str) -> str:
    """Why there is no forward; `words` is all that ssh said."""
    for sign, advice in _ADVICE:
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
