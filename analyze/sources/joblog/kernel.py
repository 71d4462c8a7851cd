"""Lines of the kernel: NVIDIA's Xid, the OOM killer, links of network devices, PCIe errors.

`NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.` (older drivers: no
name), `nvidia-nvswitch0: SXid (PCI:...): 12028, ...`, `Out of memory: Killed process 7 (python)` (before 5.2 `Kill
process`), `Memory cgroup out of memory: ...`, `oom-kill:constraint=...,task=python,pid=7`, `mlx5_core 0000:0d:00.0
eth2: Link down`, `mlx5_core 0000:0d:00.0 mlx5_0: Port: 1 Link DOWN` / `ACTIVE`, `Port module event: module 0, Cable
unplugged`, `eth0: NIC Link is Down`, `bond0: (slave eth2): link status definitely down`, `ib0: link becomes ready`,
`AER: Uncorrected (Fatal) error`, `python[7]: segfault at ...`. The process ids are those of the host, not of a
container.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from roundk.analyze.sources.joblog.events import Event, number, present, short

LITERALS: Final = (
    "Xid (",
    "ut of memory: Kill",
    "oom-kill",
    "mlx5_",
    " Link is ",
    "link status definitely",
    "link becomes ready",
    "AER: Uncorrect",
    "]: segfault at",
)

_XID: Final = re.compile(
    r"(?P<switch>SXid|Xid) \(PCI:(?P<bus>[\da-fA-F:.]{4,20})\): (?P<xid>\d{1,6})(?:, pid='?(?P<pid>[^',]*)'?)?"
    r"(?:, name=(?P<name>[^,]*))?(?:, (?P<detail>.*))?"
)
_KILLED: Final = re.compile(
    r"(?P<cgroup>[Mm]emory cgroup o|O)ut of memory: Kill(?:ed)? process (?P<pid>\d{1,10}) \((?P<name>[^)]{0,64})\)"
    r"(?:.{0,80}?anon-rss:(?P<rss>\d+)kB)?"
)
_CHOSEN: Final = re.compile(
    r"oom-kill:constraint=(?P<constraint>\w+).{0,600}?task=(?P<name>[^,]{0,64}),pid=(?P<pid>\d{1,10})"
)
_INVOKED: Final = re.compile(r"(?P<name>\S{1,64}) invoked oom-killer")
_BUS: Final = r"(?P<bus>[\da-fA-F]{4,8}:[\da-fA-F]{2}:[\da-fA-F]{2}\.\d)"
_DEVICE: Final = r"(?P<device>[\w.@-]{1,40})"
_LINKS: Final = (
    re.compile(
        rf"mlx5_core {_BUS}(?: {_DEVICE})?: Port: (?P<port>\d+) Link (?P<state>DOWN|ACTIVE|UP|INIT)",
        re.IGNORECASE,
    ),
    re.compile(rf"{_DEVICE}: Port: (?P<port>\d+) Link (?P<state>DOWN|ACTIVE|UP|INIT)", re.IGNORECASE),
    re.compile(rf"mlx5_core {_BUS}(?: {_DEVICE})?: Link (?P<state>up|down)\b", re.IGNORECASE),
    re.compile(rf"{_DEVICE}: (?:NIC )?Link is (?P<state>Up|Down)\b", re.IGNORECASE),
    re.compile(rf"\(slave {_DEVICE}\): link status definitely (?P<state>up|down)"),
    re.compile(rf"{_DEVICE}: link (?P<state>becomes ready)"),
)
_MODULE: Final = re.compile(
    rf"mlx5_core {_BUS}(?: {_DEVICE})?:? .{{0,40}}?Port module event(?:\[\w+\])?: module "
    rf"(?P<module>\d+), (?P<event>.*)"
)
_HEALTH: Final = re.compile(
    rf"mlx5_core {_BUS}(?: {_DEVICE})?: .{{0,80}}?(?P<what>device's health"
    rf" compromised|Fatal error \d+ detected|assert_var|timeout\. Will cause a leak)"
)
_AER: Final = re.compile(rf"(?P<driver>[\w-]{{1,40}}) {_BUS}: AER: Uncorrect(?:ed|able) \((?P<severity>[\w-]+)\)")
_SEGFAULT: Final = re.compile(
    r"(?P<name>\S{1,64})\[(?P<pid>\d{1,10})\]: segfault at [\da-f]+(?:.{0,120}? in (?P<library>[^\s\[]{1,80}))?"
)


def parse(text: str) -> Iterator[Event]:
    """What a line of the kernel says."""
    if (xid := _XID.search(text)) is not None:
        yield _xid(xid)
    elif (killed := _KILLED.search(text)) is not None:
        is_cgroup = len(killed["cgroup"]) > 1
        rss = number(killed["rss"])
        fields = present(
            pid=number(killed["pid"]), name=killed["name"], is_cgroup=is_cgroup, anon_rss_bytes=rss and rss * 1024
        )
        yield _about("oom_kill", f"the OOM killer ended process {killed['pid']} ({killed['name']})", fields)
    elif (chosen := _CHOSEN.search(text)) is not None:
        fields = present(pid=number(chosen["pid"]), name=chosen["name"], constraint=chosen["constraint"])
        yield _about("oom_chosen", f"the OOM killer chose process {chosen['pid']} ({chosen['name']})", fields)
    elif (invoked := _INVOKED.search(text)) is not None:
        yield _about("oom_invoked", f"{invoked['name']} ran out of memory", {"name": invoked["name"]})
    elif (segfault := _SEGFAULT.search(text)) is not None:
        fields = present(pid=number(segfault["pid"]), name=segfault["name"], library=segfault["library"])
        yield _about("segfault", f"segmentation fault of process {segfault['pid']} ({segfault['name']})", fields)
    else:
        yield from _device(text)


def _about(kind: str, text: str, fields: dict[str, object]) -> Event:
    pid = fields.get("pid")
    return Event(kind, text, fields, pid=pid if isinstance(pid, int) else None, is_about_other=True)


def _xid(xid: re.Match[str]) -> Event:
    detail = short(xid["detail"]) if xid["detail"] else None
    fields = present(bus_id=xid["bus"], xid=number(xid["xid"]), pid=number(xid["pid"]), name=xid["name"], detail=detail)
    kind = "sxid" if xid["switch"] == "SXid" else "xid"
    return _about(kind, f"{xid['switch']} {xid['xid']} of {xid['bus']}{': ' + detail if detail else ''}", fields)


def _device(text: str) -> Iterator[Event]:
    for pattern in _LINKS:
        if (link := pattern.search(text)) is not None:
            yield _link(link)
            return
    if (module := _MODULE.search(text)) is not None:
        fields = present(
            bus_id=module["bus"], device=module["device"], module=number(module["module"]), event=short(module["event"])
        )
        yield _about("port_module", f"module {module['module']} of {module['bus']}: {short(module['event'])}", fields)
    elif (health := _HEALTH.search(text)) is not None:
        fields = present(bus_id=health["bus"], device=health["device"], error=short(text[health.start("what") :]))
        yield _about("nic_error", f"{health['bus']}: {short(text[health.start('what') :])}", fields)
    elif (aer := _AER.search(text)) is not None:
        fields = present(bus_id=aer["bus"], driver=aer["driver"], severity=aer["severity"])
        yield _about("pcie_error", f"uncorrected PCIe error of {aer['bus']} ({aer['severity']})", fields)


def _link(link: re.Match[str]) -> Event:
    told = link.groupdict()
    is_up = link["state"].lower() in {"up", "active", "becomes ready"}
    device = told.get("device") or told.get("bus")
    fields = present(
        device=told.get("device"), bus_id=told.get("bus"), port=number(told.get("port")), state=link["state"].lower()
    )
    kind = "link_up" if is_up else "link_down"
    return _about(kind, f"link of {device} {'up' if is_up else 'down'}", fields)
