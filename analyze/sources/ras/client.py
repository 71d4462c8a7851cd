"""Asks a running job's RAS over its plain-text protocol.

    -> CLIENT PROTOCOL 2        <- SERVER PROTOCOL 2
    -> TIMEOUT 10               <- OK
    -> SET FORMAT json          <- OK             (an error before 2.28.7: the answer is text then)
    -> VERBOSE STATUS           <- the answer, then the connection is closed

Every process of the job has a RAS thread; one per host listens, on localhost:28028 unless NCCL_RAS_ADDR says else. It
gathers the answer from all others, for `TIMEOUT` seconds and up to 5 more.

Source: NCCL `src/ras/client.cc`, `src/ras/client_support.cc`, `src/ras/ras_internal.h`, 2.24 to 2.30.
"""

from __future__ import annotations

import socket
import time
from typing import Final, Self

from roundk.tracer.errors import RoundkError

HOST: Final = "localhost"
PORT: Final = 28028
PROTOCOL: Final = 2

EXTRA_S: Final = 5
"""What NCCL itself allows on top of the timeout it is asked for (RAS_COLLECTIVE_EXTRA_TIMEOUT)."""

MOST_BYTES: Final = 1 << 29
_MOST_LINE: Final = 4096
_CHUNK: Final = 1 << 16
_PATIENCE: Final = 10
"""An answer may take so many times the longest allowed silence: one that drips for ever is given up."""


class RasError(RoundkError):
    """RAS cannot be asked, or what answers is not RAS."""


def address(text: str) -> tuple[str, int]:
    """Host and port of `HOST`, `HOST:PORT`, `[IPV6]:PORT` or `:PORT`.

    Raises:
        RasError: It is none of these.
    """
    host, port = text, ""
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    if port and not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 1 << 16):
        raise RasError(f"{text}: {port} is no port; write HOST:PORT, as in localhost:{PORT} or [::1]:{PORT}")
    return host or HOST, int(port) if port else PORT


def fetch(host: str, port: int, timeout_s: float) -> bytes:
    """One answer, JSON where the server knows it.

    Args:
        host: Name or address.
        port: TCP port.
        timeout_s: How long a server may be silent.

    Raises:
        RasError: Nothing listens there, it does not answer, or it is not RAS.
    """
    with _Connection(host, port, timeout_s) as connection:
        if connection.wants_json():
            return connection.status()
    # This server hung up when it was asked for JSON.
    with _Connection(host, port, timeout_s) as connection:
        return connection.status()


class _Connection:
    """One connection, greeted."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self._name = f"{host}:{port}"
        self._timeout_s = timeout_s
        self._read = b""
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout_s)
        except OSError as error:
            raise RasError(_refused(self._name, error, timeout_s)) from None

    def __enter__(self) -> Self:
        try:
            self._greet()
        except BaseException:
            self._socket.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _greet(self) -> None:
        greeting = self._ask(f"CLIENT PROTOCOL {PROTOCOL}")
        if not greeting.upper().startswith("SERVER PROTOCOL "):
            raise RasError(
                f"{self._name}: what listens there is not NCCL RAS: it answered {greeting[:60]!r};"
                " name the address that NCCL_RAS_ADDR gives the job"
            )
        gather_s = max(1, int(self._timeout_s) - EXTRA_S)
        said = self._ask(f"TIMEOUT {gather_s}")
        if said.upper() != "OK":
            raise RasError(f"{self._name}: RAS refused a timeout of {gather_s} s with {said[:60]!r}")

    def wants_json(self) -> bool:
        """Ask for JSON; False: the server hung up on that."""
        try:
            self._ask("SET FORMAT json")
        except _ClosedError:
            return False
        return True

    def status(self) -> bytes:
        """The answer, up to the end of the connection.

        Raises:
            RasError: It does not come, or ends before it began.
        """
        self._send("VERBOSE STATUS")
        pieces = [self._read]
        length = len(self._read)
        end = time.monotonic() + _PATIENCE * self._timeout_s
        while piece := self._receive("its answer"):
            pieces.append(piece)
            length += len(piece)
            if length > MOST_BYTES or time.monotonic() > end:
                raise RasError(
                    f"{self._name}: the answer does not end ({length >> 20} MiB so far); is this RAS? Try a longer"
                    " --timeout-s"
                )
        if not length:
            raise RasError(
                f"{self._name}: RAS closed the connection before its answer; did the job end? Ask another of its hosts"
            )
        return b"".join(pieces)

    def _ask(self, command: str) -> str:
        self._send(command)
        while b"\n" not in self._read:
            piece = self._receive(f"an answer to {command}")
            if not piece:
                raise _ClosedError(
                    f"{self._name}: the connection was closed after {command!r}; if this is NCCL RAS, ask again: the"
                    " job may just be starting or ending"
                )
            self._read += piece
            if len(self._read) > _MOST_LINE:
                break
        line, _, self._read = self._read.partition(b"\n")
        return line.decode("utf-8", "replace").strip()

    def _send(self, command: str) -> None:
        try:
            self._socket.sendall(f"{command}\n".encode())
        except OSError as error:
            raise _ClosedError(f"{self._name}: {error.strerror or error} while {command!r} was sent") from None

    def _receive(self, what: str) -> bytes:
        try:
            return self._socket.recv(_CHUNK)
        except TimeoutError:
            raise RasError(
                f"{self._name}: {what} did not come within {self._timeout_s:g} s; the process that listens there may be"
                " stopped, or it waits for hosts that are gone: try another host of the job, or a longer --timeout-s"
            ) from None
        except OSError as error:
            raise _ClosedError(f"{self._name}: {error.strerror or error} while waiting for {what}") from None


class _ClosedError(RasError):
    """The other side hung up."""


def _refused(name: str, error: OSError, timeout_s: float) -> str:
    if isinstance(error, socket.gaierror):
        return f"{name}: this host name is not known here ({error.strerror or error}); name a host of the job"
    if isinstance(error, TimeoutError):
        return (
            f"{name}: no connection within {timeout_s:g} s; a firewall, or RAS listens on another address: it is"
            " localhost unless NCCL_RAS_ADDR was set, so run this on a host of the job"
        )
    return (
        f"{name}: {error.strerror or error}; nothing listens there. Run this on a host of the job (RAS listens on"
        f" localhost:{PORT} unless NCCL_RAS_ADDR was set), while it runs, with NCCL 2.24 or later and without"
        " NCCL_RAS_ENABLE=0"
    )
