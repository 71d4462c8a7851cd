"""The kernel's files with counters of links: which there are, and reading them.

    class/net/DEVICE/{carrier,carrier_changes,carrier_up_count,carrier_down_count,operstate,mtu,speed,statistics/*}
    class/infiniband/DEVICE/ports/PORT/{state,phys_state,rate,link_layer,counters/*,hw_counters/*}
    class/infiniband/DEVICE/hw_counters/*
    net/{snmp,netstat} of /proc

Source: Linux `Documentation/ABI/stable/sysfs-class-infiniband`, `Documentation/ABI/testing/sysfs-class-net*`,
`net/ipv4/proc.c` (a line of names and a line of values, whose columns differ by kernel).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from dataclasses import dataclass, field
from os import pread
from time import time_ns
from typing import TYPE_CHECKING, NamedTuple

from roundk.tracer import words

if TYPE_CHECKING:
    from collections.abc import Callable

    from roundk.tracer.linkstore import Store

NETDEV, IB, TCP = "netdev", "ib", "tcp"
_NET_STATES = ("carrier", "operstate", "mtu", "speed")
_NET_COUNTS = ("carrier_changes", "carrier_up_count", "carrier_down_count")
_PORT_STATES = ("state", "phys_state", "rate", "link_layer")
_TEXTS = frozenset({"operstate", *_PORT_STATES})
FAST = frozenset(
    {
        *("carrier", "operstate", "carrier_changes", "carrier_up_count", "carrier_down_count"),
        *("rx_bytes", "tx_bytes", "rx_packets", "tx_packets", "rx_errors", "tx_errors", "rx_dropped", "tx_dropped"),
        *("rx_missed_errors", "rx_crc_errors", "tx_carrier_errors"),
        *("state", "phys_state", "link_downed", "link_error_recovery", "symbol_error", "port_rcv_errors"),
        *("port_xmit_data", "port_rcv_data", "port_xmit_wait", "port_xmit_discards"),
        *("local_ack_timeout_err", "packet_seq_err", "out_of_sequence", "rnr_nak_retry_err", "out_of_buffer"),
        *("np_cnp_sent", "rp_cnp_handled", "rx_icrc_encapsulated"),
    }
)
"""What is read of the job's own ports while a call is stalled: whether they are up, whether data move, what is lost."""
SLOW = frozenset({"speed", "link_layer"})
"""Hardly ever changes, and the driver asks its firmware, under the network stack's one lock, for the speed."""
URGENT = frozenset({"state", "link_downed", "carrier_changes"})
"""What tells that a port went down."""
_LIFESPAN = "lifespan"
"""Not a counter: for how many milliseconds the driver gives the hardware counters out of its memory."""
_TABLES = {
    "snmp": {
        "Ip": "InDiscards OutDiscards OutNoRoutes ReasmFails FragOKs FragFails FragCreates",
        "Icmp": "InDestUnreachs OutDestUnreachs InTimeExcds",
        "Tcp": "AttemptFails EstabResets CurrEstab InSegs OutSegs RetransSegs InErrs OutRsts InCsumErrors",
    },
    "netstat": {
        "TcpExt": "TCPTimeouts TCPLostRetransmit TCPFastRetrans TCPSlowStartRetrans TCPRetransFail TCPSynRetrans"
        " TCPLossProbes TCPLossProbeRecovery TCPSpuriousRTOs TCPSpuriousRtxHostQueues TCPSACKReorder TCPTSReorder"
        " TCPOFOQueue TCPOFODrop TCPDSACKRecv TCPDSACKOldSent TCPAbortOnTimeout TCPAbortOnData TCPAbortOnClose"
        " TCPBacklogDrop TCPRcvQDrop TCPRcvCollapsed TCPMTUPFail TCPMTUPSuccess TCPFromZeroWindowAdv"
        " TCPToZeroWindowAdv TCPWantZeroWindowAdv TCPZeroWindowDrop TCPKeepAlive ListenDrops PruneCalled"
    },
}
"""What tells of loss, reordering, silence, fragmentation and a reader that does not read; the rest moves anyway."""
_MOST_LIFESPAN_MS = 10_000
"""The kernel takes no more (`set_stats_lifespan` of its `drivers/infiniband/core/sysfs.c`): a larger one is none."""
_PORT = re.compile(r"0|[1-9][0-9]{0,8}")
"""A folder of another name below `ports` is no port."""
_READ_BYTES = 4_096
"""More than any file of one value."""
_TABLE_BYTES = 65_536
_LARGEST = 2**63 - 1


