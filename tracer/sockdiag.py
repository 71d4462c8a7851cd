"""The kernel's state of this namespace's TCP connections: which peer answers late, is retransmitted to, or not at all.

Counters of a whole host say that something is lost; only the connections say towards whom. One request gives all
connections with their queues and `struct tcp_info`, without privileges and without reading a file per process.

A connection that waits for an acknowledgement doubles its patience each time (`backoff`). So does one that asks a peer
with a closed window whether it reads again, over a healthy link, and one whose own device is down: `is_probing` tells
these apart from lost data.

Source: sock_diag(7); Linux `include/uapi/linux/{inet_diag,sock_diag,tcp,netlink}.h`, `net/ipv4/{inet_diag,tcp}.c`.
"""

from __future__ import annotations

import errno
import functools
import os
import socket
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_SOCKETS = 4096
"""More are not looked at: at some 5 us each this is 20 ms of a core."""
GROWING = (
    "bytes_acked",
    "bytes_received",
    "bytes_retrans",
    "busy_us",
    "reord_seen",
    "retrans_total",
    "rwnd_limited_us",
    "sndbuf_limited_us",
)
"""Counters that only grow while a connection lives, and leave a peer's sum with it."""
_NOW = ("lost", "notsent_bytes", "recv_queue", "send_queue", "unacked")
"""What is so at this moment: summed too."""
_LARGEST = ("delivery_rate", "rto_us", "rtt_us")
_LEAST = ("last_ack_recv_ms", "last_data_sent_ms", "min_rtt_us", "pmtu")

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_ERROR, _DONE = 2, 3
_REQUEST_DUMP = 0x1 | 0x300
_INET_DIAG_INFO = 2
_TIMER_PROBE = 4
_STATES = {1: "established", 4: "fin-wait-1", 5: "fin-wait-2", 8: "close-wait", 9: "last-ack", 11: "closing"}
"""Those that may still carry data, as `ss` spells them."""
_WANTED = sum(1 << state for state in _STATES)
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI48x")
_SOCKET = struct.Struct("=BBBxHH16s16s16xII8x")
"""`inet_diag_msg`: family, state, timer, ports, addresses, receive and send queue."""
_ATTRIBUTE_BYTES = 4
_attribute_at = struct.Struct("=HH").unpack_from
"""Length and kind: the most frequent step, so looked up once."""
_I32 = struct.Struct("=i")
_MAPPED = bytes(10) + b"\xff\xff"
"""How an IPv6 socket writes an IPv4 address."""
_RECEIVE_BYTES = 65_536
"""One datagram of a dump is 32 KiB at most."""
_ANSWER_S = 1.0
"""The kernel answers within milliseconds; longer means that no answer comes."""

_FIELDS = (
    ("backoff", 4, "B"),
    ("rto", 8, "I"),
    ("unacked", 24, "I"),
    ("lost", 32, "I"),
    ("last_data_sent", 44, "I"),
    ("last_ack_recv", 56, "I"),
    ("pmtu", 60, "I"),
    ("rtt", 68, "I"),
    ("total_retrans", 100, "I"),
    ("bytes_acked", 120, "Q"),
    ("bytes_received", 128, "Q"),
    ("notsent_bytes", 144, "I"),
    ("min_rtt", 148, "I"),
    ("delivery_rate", 160, "Q"),
    ("busy_time", 168, "Q"),
    ("rwnd_limited", 176, "Q"),
    ("sndbuf_limited", 184, "Q"),
    ("bytes_retrans", 208, "Q"),
    ("reord_seen", 220, "I"),
)
"""Of `struct tcp_info`: name after `tcpi_`, offset, type. It only ever grew at its end."""
_ENDS = tuple(offset + struct.calcsize(f"={code}") for _, offset, code in _FIELDS)
_INFO = struct.Struct(
    "=" + "".join(f"{at - end}x{code}" for (_, at, code), end in zip(_FIELDS, (0, *_ENDS), strict=False))
)
_OLDEST_INFO_BYTES = 104
"""Up to `tcpi_total_retrans`: what every kernel gives since 2.6.14."""
_NO_RTT = 0xFFFF_FFFF
"""`tcpi_min_rtt` before the first measurement."""


