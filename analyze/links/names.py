"""What counters of links mean: which tell of a fault, which move in healthy runs too, which count traffic.

Source: Linux `Documentation/ABI/stable/sysfs-class-infiniband`, `Documentation/ABI/testing/sysfs-class-net`,
`Documentation/networking/snmp_counter.rst`; DCGM `dcgm_fields.h`.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final

from roundk.analyze.phrases import port_text


class Weight(IntEnum):
    """How much a counter that moved says; the less, the heavier."""

    TELLS = 0
    """A fault: it does not move in a run without one."""
    HINTS = 1
    """A fault where it moves more on one host, or more in the bad rounds, than elsewhere."""
    TRAFFIC = 2
    """How much was sent, or what says nothing alone."""


DOWNS: Final = ("carrier_down_count", "link_downed", "link_down_events_phy", "carrier_changes")
"""Counters of how often a port went down; the last one counts both ways, and is asked where the first is not told."""

TELLS: Final = {
    "carrier_down_count": "the port lost its carrier",
    "link_down_events_phy": "the port lost its link",
    "link_downed": "the port's link went down",
    "carrier_changes": "the port lost or got its carrier: two for each flap",
    "local_link_integrity_errors": "physical errors above the port's limit: cable, module",
    "link_error_recovery": "the link trained anew without going down: a short flap",
    "symbol_error": "damaged symbols: cable, module; HDR and NDR links have some always",
    "port_rcv_errors": "damaged packets came in: cable, module",
    "port_rcv_remote_physical_errors": "packets damaged behind the neighbouring switch came in",
    "excessive_buffer_overrun_errors": "packets came in that the port had no room for",
    "rx_crc_errors": "damaged packets came in: cable, module",
    "rx_icrc_encapsulated": "damaged RoCE packets came in",
    "tx_carrier_errors": "was sent without a carrier",
    "req_transport_retries_exceeded": "a queue pair gave up: what NCCL reports as status 12",
    "req_rnr_retries_exceeded": "a queue pair gave up on a receiver: what NCCL reports as status 13",
    "local_ack_timeout_err": "no acknowledgement in time: moves on the host that suffers, not on the faulty one",
    "rnr_nak_retry_err": "the receiving host had no buffer: a slow host, not a link",
    "TCPTimeouts": "no acknowledgement for a whole timeout; 0 in runs without loss",
    "TCPLostRetransmit": "a segment sent again was lost again",
    "TCPAbortOnTimeout": "a connection was given up",
    "TCPRetransFail": "a segment could not be sent again",
    "TCPMTUPFail": "large packets do not get through: MTU",
    "FragFails": "packets too large for the way, and not to be split: MTU",
    "rx_length_errors": "packets came in that are larger than the MTU",
    "resp_local_length_error": "packets came in that are larger than the MTU",
    "port_xmit_discards": "not sent: the port was down, or congested",
}
"""Counters that tell of a fault, the clearest first, with what for."""

HINTS: Final = {
    "packet_seq_err": "packets were lost on the way from here",
    "out_of_sequence": "packets came out of order: loss; under adaptive routing, normal",
    "RetransSegs": "segments sent again, with their share of all; below 0.01 % is usual",
    "TCPSACKReorder": "data came out of order: several ways at once, loss",
    "TCPOFOQueue": "data came out of order: several ways at once, loss",
    "OutNoRoutes": "no way to an address: a port was down; a few are normal",
    "TCPSynRetrans": "a connection was not answered at first: a firewall, a host that is gone",
    "TCPToZeroWindowAdv": "the program here did not read: a slow process, not a link",
    "out_of_buffer": "the receiving host had no buffer: a slow host, not a link",
    "port_xmit_wait": "data waited for the other side's room: congestion, slow receiver (a unit of its own)",
    "np_cnp_sent": "switches marked congestion on the way to here",
    "np_ecn_marked_roce_packets": "switches marked congestion on the way to here",
    "rp_cnp_handled": "this sender was told to slow down",
    "rx_dropped": "came in and was thrown away; a few of unknown protocols are normal",
    "tx_dropped": "was not sent",
    "rx_missed_errors": "came in faster than the host took it",
    "rx_fifo_errors": "came in faster than the host took it",
    "rx_over_errors": "came in faster than the host took it",
    "rx_discards_phy": "came in and found no room in the port",
    "tx_discards_phy": "was thrown away by the port",
}
"""Counters that say something by comparison, with what for."""

BYTES: Final = {
    "rx_bytes": ("in", 1),
    "tx_bytes": ("out", 1),
    "port_rcv_data": ("in", 4),
    "port_xmit_data": ("out", 4),
}
"""Counters of throughput: direction, and bytes in one. InfiniBand counts words of 4 bytes."""

GAUGES: Final = frozenset({"mtu", "speed", "carrier", "CurrEstab", "lid", "sm_lid", "DCGM_FI_DEV_XID_ERRORS"})
"""Numbers that are no counters: a state, or the last of something."""

SIZES: Final = ("mtu", "speed", "rate")
"""What a port is set to, or has agreed on with the other side."""

LARGEST: Final = {
    "link_downed": 255,
    "link_error_recovery": 255,
    "local_link_integrity_errors": 15,
    "excessive_buffer_overrun_errors": 15,
    "symbol_error": 65_535,
    "port_rcv_errors": 65_535,
    "port_rcv_remote_physical_errors": 65_535,
    "port_xmit_discards": 65_535,
}
"""Where narrow counters of InfiniBand stand still. Source: InfiniBand specification 1.3, PortCounters, 16.1.3.5."""

_ECHOES: Final = re.compile(
    r"TCP(?:DSACK|LossProbe|Spurious|FastRetrans|SlowStart|TSReorder|FromZero|WantZero|MTUPSuccess|KeepAlive|Abort|Rcv)"
    r"|Frag|OutRsts|EstabResets|AttemptFails|carrier_up_count|rx_compressed|tx_compressed"
)
_FAULTS: Final = re.compile(
    r"(?i)err|drop|discard|timeout|crc|lost|fail|down|retr[iya]|overrun|miss|exceed|nak|pause|replay|recover|uncorrect"
)
_VOLUME: Final = re.compile(r"(?i)bandwidth|_bytes|_octets|packets|_pkts")


def weight(counter: str, kind: str) -> Weight:
    """How much it says that a counter moved."""
    if counter in TELLS:
        return Weight.TELLS
    if counter in HINTS:
        return Weight.HINTS
    if counter in BYTES or _ECHOES.match(counter) or _VOLUME.search(counter):
        return Weight.TRAFFIC
    return Weight.HINTS if kind in ("nvlink", "gpu") or _FAULTS.search(counter) else Weight.TRAFFIC


def place(counter: str) -> int:
    """Where a counter stands in a list, the clearest first, those without a meaning here last."""
    known = [*TELLS, *HINTS]
    return known.index(counter) if counter in known else len(known)


def meaning(counter: str) -> str:
    """What it says that a counter moved; empty where nothing is known of it."""
    return TELLS.get(counter) or HINTS.get(counter) or ""


def label(kind: str, device: str, port: int | None) -> str:
    """What to call a port: `eth0`, `mlx5_0:1`, `GPU 0 link 3`, `TCP`."""
    if kind == "nvlink" and port is not None:
        return f"{device} link {port}"
    return port_text(device or kind.upper(), port)


def natural(text: str) -> tuple[tuple[int, str], ...]:
    """A key that sorts `node2` before `node10`."""
    return tuple((int(piece), "") if piece.isdigit() else (-1, piece) for piece in re.split(r"(\d+)", text))