class Place(NamedTuple):
    """A network device, a port of an HCA, an HCA (no port), or the host's TCP (no device)."""

    kind: str
    device: str
    port: int | None


@dataclass(slots=True)
class Reading:
    """A file that is read again and again, through a descriptor that is kept.

    `names` and `ids` are those of its counters; `is_gone`: the device is.
    """

    path: str
    names: list[str]
    ids: list[int]
    is_gone: bool = False
    most_bytes: int = _READ_BYTES
    _fd: int = -1
    _raw: bytes | int | None = None
    _generation: int = 0

    def read(self, store: Store) -> None:
        """Read it, and store what has changed."""
        begin_ns = time_ns()
        found: bytes | int
        try:
            found = pread(self._fd, self.most_bytes, 0)
        except OSError as error:
            found = self._again() if self._fd < 0 else error.errno or errno.EIO
            self.is_gone = found == errno.ENOENT
            if found == errno.ENODEV:
                self.close()  # the device went: the next reading takes the one that has come in its place
        if found == self._raw and self._generation == store.generation:
            return
        is_anew, before = self._generation != store.generation, self._raw
        self._raw, self._generation = found, store.generation
        self._take(store, (begin_ns, time_ns()), found, before, is_anew=is_anew)

    def _again(self) -> bytes | int:
        """Open the file, which was not, and read it; the errno where that fails."""
        try:
            self._fd = _opened(self.path)
            return pread(self._fd, self.most_bytes, 0)
        except OSError as error:
            return error.errno or errno.EIO

    def _take(
        self, store: Store, when: tuple[int, int], found: bytes | int, before: bytes | int | None, *, is_anew: bool
    ) -> None:
        """Store what was found, and what it was before; `is_anew`: nothing of it is stored yet in this segment."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@dataclass(slots=True)
class Value(Reading):
    """A file of one number, or one word."""

    told: Callable[[str], None] | None = None
    """Told of a new word in a file that had another one."""

    def _take(
        self, store: Store, when: tuple[int, int], found: bytes | int, before: bytes | int | None, *, is_anew: bool
    ) -> None:
        counter = self.ids[0]
        text = found.decode(errors="replace").strip() if isinstance(found, bytes) else ""
        if isinstance(found, int):
            store.sample(counter, *when, words.UNREADABLE, found)
        elif self.names[0] in _TEXTS:
            store.sample(counter, *when, words.WORD, store.word(text))
        else:
            number = _number(text)
            is_unknown = number is None or (self.names[0] == "speed" and number < 0)
            state = words.UNREADABLE if is_unknown else words.VALUE
            store.sample(counter, *when, state, errno.ENODATA if is_unknown or number is None else number)
        if self.told is not None and text and before not in (None, found):
            self.told(text)


@dataclass(slots=True)
class Table(Reading):
    """`/proc/net/snmp` or `netstat`: many counters."""

    columns: list[tuple[int, int]] = field(default_factory=list)
    """Line and column of each."""

    def _take(
        self, store: Store, when: tuple[int, int], found: bytes | int, before: bytes | int | None, *, is_anew: bool
    ) -> None:
        now, then = _numbers(found, self.columns), _numbers(before, self.columns)
        is_first = is_anew or before is None
        for counter, value, old in zip(self.ids, now, then, strict=True):
            if value == old and not is_first:
                continue
            if value is not None:
                store.sample(counter, *when, words.VALUE, value)
            else:
                store.sample(counter, *when, words.UNREADABLE, found if isinstance(found, int) else errno.ENODATA)


def _opened(path: str) -> int:
    """A descriptor of a regular file: a pipe in its place would keep the sampler waiting for whoever writes to it.

    Raises:
        OSError: there is none.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    number = errno.EISDIR if stat.S_ISDIR(mode) else errno.ESPIPE
    raise OSError(number, "not a regular file", path)


def _text(path: str) -> str:
    """The text of a small file.

    Raises:
        OSError: it cannot be read.
    """
    fd = _opened(path)
    try:
        return pread(fd, _TABLE_BYTES, 0).decode("ascii", "replace")
    finally:
        os.close(fd)


