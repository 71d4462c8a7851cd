"""Errors in their own words: is it the printer's own, or did a call fail because of a peer?

When a rank is gone, its peers lose their connections or wait for it until a timeout, and print that in many forms. None
of these is where it began, whoever prints it first.
"""

from __future__ import annotations

import re
from typing import Final

_OF_PEERS: Final = (
    "remote process exited",
    "ncclremoteerror",
    "remote error detected",
    "communicator was aborted",
    "store->get(",
    "connection closed by",
    "connection reset by peer",
    "connection was likely closed",
    "broken pipe",
    "transport endpoint is not connected",
    "socket unexpectedly closed",
    "got 0 bytes",
    "application timeout caused pair closure",
    "connectfullmesh failed",
    "connect timeout",
    "timed out waiting",
    "wait timeout",
    "socket timeout",
    "collective operation timeout",
    "timed out in blocking wait",
    "waiting for clients",
    "store based barrier",
    "client socket has",
    "monitoredbarrier",
    "detected mismatch between collectives",
    "is running inconsistent collective",
)
"""What NCCL, gloo, torch's store and sockets say where the other side is gone, or did not come. Source: NCCL 2.30
(init.cc, socket.cc), gloo (transport/tcp), torch 2.14 (TCPStore.cpp, socket.cpp, ProcessGroupNCCL.cpp)."""

_OWN: Final = ("cuda error", "cuda failure", "out of memory", "unhandledcudaerror")
"""What an abort gives as its reason where the fault is the printer's own."""

_UNSURE: Final = (
    "unhandled system error",
    "ncclsystemerror",
    "nccl internal error",
    "ncclinternalerror",
    "internal error - ",
)
"""What NCCL says both of a fault of the host and of a connection that a peer closed."""

_PEER_TYPES: Final = frozenset({"DistStoreError", "ConnectionResetError", "ConnectionAbortedError", "BrokenPipeError"})
_TORCH: Final = ("torch.", "c10", "builtins.")
_NCCL_PLACE: Final = re.compile(r"NCCL error in: [^\s,]{1,300}:\d{1,9}, ")
_GLOO_PLACE: Final = re.compile(r"^\[[^\]\s]{0,300}gloo/[\w./]{1,200}:\d{1,9}\] ")
_GLOO_ADVICE: Final = re.compile(r"\. This is typically caused by a remote worker crashing.*$")
_NCCL_TAIL: Final = re.compile(r"(?: \(run with NCCL_DEBUG=\w+ for details\))?(?:,? NCCL version [\d.]+)?[,\s]*$")


def is_echo(kind: str | None, message: str | None) -> bool:
    """Whether an exception is one that a call raises because of a peer.

    Args:
        kind: Its type as printed.
        message: Its message.
    """
    if not _is_torchs(kind or ""):
        return False  # a download or a logger's connection is the rank's own affair
    said = (message or "").lower()
    if any(words in said for words in _OWN):
        return False
    return short_type(kind or "") in _PEER_TYPES or any(words in said for words in _OF_PEERS)


def may_be_echo(kind: str | None, message: str | None) -> bool:
    """Whether it can be either: NCCL says the same of a broken host and of a peer that is gone."""
    said = (message or "").lower()
    return not is_echo(kind, message) and _is_torchs(kind or "") and any(words in said for words in _UNSURE)


def short_type(kind: str) -> str:
    """`DistBackendError` for `torch.distributed.DistBackendError`; the types of other packages as they are."""
    return kind.rpartition(".")[2] if kind.startswith(_TORCH) else kind


def short_message(message: str) -> str:
    """A message without the place in torch's own sources, and without what only a developer of torch can use."""
    message = _GLOO_ADVICE.sub("", _GLOO_PLACE.sub("", message))
    if (place := _NCCL_PLACE.search(message)) is None:
        return message
    said = message[: place.start()] + "NCCL error: " + message[place.end() :]
    return _NCCL_TAIL.sub("", said)


def _is_torchs(kind: str) -> bool:
    return "." not in kind or kind.startswith(_TORCH)
