"""The sampler of a host's links: network devices, InfiniBand ports, TCP, as the kernel counts them.

| how often | what |
|---|---|
| as it happens | network devices that go up or down, from the kernel's netlink events |
| `STATE_S` | state and `link_downed` of InfiniBand ports, `carrier_changes` of the job's network devices |
| `LOOK_S` | which ranks there are, whether one waits; Xid lines of the kernel's log |
| `STEADY_S` | all counters of all devices and ports, TCP's, and the connections by peer |
| `SLOW_S` | what hardly changes and is dear to ask for |
| `FAST_S` | while a call is stalled, the job's own ports (TCP: `FAST_TCP_S`), for as long as `pacing.Credit` allows |

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
from typing import TYPE_CHECKING, Any

from roundk.tracer import kmsg, linkfiles, linkstore, netlink, peers, ports, rundir, waiting, words
from roundk.tracer.linkfiles import IB, NETDEV, Place
from roundk.tracer.pacing import Credit, Round

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SYSFS, PROC = "/sys", "/proc"
FAST_S, FAST_TCP_S, FAST_PEERS_S, STATE_S, STEADY_S, SLOW_S = 0.01, 0.1, 0.1, 0.1, 1.0, 10.0
_SHARE, _FAST_SHARE, _FAST_PEERS_SHARE = 0.005, 0.06, 0.01
"""Of a core, for a round that always goes on and for the fast ones: under 1 and under 10 per cent in all."""
LOOK_S = 0.25
"""Between two looks at the ranks: whether there are new ones, and whether one waits."""
STALLED_S = 1.0
"""A call in flight for so long is worth looking at closely: the shortest flap of a link stalls gloo for about that."""
GAP_S = 0.5
"""So late after its time, the sampler was stopped, starved or held up by a file."""
_WAKE_NS = 1_000_000
"""A process that sleeps wakes up in so long, where a core is free."""
_MOST_DEVICES = 32
"""Network devices to read; a host with a pair for each of its containers has hundreds. All of them have events."""
_NVIDIA = "driver/nvidia/gpus"


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
        self._credit = Credit()
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
        self._peers: peers.Peers | None = None
        self._look_due = self._scan_due = time.monotonic()
        self._steady, self._slow = Round(STEADY_S, _SHARE), Round(SLOW_S, _SHARE)
        self._state = Round(STATE_S, _SHARE)
        self._fast, self._fast_tcp = Round(FAST_S, _FAST_SHARE), Round(FAST_TCP_S, _SHARE)
        self._connections = Round(STEADY_S, _SHARE)
        self._rounds = (self._fast, self._fast_tcp, self._state, self._steady, self._slow, self._connections)

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
        for one in (self._events, self._log, self._peers):
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
            self._peers = self._or_tell("TCP connections", lambda: peers.Peers(self._store))
        self._tables = self._or_tell("tcp", lambda: linkfiles.tables(self._proc, self._store)) or []
        if os.path.isdir(os.path.join(self._proc, _NVIDIA)):
            self._tell("nvlink", "the driver gives its counters through its own library only, not through files")
            if self._is_live:
                self._log = self._or_tell("xid", kmsg.KernelLog)
        self._scan()
        now = time.monotonic()
        self._steady.due = self._slow.due = now
        if self._peers is not None:
            self._connections.set([self._peers], self._store)
            self._connections.due = now

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
        watched = [(place, value) for place, value in everything if place.kind == IB or place in used]
        urgent = [value for _, value in watched if value.names[0] in linkfiles.URGENT]
        fast = [value for place, value in everything if place in used and value.names[0] in linkfiles.FAST]
        steady = [value for _, value in everything if value.names[0] not in linkfiles.SLOW]
        slow = [value for _, value in everything if value.names[0] in linkfiles.SLOW]
        self._steady.set([*steady, *self._tables], self._store)
        self._slow.set([*slow], self._store)
        self._state.set([*urgent], self._store)
        self._fast.set([*fast], self._store)
        self._fast_tcp.set([*self._tables], self._store)
        self._state.due = time.monotonic() if urgent else math.inf

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
        if self._peers is not None:
            used = {used.device for used in self._used if used.kind == NETDEV}
            addresses = self._or_tell("addresses", lambda: netlink.addresses(used)) or []
            self._peers.tell_addresses(self._store, addresses, is_used=True)

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
        if self._peers is not None and self._peers.is_new:
            self._peers.is_new = False
            self._connections.name(self._store)
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
        is_fast = self._credit.may(wanted=stalled and (bool(self._used) or self._peers is not None))
        self._hurry(now, is_fast=is_fast)
        if self._log is not None:
            self._take_xids(self._log)

    def _hurry(self, now: float, *, is_fast: bool) -> None:
        """Read closely from now on, or no longer."""
        for one in (self._fast, self._fast_tcp):
            if not is_fast:
                one.due = math.inf
            elif one.due == math.inf:
                one.due = now
        one = self._connections
        if is_fast and one.period_s == STEADY_S:
            one.due = min(one.due, now)
        one.period_s, one.share = (FAST_PEERS_S, _FAST_PEERS_SHARE) if is_fast else (STEADY_S, _SHARE)

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