class Flow(NamedTuple):
    """A TCP connection at one moment, seen from this end.

    A field is None where this kernel does not tell it, or has not measured it yet.

    Attributes:
        local_address: IPv4 or IPv6, without the zone.
        local_port: Port.
        peer_address: As `local_address`.
        peer_port: Port.
        state: As `ss` spells it: `established`, `close-wait` ...
        is_probing: The kernel waits to ask whether anything may be sent: the peer's window is closed, or the own device
            does not take it. `backoff` is then of these questions, not of lost data.
        send_queue: Bytes that the peer has not acknowledged, sent or not.
        recv_queue: Bytes that came and that this end's process did not read.
        backoff: How many times in a row the retransmission timeout doubled since anything was acknowledged.
        rto_us: The present retransmission timeout.
        unacked: Segments on their way.
        lost: Of these, segments believed lost.
        last_data_sent_ms: How long ago data was sent.
        last_ack_recv_ms: How long ago an acknowledgement came.
        pmtu: The largest packet for this path, bytes.
        rtt_us: Smoothed round-trip time.
        retrans_total: Segments sent again.
        bytes_acked: Acknowledged by the peer.
        bytes_received: Received in order.
        notsent_bytes: Of the send queue, what was not sent once.
        min_rtt_us: The least round-trip time of late.
        delivery_rate: Bytes/s at the latest measurement, which may be old and which the sender's own pace may bound.
        busy_us: Time with data to send.
        rwnd_limited_us: Of this, time that the peer's window was closed.
        sndbuf_limited_us: Of this, time that the send buffer was too small.
        bytes_retrans: Sent again.
        reord_seen: Times that segments were seen out of order.
    """

    local_address: str
    local_port: int
    peer_address: str
    peer_port: int
    state: str
    is_probing: bool
    send_queue: int
    recv_queue: int
    backoff: int
    rto_us: int
    unacked: int
    lost: int
    last_data_sent_ms: int
    last_ack_recv_ms: int
    pmtu: int
    rtt_us: int | None
    retrans_total: int
    bytes_acked: int | None
    bytes_received: int | None
    notsent_bytes: int | None
    min_rtt_us: int | None
    delivery_rate: int | None
    busy_us: int | None
    rwnd_limited_us: int | None
    sndbuf_limited_us: int | None
    bytes_retrans: int | None
    reord_seen: int | None


class Peer(NamedTuple):
    """All connections to one address together.

    Attributes:
        flows: How many there are.
        counters: By the names of `Flow`. Sums: those of `GROWING` (which fall when a connection ends: take differences
            only while `flows` stays), `send_queue`, `recv_queue`, `notsent_bytes`, `unacked`, `lost`. Largest:
            `rtt_us`, `rto_us`, `delivery_rate`, and `backoff` of the connections that wait for an acknowledgement,
            `probe_backoff` of those that are probing. Least: `min_rtt_us`, `pmtu`, `last_data_sent_ms`,
            `last_ack_recv_ms`. One that no connection tells is not there.
    """

    flows: int
    counters: dict[str, int]


class SockDiag:
    """The TCP connections of this network namespace, that of the moment of opening.

    Attributes:
        is_cut: The last `flows()` left connections out: there are more than `MOST_SOCKETS`.
    """

    def __init__(self) -> None:
        """Open a netlink socket, and ask for nothing, to see whether the kernel answers.

        Raises:
            OSError: no netlink here, or none that tells of TCP.
        """
        self.is_cut = False
        self._number = 0
        self._socket = _opened()
        self._families = [socket.AF_INET]
        try:
            self._dump(socket.AF_INET, 0)
            if self._has_ipv6():
                self._families.append(socket.AF_INET6)
        except OSError:
            self.close()
            raise

    def flows(self) -> list[Flow]:
        """The connections with other hosts that are open, at least on one side.

        Connections within this host are left out, whichever of its addresses they use.

        Raises:
            OSError: the kernel does not answer, or not as it should.
        """
        self.is_cut = False
        found: list[Flow] = []
        for family in self._families:
            found += self._dump(family, _WANTED, MOST_SOCKETS - len(found))
        own = {flow.local_address for flow in found}
        return [flow for flow in found if not _is_loopback(flow.peer_address) and flow.peer_address not in own]

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()

    def _has_ipv6(self) -> bool:
        try:
            self._dump(socket.AF_INET6, 0)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
            return False
        return True

    def _dump(self, family: int, states: int, most: int = MOST_SOCKETS) -> list[Flow]:
        """The sockets of a family that are in one of the states."""
        self._number += 1
        message = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), states)
        length = _HEADER.size + len(message)
        found: list[Flow] = []
        is_done = False
        try:
            self._socket.send(
                _HEADER.pack(length, _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, self._number, 0) + message,
            )
            while not is_done and len(found) <= most:
                is_done = _read(self._socket.recv(_RECEIVE_BYTES), found)
        finally:
            if not is_done:
                # What is still to come would be taken for the next answer.
                self._socket.close()
                self._socket = _opened()
        self.is_cut |= len(found) > most
        return found[:most]


def by_peer(flows: Iterable[Flow]) -> dict[str, Peer]:
    """The connections by the peer's address, in order of appearance."""
    groups: dict[str, list[Flow]] = {}
    for flow in flows:
        groups.setdefault(flow.peer_address, []).append(flow)
    return {address: Peer(len(group), _together(group)) for address, group in groups.items()}


