"""The sampler of a host's links: network devices, InfiniBand ports, TCP, as the kernel counts them.

| how often | what |
|---|---|
| as it happens | network devices that go up or down, from the kernel's netlink events |
| `STATE_S` | state and `link_downed` of InfiniBand ports, `carrier_changes` of the job's network devices |
| `LOOK_S` | which ranks there are, whether one waits; Xid lines of the kernel's log |
| `STEADY_S` | all counters of all devices and ports, and TCP's |
| `SLOW_S` | what hardly changes and is dear to ask for |
| `FAST_S` | while a call is stalled, the job's own ports (TCP: `FAST_TCP_S`), for as long as `_Credit` allows |

It runs in a process of its own: a stopped rank does not blind it, and a file that a driver's firmware takes seconds to
answer holds up nothing else. Such times are told as gaps. What cannot be read is stored as that, not as zero.

Standard library only.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import select
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from roundk.tracer import kmsg, linkfiles, linkstore, netlink, ports, rundir, waiting, words
from roundk.tracer.linkfiles import IB, NETDEV, Place, Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SYSFS, PROC = "/sys", "/proc"
FAST_S, FAST_TCP_S, STATE_S, STEADY_S, SLOW_S = 0.01, 0.1, 0.1, 1.0, 10.0
_SHARE, _FAST_SHARE = 0.005, 0.08
"""Of a core, for a round that always goes on and for the fast one: under 1 and under 10 per cent in all."""
LOOK_S = 0.25
"""Between two looks at the ranks: whether there are new ones, and whether one waits."""
STALLED_S = 1.0
"""A call in flight for so long is worth looking at closely: the shortest flap of a link stalls gloo for about that."""
_CREDIT_S, _EARNED, _ENOUGH_S = 120.0, 0.1, 5.0
"""Seconds of fast reading that a host has at first and at most, earns per second, and needs to begin again: a job whose
calls always take long, or that hangs for hours, must not push out with it what was recorded before."""
GAP_S = 0.5
"""So late after its time, the sampler was stopped, starved or held up by a file."""
_WAKE_NS = 1_000_000
"""A process that sleeps wakes up in so long, where a core is free."""
_MOST_DEVICES = 32
"""Network devices to read; a host with a pair for each of its containers has hundreds. All of them have events."""
_NVIDIA = "driver/nvidia/gpus"


@dataclass
class _Round:
    """Files that are read together, how often, and when next.

    A round that takes more than its `share` of a core comes less often: a driver that asks its firmware for every value
    may take a hundred times what memory does.
    """

    period_s: float
    share: float
    every_s: float = 0.0
    due: float = math.inf
    began: float = -math.inf
    look: int = 0
    readings: list[Reading] = field(default_factory=list)

    def read(self, store: linkstore.Store) -> bool:
        """Read them; whether one is of a device that is gone."""
        now, begin_ns, cpu_s = time.monotonic(), time.time_ns(), time.thread_time()
        in_time = now - self.began <= 2 * self.every_s
        for reading in self.readings:
            reading.read(store)
        if self.readings:
            store.looked(self.look, begin_ns, in_time=in_time)
        is_first, self.began = self.began == -math.inf, now
        self.every_s = self.period_s if is_first else max(self.period_s, (time.thread_time() - cpu_s) / self.share)
        self.due = max(self.due + self.every_s, now + self.every_s / 2)
        return any(reading.is_gone for reading in self.readings)


@dataclass
class _Credit:
    """How long fast reading may still go on."""

    left_s: float = _CREDIT_S
    is_spent: bool = False
    _at: float = field(default_factory=time.monotonic)

    def may(self, *, wanted: bool) -> bool:
        """Whether to read fast until the next look."""
        now = time.monotonic()
        passed, self._at = now - self._at, now
        self.left_s = min(_CREDIT_S, self.left_s + _EARNED * passed)
        if wanted and not self.is_spent:
            self.left_s -= passed
            self.is_spent = self.left_s <= 0
        elif self.left_s >= _ENOUGH_S:
            self.is_spent = False
        return wanted and not self.is_spent


class Sampler:
    """Samples the links of this host, or those of a recorded tree, into a host's folder of a run directory."""

    def __init__(
        self,
        folder: str,
        *,
        sysfs_root: str = SYSFS,
        proc_root: str | None = None,
        max_bytes: int = linkstore.MAX_BYTES,
    ) -> None:
        """Create the files.

        Args:
            folder: The host's folder, as `rundir.prepare` makes it.
            sysfs_root: Where /sys is. With any other tree, netlink events, routes and the kernel's log, which are this
                host's, are left out.
            proc_root: Where /proc is; None: /proc, or beside another tree's `sys` its `proc`.
            max_bytes: Disk for samples.

        Raises:
            OSError: they cannot be made.
        """
        self._folder, self._sysfs = folder, sysfs_root
        self._is_live = sysfs_root == SYSFS
        self._is_foreign = False
        self._proc = proc_root or (PROC if self._is_live else os.path.join(os.path.dirname(sysfs_root), "proc"))
        self._store = linkstore.Store(folder, max_bytes)
        self._ranks = waiting.Ranks(folder)
        self._credit = _Credit()
        self._read: dict[Place, list[linkfiles.Value]] = {}
        self._tables: list[linkfiles.Table] = []
        self._links: dict[int, netlink.Link] = {}
        self._names: set[str] = set()
        self._quiet_ns = time.time_ns()
        self._told: list[dict[str, str]] = []
        self._addresses: list[str] = []
        self._asked: set[str] = set()
        self._used: dict[ports.Used, None] = {}
        self._events: netlink.Events | None = None
        self._log: kmsg.KernelLog | None = None
        self._look_due = self._scan_due = time.monotonic()
        self._steady, self._slow = _Round(STEADY_S, _SHARE), _Round(SLOW_S, _SHARE)
        self._state = _Round(STATE_S, _SHARE)
        self._fast, self._fast_tcp = _Round(FAST_S, _FAST_SHARE), _Round(FAST_TCP_S, _SHARE)
        self._rounds = (self._fast, self._fast_tcp, self._state, self._steady, self._slow)

    def run(self, stop: int | None = None) -> None:
        """Sample until `stop` can be read or its other end is closed (None: without end).

        Raises:
            OSError: the samples cannot be stored.
        """
        self._begin()
        poll = select.poll()
        for fd in (stop, self._events.fileno() if self._events else None):
            if fd is not None:
                poll.register(fd, select.POLLIN)
        while True:
            due = min(self._look_due, *(one.due for one in self._rounds))
            asleep_ns = time.time_ns()
            ready = [fd for fd, _ in poll.poll(max(0.0, due - time.monotonic()) * 1_000)]
            if stop in ready:
                return
            now_ns = time.time_ns()
            if ready:
                self._take_events(now_ns, _WAKE_NS if now_ns - asleep_ns > _WAKE_NS else now_ns - self._quiet_ns)
            self._quiet_ns = now_ns
            late = time.monotonic() - due
            if late > GAP_S:
                self._store.event("gap", time.time_ns() - int(late * 1e9), for_ms=round(late * 1e3))
            self._turn()

    def close(self, why: str | None = None) -> None:
        """Write the last line, with the reason where it is not the end, and let go of all files."""
        self._store.close("end" if why is None else "off", **({} if why is None else {"why": why}))
        for values in self._read.values():
            linkfiles.close(values)
        linkfiles.close(self._tables)
        self._ranks.close()
        for one in (self._events, self._log):
            if one is not None:
                one.close()

    # What there is to read

    def _begin(self) -> None:
        self._store.event(
            "start",
            schema=words.SCHEMA_VERSION,
            host=rundir.host_name(),
            pid=os.getpid(),
            monotonic_ns=time.monotonic_ns(),
            sysfs_root=None if self._is_live else self._sysfs,
        )
        if self._is_live:
            self._listen()
        self._tables = self._or_tell("tcp", lambda: linkfiles.tables(self._proc, self._store)) or []
        if os.path.isdir(os.path.join(self._proc, _NVIDIA)):
            self._tell("nvlink", "the driver gives its counters through its own library only, not through files")
            if self._is_live:
                self._log = self._or_tell("xid", kmsg.KernelLog)
        self._scan()
        now = time.monotonic()
        self._steady.due = self._slow.due = now

    def _or_tell(self, what: str, function: Callable[[], Any]) -> Any:
        """What a function gives; None, and a line, where it cannot be read."""
        try:
            return function()
        except (OSError, ValueError) as error:
            self._tell(what, str(error))
            return None

    def _tell(self, what: str, why: str) -> None:
        self._store.event("unreadable", what=what, why=why)

    def _listen(self) -> None:
        self._events = self._or_tell("netdev events", netlink.Events)
        links = self._or_tell("netdev events", netlink.links) or []
        self._links = {link.number: link for link in links}
        self._names = {link.name for link in links}
        # /sys stays that of the namespace in which it was mounted. Some devices may come or go between two looks.
        own, shown = {(link.name, link.address) for link in links}, linkfiles.addresses(self._sysfs)
        loopback = {("lo", "00:00:00:00:00:00")}
        if links and 2 * len((own ^ shown) - loopback) > len((own | shown) - loopback):
            self._is_foreign = True
            self._tell("netdev", f"{self._sysfs} shows other devices than this process's network namespace has")

    def _scan(self) -> None:
        """Find devices and ports, and arrange what is read when."""
        self._scan_due = time.monotonic() + (SLOW_S if self._is_live else STEADY_S)
        found = linkfiles.places(self._sysfs, _MOST_DEVICES)
        if self._is_foreign:
            found = [place for place in found if place.kind != NETDEV]
        gone = {place for place, values in self._read.items() if any(value.is_gone for value in values)}
        gone |= self._read.keys() - set(found)
        for place in gone:
            linkfiles.close(self._read.pop(place))
        new = [place for place in found if place not in self._read]
        for place in new:
            self._read[place] = linkfiles.readings(self._sysfs, place, self._store)
            for value in self._read[place]:
                if place.kind == IB and value.names == ["state"]:
                    value.told = self._teller(place)
        used = len(self._used)
        self._find_used()
        if gone or new or used != len(self._used) or not self._steady.look:
            self._arrange()

    def _teller(self, place: Place) -> Callable[[str], None]:
        def tell(state: str) -> None:
            is_up = state.rpartition(":")[2].strip().upper() in {"ACTIVE", "ACTIVE_DEFER"}
            about: dict[str, Any] = {"device": place.device, "port": place.port, "state": state, "is_up": is_up}
            self._store.event("ib_port", error_ns=int(STATE_S * 1e9), **about)

        return tell

    def _arrange(self) -> None:
        everything = [(place, value) for place, values in self._read.items() for value in values]
        used = {Place(kind, device, port) for kind, device, port, _ in self._used}
        used |= {Place(IB, device, None) for kind, device, _, _ in self._used if kind == IB}
        self._set(self._steady, [value for _, value in everything if value.names[0] not in linkfiles.SLOW])
        self._set(self._slow, [value for _, value in everything if value.names[0] in linkfiles.SLOW])
        watched = [(place, value) for place, value in everything if place.kind == IB or place in used]
        urgent = [value for _, value in watched if value.names[0] in linkfiles.URGENT]
        self._set(self._state, urgent)
        fast = [value for place, value in everything if place in used and value.names[0] in linkfiles.FAST]
        self._set(self._fast, fast)
        self._set(self._fast_tcp, [])
        self._steady.readings += self._tables
        self._fast_tcp.readings += self._tables
        for one in (self._steady, self._fast_tcp):
            one.look = self._store.look([number for reading in one.readings for number in reading.ids])
        self._state.due = time.monotonic() if urgent else math.inf

    def _set(self, one: _Round, readings: list[linkfiles.Value]) -> None:
        one.readings = list(readings)
        one.look = self._store.look([number for reading in readings for number in reading.ids])
        one.began = -math.inf

    # The job's own ports

    def _find_used(self) -> None:
        devices = [place.device for place in self._read if place.kind == NETDEV]
        hcas = [(place.device, place.port) for place in self._read if place.kind == IB and place.port is not None]
        for told in self._told:
            found = ports.by_settings(told, devices, hcas)
            if self._is_live and not any(used.kind == NETDEV for used in found):
                self._ask_for(told.get(ports.MASTER, ""))
            self._use(found)
        while self._addresses:
            address = self._addresses.pop()
            device = self._or_tell("route to the master", functools.partial(netlink.device_towards, address))
            self._use([ports.Used(NETDEV, device, None, ports.BY_ROUTE)] if device else [])

    def _use(self, found: list[ports.Used]) -> None:
        for used in found:
            if used not in self._used:
                self._used[used] = None
                about: dict[str, Any] = {"of": used.kind, "device": used.device, "port": used.port, "by": used.by}
                self._store.event("used", **about)

    def _ask_for(self, master: str) -> None:
        """Find the master's address, in a thread: a name server may take seconds."""
        if master and master not in self._asked:
            self._asked.add(master)
            threading.Thread(target=self._resolve, args=(master,), daemon=True).start()

    def _resolve(self, master: str) -> None:
        with contextlib.suppress(OSError, UnicodeError):
            self._addresses.append(str(socket.getaddrinfo(master, None)[0][4][0]))

    # The loop

    def _turn(self) -> None:
        now = time.monotonic()
        if now >= self._look_due:
            self._look(now)
        gone = [one.read(self._store) for one in self._rounds if now >= one.due]
        if any(gone) or now >= self._scan_due:
            self._scan()

    def _look(self, now: float) -> None:
        self._look_due = now + LOOK_S
        self._store.renew()
        since_ns, headers = self._ranks.look()
        self._told += [told for header in headers if (told := _network(header)) not in self._told]
        if headers or self._addresses:
            self._scan()
        stalled = since_ns is not None and time.time_ns() - since_ns > STALLED_S * 1e9
        is_fast = self._credit.may(wanted=stalled and bool(self._used))
        for one in (self._fast, self._fast_tcp):
            if not is_fast:
                one.due = math.inf
            elif one.due == math.inf:
                one.due = now
        if self._log is not None:
            self._take_xids(self._log)

    def _take_xids(self, log: kmsg.KernelLog) -> None:
        for xid in self._or_tell("xid", log.xids) or []:
            about = {"bus_id": xid.bus_id, "xid": xid.number, "is_switch": xid.is_switch, "text": xid.text}
            self._store.event("xid", xid.time_ns, **about)

    def _take_events(self, now_ns: int, error_ns: int) -> None:
        assert self._events is not None
        try:
            links = self._events.read()
        except OSError as error:
            self._tell("netdev events", f"some were lost: {error.strerror}")
            links = self._or_tell("netdev events", netlink.links) or []
        for link in links:
            self._take_event(link, now_ns, error_ns)

    def _take_event(self, link: netlink.Link, now_ns: int, error_ns: int) -> None:
        before = self._links.get(link.number)
        is_known = before is not None or link.name in self._names
        if link.is_gone:
            self._links.pop(link.number, None)
        else:
            self._links[link.number] = link
            self._names.add(link.name)
        if before is None or link.is_gone or before.name != link.name:
            self._scan_due = 0.0
        if is_known and (before is None or _state(before) != _state(link)):
            about: dict[str, Any] = {"device": link.name, "is_up": link.is_up, "is_admin_up": link.is_admin_up}
            about |= {"is_gone": link.is_gone, "changes": _changes(before, link)}
            self._store.event("netdev", now_ns, error_ns=error_ns, **about)


def _state(link: netlink.Link) -> tuple[object, ...]:
    """What makes an event of it: up and down, also where both came between two messages."""
    return link.is_up, link.is_admin_up, link.is_gone, link.carrier_changes


def _changes(before: netlink.Link | None, link: netlink.Link) -> int | None:
    """How often the carrier came and went since the event before; None where that is not known.

    The kernel may tell several at once: of a device that lost its carrier within a second after another event, it tells
    when that second is over, or when the carrier is back.

    Source: Linux `net/core/link_watch.c`, `linkwatch_urgent_event` and `linkwatch_schedule_work`.
    """
    if before is None or before.carrier_changes is None or link.carrier_changes is None:
        return None
    return link.carrier_changes - before.carrier_changes


def _network(header: Mapping[str, Any]) -> dict[str, str]:
    """The settings that a rank has told."""
    told = header.get("network")
    return {str(name): str(value) for name, value in told.items()} if isinstance(told, dict) else {}
