"""Lines of gloo and of torch's process group on it.

`RuntimeError: [.../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to complete`,
`.../pair.cc:553] Connection closed by peer [192.0.2.1]:6891. This is typically caused by ...` (older: nothing behind
the port), `Read error [ip]:port: Connection reset by peer`, `Socket unexpectedly closed`, `Connect timeout
[ip]:port`, `Application timeout caused pair closure`, `Gloo connectFullMesh failed with ...`, `failed to connect,
willRetry=1, ...`. A gloo message names neither rank, operation nor seq: the traceback around it tells the call. Only
`monitoredBarrier` names the ranks that did not come.

A closed connection, a read error and a closed pair are echoes: the other side ended or timed out first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from roundk.analyze.sources.joblog.events import Event, number, present, rank_number, ranks, short

LITERALS: Final = (
    "gloo/transport",
    "Connection closed by ",
    "monitoredBarrier",
    "Gloo connectFullMesh",
    "to connect",
)

_PEER: Final = r"\[(?P<peer>[^\]\s]{1,100})\]:(?P<port>\d{1,5})"
_AT: Final = re.compile(r"gloo/(?P<at>transport/[\w./]+:\d+)\]")
_TIMEOUT: Final = re.compile(r"Timed out waiting (?P<ms>\d+) ?ms for (?P<direction>send|recv) operation")
_CLOSED: Final = re.compile(rf"Connection closed by peer {_PEER}")
_READ: Final = re.compile(rf"(?P<what>Read|Write) error {_PEER}: (?P<error>[^.\n]*)")
_CONNECT: Final = re.compile(rf"Connect timeout {_PEER}")
_MESH: Final = re.compile(r"Gloo connectFullMesh failed with (?P<error>.*)")
_RETRY: Final = re.compile(r"failed to connect, willRetry=(?P<retries>\d)(?P<rest>.*)")
_PAIRS: Final = re.compile(r"\b(retry|retryLimit|rank|size|local|remote|error)=([^,]*)")
_BARRIER: Final = re.compile(
    r"\[Rank (?P<rank>\d{1,8})\]: ?Ranks? (?P<ranks>[\d, ]{1,4000}?) failed to pass monitoredBarrier in (?P<ms>\d+) ms"
)
_BARRIER_ERROR: Final = re.compile(
    r"\[Rank (?P<rank>\d{1,8})\][:,]? ?Rank (?P<root>\d{1,8}) successfully reached monitoredBarrier, but"
    r" received errors while"
)
_BARRIER_TIMEOUT: Final = re.compile(r"Rank (?P<rank>\d{1,8}) timed out in monitoredBarrier after (?P<ms>\d+) ms")


def parse(text: str) -> Iterator[Event]:
    """What a line of gloo says."""
    if "monitoredBarrier" in text and (event := _barrier(text)) is not None:
        yield event
    at = _AT.search(text)
    for event in _transport(text):
        event.fields.update(present(at=at["at"] if at else None))
        yield event
    if (mesh := _MESH.search(text)) is not None:
        yield Event(
            "gloo_mesh_failed",
            f"gloo could not connect all ranks: {short(mesh['error'])}",
            {"error": short(mesh["error"])},
        )
    if (retry := _RETRY.search(text)) is not None:
        yield _connect_failed(retry)


def _transport(text: str) -> Iterator[Event]:
    if (timeout := _TIMEOUT.search(text)) is not None:
        fields = present(timeout_ms=number(timeout["ms"]), direction=timeout["direction"])
        yield Event("gloo_timeout", f"gloo waited {timeout['ms']} ms to {timeout['direction'][:4]}", fields)
    elif (closed := _CLOSED.search(text)) is not None:
        yield Event("gloo_closed", f"connection closed by peer {closed['peer']}", _peer(closed))
    elif (read := _READ.search(text)) is not None:
        fields = {**_peer(read), "operation": read["what"].lower(), "error": short(read["error"])}
        yield Event(
            "gloo_io_error", f"{read['what'].lower()} error, peer {read['peer']}: {short(read['error'])}", fields
        )
    elif (connect := _CONNECT.search(text)) is not None:
        yield Event("gloo_connect_timeout", f"could not connect to {connect['peer']} in time", _peer(connect))
    elif "Socket unexpectedly closed" in text:
        yield Event("gloo_closed", "socket unexpectedly closed")
    elif "Application timeout caused pair closure" in text:
        yield Event("gloo_pair_closed", "the pair was closed since another operation timed out")


def _peer(match: re.Match[str]) -> dict[str, object]:
    return present(peer=match["peer"], port=number(match["port"]))


def _barrier(text: str) -> Event | None:
    if (failed := _BARRIER.search(text)) is not None:
        listed, reporter = ranks(failed["ranks"]), rank_number(failed["rank"])
        fields = present(ranks=listed, timeout_ms=number(failed["ms"]), reporter=reporter)
        shown = ", ".join(map(str, listed[:16]))
        return Event("monitored_barrier", f"ranks {shown} did not come to the barrier", fields, group_rank=reporter)
    if (error := _BARRIER_ERROR.search(text)) is not None:
        fields = present(root=rank_number(error["root"]), reporter=rank_number(error["rank"]))
        return Event(
            "monitored_barrier_error",
            "the barrier failed after this rank had come",
            fields,
            group_rank=rank_number(error["rank"]),
        )
    if (timeout := _BARRIER_TIMEOUT.search(text)) is not None:
        reporter = rank_number(timeout["rank"])
        fields = present(timeout_ms=number(timeout["ms"]), reporter=reporter)
        return Event("monitored_barrier_error", "the barrier timed out on this rank", fields, group_rank=reporter)
    return None


def _connect_failed(retry: re.Match[str]) -> Event:
    told = dict(_PAIRS.findall(retry["rest"]))
    fields = present(
        retries=retry["retries"] == "1",
        retry=number(told.get("retry")),
        retry_limit=number(told.get("retryLimit")),
        rank=rank_number(told.get("rank")),
        size=number(told.get("size")),
        local=told.get("local"),
        remote=told.get("remote"),
        error=told.get("error"),
    )
    return Event(
        "gloo_connect_failed",
        f"could not connect to {told.get('remote', '?')}: {told.get('error', '?')}",
        fields,
        group_rank=rank_number(told.get("rank")),
    )