def _numbers(text: bytes | int | None, columns: list[tuple[int, int]]) -> list[int | None]:
    if not isinstance(text, bytes):
        return [None] * len(columns)
    lines = [line.split() for line in text.split(b"\n")]
    return [
        _number(lines[line][column]) if line < len(lines) and column < len(lines[line]) else None
        for line, column in columns
    ]


def _number(text: str | bytes) -> int | None:
    """The number, where it is one that a sample has room for: 64 bits with a sign."""
    try:
        number = int(text)
    except ValueError:
        return None
    return number if -_LARGEST <= number <= _LARGEST else None


def places(sysfs: str, most: int) -> list[Place]:
    """The devices and ports there are; of network devices at most so many: real ones, then the oldest."""
    found = [Place(NETDEV, name, None) for name in _devices(os.path.join(sysfs, "class", "net"))[:most]]
    for device in _names(os.path.join(sysfs, "class", "infiniband")):
        top = os.path.join(sysfs, "class", "infiniband", device)
        if os.path.isdir(os.path.join(top, "hw_counters")):
            found.append(Place(IB, device, None))
        ports = filter(_PORT.fullmatch, _names(os.path.join(top, "ports")))
        found += [Place(IB, device, int(port)) for port in sorted(ports, key=int)]
    return found


def addresses(sysfs: str) -> set[tuple[str, str]]:
    """Name and link-layer address of every network device."""
    top = os.path.join(sysfs, "class", "net")
    found = set()
    for name in _names(top):
        with contextlib.suppress(OSError):
            found.add((name, _text(os.path.join(top, name, "address")).strip()))
    return found


def _devices(top: str) -> list[str]:
    names = [name for name in _names(top) if os.path.isdir(os.path.join(top, name))]
    return sorted(names, key=lambda name: (not os.path.exists(os.path.join(top, name, "device")), _index(top, name)))


def _index(top: str, name: str) -> int:
    try:
        return _number(_text(os.path.join(top, name, "ifindex"))) or 0
    except OSError:
        return 0


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def readings(sysfs: str, place: Place, store: Store) -> list[Value]:
    """The files of a device or port; none where it is gone."""
    kind = "net" if place.kind == NETDEV else "infiniband"
    top = os.path.join(sysfs, "class", kind, place.device)
    if place.port is not None:
        top = os.path.join(top, "ports", str(place.port))
    found = _values(store, place, top, [name for name in _own_files(place) if os.path.exists(os.path.join(top, name))])
    for folder in ("statistics",) if place.kind == NETDEV else ("counters", "hw_counters"):
        known = {_LIFESPAN, *(value.names[0] for value in found)}
        inside = os.path.join(top, folder)
        found += _values(store, place, inside, [name for name in _names(inside) if name not in known])
    return found


def _values(store: Store, place: Place, folder: str, names: list[str]) -> list[Value]:
    ids = store.counters(*place, names, _lifespan_ms(folder))
    return [Value(os.path.join(folder, name), [name], [of]) for name, of in zip(names, ids, strict=True) if of]


def _own_files(place: Place) -> tuple[str, ...]:
    if place.kind == NETDEV:
        return (*_NET_STATES, *_NET_COUNTS)
    return _PORT_STATES if place.port is not None else ()


def _lifespan_ms(folder: str) -> int:
    try:
        told = _number(_text(os.path.join(folder, _LIFESPAN))) or 0
    except OSError:
        return 0
    return told if 0 <= told <= _MOST_LIFESPAN_MS else 0


def tables(proc: str, store: Store) -> list[Table]:
    """The host's TCP counters.

    Raises:
        OSError: they cannot be read.
    """
    found = []
    for name, wanted in _TABLES.items():
        path = os.path.join(proc, "net", name)
        lines = [line.split() for line in _text(path).splitlines()]
        columns, names = [], []
        for line in range(0, len(lines) - 1, 2):
            chosen = wanted.get(lines[line][0].rstrip(":"), "").split() if lines[line] else []
            for column, counter in enumerate(lines[line]):
                if counter in chosen:
                    columns.append((line + 1, column))
                    names.append(counter)
        ids = store.counters(TCP, "", None, names)
        found.append(Table(path, names, ids, most_bytes=_TABLE_BYTES, columns=columns))
    return found


def close(opened: list[Value] | list[Table]) -> None:
    """Let go of files."""
    for one in opened:
        with contextlib.suppress(OSError):
            one.close()
