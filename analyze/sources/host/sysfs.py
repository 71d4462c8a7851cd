"""Counters by their place in /sys: a copied tree, or text that names the place of each value.

    class/infiniband/mlx5_0/ports/1/{state,phys_state,rate,link_layer,counters/*,hw_counters/*,gids/*,gid_attrs/*/*}
    class/infiniband/mlx5_0/hw_counters/*
    class/net/eth0/{carrier,carrier_changes,carrier_up_count,carrier_down_count,operstate,mtu,speed,statistics/*}

In a copied tree every file is one value and its *place* is the format: a file is recognised by the end of its path,
from `infiniband/` or `net/` on, so that a copy of `/sys/class`, of `/sys/devices/...` or of less is read alike. The
text forms are `grep . -r` (`PLACE:VALUE`), `tail -n +1` and `head` (`==> PLACE <==`), and their complaints about a file
that could not be read, which is then a sample that is not read.

Source: Linux `Documentation/ABI/stable/sysfs-class-infiniband`, `Documentation/ABI/testing/sysfs-class-net*`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from roundk.analyze.sources.host.samples import IB, NETDEV, UNREADABLE, Context, Samples

_PORT: Final = re.compile(
    r"(?:^|/)infiniband/(?P<device>[^/]{1,64})/ports/(?P<port>\d{1,3})/"
    r"(?:(?:hw_)?counters/(?P<counter>[^/]{1,80})|(?P<state>state|phys_state|rate|link_layer|lid|sm_lid)"
    r"|(?P<gid>gids/\d{1,3}|gid_attrs/(?:types|ndevs)/\d{1,3}))$"
)
_DEVICE: Final = re.compile(r"(?:^|/)infiniband/(?P<device>[^/]{1,64})/hw_counters/(?P<counter>[^/]{1,80})$")
_NET: Final = re.compile(
    r"(?:^|/)net/(?P<device>[^/]{1,64})/(?:statistics/(?P<counter>[^/]{1,80})"
    r"|(?P<state>carrier|carrier_changes|carrier_up_count|carrier_down_count|operstate|mtu|speed|duplex))$"
)
_ROOT: Final = re.compile(r"^(?P<above>.*?)/?(?:sys/)?(?:class/|devices/(?:[^/]+/)*)?(?:infiniband|net)/[^/]+/.*$")
_ZERO_GID: Final = re.compile(r"[0:]*")
_VALUE: Final = re.compile(r"^((?:\S{0,512}/)?(?:infiniband|net)/[^\s:]{1,300}):(.*)$")
_TAIL: Final = re.compile(r"^==> (\S{1,800}) <==$")
_COMPLAINT: Final = re.compile(
    r"^(?:grep|cat|tail|head|cp|more): (?:error reading |cannot open )?['\u2018]?([^'\u2019]{1,800}?)['\u2019]?"
    r"(?: for reading)?: ([A-Z][a-z/ ]{3,60})$"
)
_VIRTUAL: Final = re.compile(
    r"lo|(?:veth|docker|br-|virbr|ifb|dummy|tun|tap|cali|flannel|cni|cilium|lxc|vxlan|sit|gre|nodelocal)"
)


@dataclass(frozen=True)
class SysPlace:
    """What a place holds.

    Attributes:
        kind: `IB` or `NETDEV`.
        device: Network device or HCA.
        port: Port of the HCA.
        counter: Name of the file, with its directory for entries of the GID table.
        above: The path above /sys: what tells the host and the time.
    """

    kind: str
    device: str
    port: int | None
    counter: str
    above: str

    @property
    def is_gid(self) -> bool:
        """Whether it belongs to the GID table, of which only what is filled counts."""
        return self.counter.startswith("gid")


def place(path: str) -> SysPlace | None:
    """What a path names; None for any other path."""
    found = _PORT.search(path) or _DEVICE.search(path)
    kind = IB
    if found is None:
        found, kind = _NET.search(path), NETDEV
    if found is None:
        return None
    names = found.groupdict()
    root = _ROOT.match(path)
    counter = names.get("counter") or names.get("state") or names.get("gid") or ""
    port = int(names["port"]) if names.get("port") else None
    return SysPlace(kind, names["device"], port, counter, root["above"] if root else "")


def take(samples: Samples, at: Context, where: SysPlace, told: str, line: int | None = None) -> None:
    """Take the value of a place, and what it says of the link."""
    told = told.strip()
    if where.is_gid and (told in UNREADABLE or _ZERO_GID.fullmatch(told)):
        return
    if where.kind == NETDEV and where.counter == "speed" and told == "-1":
        told = ""  # The kernel's word for unknown.
    samples.add(at, where.kind, where.device, where.counter, told, port=where.port)
    if where.kind == IB and where.counter == "state":
        ib_state(samples, at, where.device, where.port, told, line)
    elif where.kind == NETDEV and where.counter == "carrier" and told == "0":
        no_carrier(samples, at, where.device, line)


def ib_state(samples: Samples, at: Context, device: str, port: int | None, told: str, line: int | None) -> None:
    """A fact where a port of an HCA is down or not usable."""
    word = told.rpartition(":")[2].strip()
    if told in UNREADABLE or word.upper() in {"ACTIVE", "ACTIVE_DEFER"}:
        return
    text = f"port {port} of {device} is in state {word or told}"
    samples.fact(at, "link_down", text, {"device": device, "port": port, "state": word or told}, line)


def no_carrier(samples: Samples, at: Context, device: str, line: int | None) -> None:
    """A fact where a network device is switched on and has no carrier; virtual ones are often so."""
    if not _VIRTUAL.match(device):
        samples.fact(
            at, "link_down", f"{device} has no carrier", {"device": device, "port": None, "state": "no carrier"}, line
        )


class Lines:
    """The text forms: lines that name places."""

    def __init__(self) -> None:
        self._open: SysPlace | None = None

    def take(self, samples: Samples, at: Context, text: str, line: int) -> bool:
        """Take a line; False: it is none of these."""
        if text.startswith("==> "):
            head = _TAIL.match(text)
            self._open = place(head[1]) if head else None
            return head is not None
        where, told = self._open, text
        self._open = None
        if where is None and ("net/" in text or "infiniband/" in text):
            where, told = _named(text)
        if where is None or not text:
            return False
        take(samples, at, where, told, line)
        return True


def _named(text: str) -> tuple[SysPlace | None, str]:
    """The place that a line names, and the value in it: none where it says that it cannot be read."""
    value = _VALUE.match(text)
    where = place(value[1]) if value else None
    if value is not None and where is not None:
        return where, value[2]
    complaint = _COMPLAINT.match(text)
    if complaint is None or complaint[2] not in UNREADABLE:
        return None, ""
    return place(complaint[1]), ""