def _together(flows: list[Flow]) -> dict[str, int]:
    """What a peer's connections give together."""
    columns = dict(zip(Flow._fields, zip(*flows, strict=True), strict=True))
    found: dict[str, int] = {}
    for names, combine in ((GROWING, sum), (_NOW, sum), (_LARGEST, max), (_LEAST, min)):
        for name in names:
            values = [value for value in columns[name] if value is not None]
            if values:
                found[name] = combine(values)
    for name, is_probing in (("backoff", False), ("probe_backoff", True)):
        found[name] = max((flow.backoff for flow in flows if flow.is_probing == is_probing), default=0)
    return found


def _opened() -> socket.socket:
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
    opened.settimeout(_ANSWER_S)
    return opened


def _read(data: bytes, found: list[Flow]) -> bool:
    """Add the sockets that a datagram of the kernel tells of; whether it was the last one.

    Raises:
        OSError: the kernel refused, or the datagram is no such thing.
    """
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, at)
        start, end = at + _HEADER.size, at + length
        if length < _HEADER.size or end > len(data):
            raise _broken(f"a message of {length} bytes where {len(data) - at} are left")
        if kind == _SOCK_DIAG_BY_FAMILY:
            flow = _flow(data, start, end)
            if flow is not None:
                found.append(flow)
        elif kind in (_DONE, _ERROR):
            # The end of a dump carries an error number too: of what failed under way.
            number = -_I32.unpack_from(data, start)[0] if length >= _HEADER.size + _I32.size else 0
            if number:
                raise OSError(number, f"the kernel does not tell of its TCP connections: {os.strerror(number)}")
            return True
        at += (length + 3) & ~3
    return False


def _flow(data: bytes, start: int, end: int) -> Flow | None:
    """One socket; None: it is only the memory of one, without figures (time-wait)."""
    if end - start < _SOCKET.size:
        raise _broken(f"a socket in {end - start} bytes where {_SOCKET.size} were expected")
    family, state, timer, port, peer_port, address, peer, unread, unacknowledged = _SOCKET.unpack_from(data, start)
    info = _info(data, start + _SOCKET.size, end)
    if info is None:
        return None
    backoff, rto, unacked, lost, sent_ms, ack_ms, pmtu, rtt, retrans, *later = info
    acked, received, notsent, min_rtt, rate, busy, rwnd, sndbuf, again, reord = later
    return Flow(
        _text(family, address),
        socket.ntohs(port),
        _text(family, peer),
        socket.ntohs(peer_port),
        _STATES.get(state, str(state)),
        timer == _TIMER_PROBE,
        unacknowledged,
        unread,
        backoff,
        rto,
        unacked,
        lost,
        sent_ms,
        ack_ms,
        pmtu,
        rtt or None,
        retrans,
        acked,
        received,
        notsent,
        None if min_rtt == _NO_RTT else min_rtt,
        rate or None,
        busy,
        rwnd,
        sndbuf,
        again,
        reord,
    )


def _info(data: bytes, at: int, end: int) -> tuple[Any, ...] | None:
    """The fields of a socket's `tcp_info`, None for those beyond its end; None where it has none."""
    last = end - _ATTRIBUTE_BYTES
    while at <= last:
        length, kind = _attribute_at(data, at)
        if not _ATTRIBUTE_BYTES <= length <= end - at:
            raise _broken(f"an attribute of {length} bytes where {end - at} are left")
        if kind == _INET_DIAG_INFO:
            return _fields(data, at + _ATTRIBUTE_BYTES, length - _ATTRIBUTE_BYTES)
        at += (length + 3) & ~3
    return None


def _fields(data: bytes, at: int, length: int) -> tuple[Any, ...]:
    if length >= _INFO.size:
        return _INFO.unpack_from(data, at)
    if length < _OLDEST_INFO_BYTES:
        raise _broken(f"a tcp_info of {length} bytes where {_OLDEST_INFO_BYTES} were expected")
    values = _INFO.unpack(data[at : at + length].ljust(_INFO.size, b"\0"))
    return tuple(value if end <= length else None for value, end in zip(values, _ENDS, strict=True))


@functools.lru_cache(maxsize=MOST_SOCKETS)
def _text(family: int, raw: bytes) -> str:
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, raw[:4])
    if raw.startswith(_MAPPED):
        return socket.inet_ntop(socket.AF_INET, raw[len(_MAPPED) :])
    return socket.inet_ntop(socket.AF_INET6, raw)


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _broken(what: str) -> OSError:
    return OSError(errno.EPROTO, f"the kernel's answer about TCP connections holds {what}")
