"""The collector's side of the HTTP server: its child process, and the way of pages to it.

Each page comes as a file without a name (memfd), whole or not at all, and the collector sends the
next one only when the child has taken the last: a child that is stopped cannot pile them up.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Optional

from raydiag.errors import CannotRun
from raydiag.exporter import http_child
from raydiag.exporter.page import Text
from raydiag.file_writing import memory_file

if TYPE_CHECKING:
    import ssl


class PageServer:
    """A child process that serves the page it was handed last."""

    def __init__(
        self, listener: socket.socket, host: str, context: Optional[ssl.SSLContext] = None
    ) -> None:
        """Start serving on `listener`, which belongs to the child from then on."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            http_child.serve(listener, theirs, host, context, parent)  # never returns
        theirs.close()
        listener.close()
        ours.setblocking(False)
        self._socket = ours
        self._is_free = True  # the child has taken what it was sent
        self._next: Optional[tuple[Text, float, float]] = None

    def fileno(self) -> int:
        """Readable when the child has taken a page, or has ended: then call `flush`."""
        return self._socket.fileno()

    def publish(self, text: Text, now_s: float, interval_s: float) -> None:
        """Hand a page over; now if the child is ready, else when it is. Raises EOFError."""
        self._next = (text, now_s, interval_s)
        self.flush()

    def flush(self) -> None:
        """Go on with what is to be handed over. Raises EOFError when the child has ended."""
        try:
            while self._socket.recv(16):
                self._is_free = True
            raise EOFError(self._ended())
        except BlockingIOError:
            pass
        except OSError:
            raise EOFError(self._ended()) from None
        if self._next is not None and self._is_free:
            page, self._next = self._next, None
            self._send(*page)

    def _send(self, text: Text, now_s: float, interval_s: float) -> None:
        fd = memory_file("page", text.own + text.plugin_lines)
        try:
            frame = http_child.FRAME.pack(now_s, interval_s, len(text.own))
            socket.send_fds(self._socket, [frame], [fd])
        except OSError:
            raise EOFError(self._ended()) from None
        finally:
            os.close(fd)
        self._is_free = False

    def stop(self) -> None:
        """End the child."""
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)  # our own child, not yet reaped: no other's pid
            os.waitpid(self.pid, 0)  # it touches nothing that could hold it
        self._socket.close()

    def _ended(self) -> str:
        with suppress(ChildProcessError):
            for _ in range(100):  # its socket closes a moment before it can be reaped
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    return f"the HTTP server ended (exit code {exit_code(status)})"
                time.sleep(0.01)
        return "the HTTP server does not take pages any more"


def exit_code(status: int) -> int:
    """Of a wait status, as a shell says it: 128 + N for signal N."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def tls_context(certificate: str, key: Optional[str], client_ca: Optional[str]) -> ssl.SSLContext:
    """For HTTPS; with `client_ca` only clients whose certificate it has signed are served.

    Raises CannotRun when a file cannot be used.
    """
    import ssl  # two MiB for those who want it

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    option = f"--tls-cert {', '.join(filter(None, (certificate, key)))}"
    try:
        context.load_cert_chain(certificate, key)
        if client_ca is not None:
            option = f"--tls-client-ca {client_ca}"
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:
        raise CannotRun(f"{option}: cannot be used: {error}") from None
    return context
