"""Host evidence: counters and states of links and GPUs as people collect them, single, before/after, or as a series.

Forms, each in its module: a copied tree of /sys, or `grep . -r` and `tail -n +1` of one (`sysfs`); `ip -s link` in
text and JSON, `ethtool -S`, `ibstat`, `ibstatus`, `perfquery`, /proc/net/{snmp,netstat} (`net`); `nvidia-smi -q`,
`nvidia-smi nvlink -e/-s`, DCGM text, Xid lines (`gpu`). One file may hold several of them, with `date` lines or
prompts in between. When and where: `where`.

`counters` has what was there, unconverted:
    * `port_xmit_data`, `port_rcv_data`: words of 4 bytes. `rx_bytes`, `tx_bytes` of a netdev: bytes, RDMA not included.
    * Q counters of mlx5 (`local_ack_timeout_err`, `out_of_sequence`, `roce_*` ...) have 32 bits and wrap. Old port
      counters saturate: `link_downed` and `link_error_recovery` at 255, `symbol_error`, `port_rcv_errors` and
      `port_xmit_discards` at 65535, `port_xmit_wait` at 2^32 - 1: a value pinned there is "no longer counted".
    * `carrier_changes` counts up and down, so a flap adds two, and a NIC that just booted has 1 or 2.
    * All count since boot or since the driver was loaded: only differences mean anything; a negative one is a reset.
    * `is_read` is false for what was there and could not be read, such as `carrier` of a device that is switched off.

A before/after pair whose files tell no time keeps the order of its words; its times are null where those of the files
contradict them.

Facts (`kind`: fields):
    link_down: device, port, state: a port that is not active, a device that is on and has no carrier
    xid: xid, and device (DCGM's last one of a GPU) or bus_id (a line of the kernel)

Source: Linux `Documentation/ABI/stable/sysfs-class-infiniband`, `drivers/infiniband/hw/mlx5/counters.c`; the modules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from roundk.analyze.sources.host import gpu, net, sysfs, where
from roundk.analyze.sources.host.samples import Context, Samples
from roundk.analyze.sources.inputs import Hints, Input
from roundk.analyze.sources.part import Part
from roundk.analyze.sources.rows import READ_ERRORS, lines, read_bytes
from roundk.analyze.trace import Unreadable

KIND: Final = "host_evidence"

_FORMS: Final = {
    "ethtool -S": rb"^NIC statistics:\s*$",
    "ip link": rb"^\d{1,7}: [^\s:]{1,64}: <[A-Z0-9_,-]{0,300}> mtu \d|\"ifname\"\s{0,4}:\s{0,4}\"",
    "ibstat": rb"^[ \t]{0,32}CA '[^'\n]{1,64}'[ \t\r]*$|^Infiniband device '[^'\n]{1,64}' port \d{1,3} status:",
    "perfquery": rb"^# Port (?:extended )?counters: ",
    "/proc/net": rb"^Tcp: RtoAlgorithm |^TcpExt: [A-Z]",
    "nvidia-smi -q": rb"^=+NVSMI LOG=+",
    "nvidia-smi nvlink": rb"^[ \t]*GPU \d{1,4}: [^\n]{1,120}\(UUID: GPU-[^\n]{1,80}\n\s+Link \d",
    "DCGM": rb"^DCGM_FI_[A-Z0-9_]{3,80}\{|^#\s?Entity\s+[A-Z]",
    "sysfs": rb"^(?:==> )?(?:\S{0,512}/)?(?:infiniband/[^/\s]{1,64}/(?:ports|hw_counters)/|net/[^/\s]{1,64}/"
    rb"(?:statistics/|carrier|operstate|mtu|speed))",
}
_SEEN: Final = {name: re.compile(pattern, re.MULTILINE) for name, pattern in _FORMS.items()}
_JOB: Final = re.compile(
    rb"NCCL (?:INFO|WARN)|ProcessGroup(?:NCCL|Gloo)|Traceback \(most recent call last\)|torch\.distributed"
)
_PAIR: Final = re.compile(r"(?:^|[-_./!])(before|after|pre|post|begin|start|end)(?=[-_./!]|$)", re.IGNORECASE)
_FIRST: Final = frozenset({"before", "pre", "begin", "start"})
_MOST_VALUE: Final = 4096
_MOST_JSON: Final = 64 << 20
_MOST_LINE: Final = 1 << 16


def recognises(item: Input) -> bool:
    """Whether it is one file of a copied /sys, or output of one of the tools; a job's log that prints one is not."""
    if sysfs.place(item.name) is not None:
        return True
    head = item.head
    return any(seen.search(head) for seen in _SEEN.values()) and not _JOB.search(head)


def load(inputs: Sequence[Input], hints: Hints) -> Part:
    """The samples of all hosts."""
    del hints  # Nothing here is of one rank.
    reader = _Reader(_contradicted(inputs))
    # What is called `before` comes first, so that samples without a time keep their order.
    for item in sorted(inputs, key=lambda item: _phase(item.name) or 0):
        reader.file(item)
    samples = reader.samples
    return Part(
        kind=KIND,
        read=tuple(reader.read),
        ignored=tuple(reader.ignored),
        counters=samples.counters(),
        facts=samples.fact_table(),
        unreadable=tuple(reader.unreadable),
        versions=tuple(f"host evidence: {form}" for form in reader.forms),
        notes=tuple(reader.notes()),
    )


def _phase(name: str) -> int | None:
    """-1 for a name that says `before`, 1 for `after`; None for one that says neither."""
    found = _PAIR.findall(name)
    return None if not found else -1 if found[-1].lower() in _FIRST else 1


def _contradicted(inputs: Iterable[Input]) -> frozenset[str]:
    """Names of pairs whose files changed in the other order than their names say: a copy has set their times."""
    pairs: dict[str, dict[int, tuple[str, int]]] = {}
    for item in inputs:
        phase = _phase(item.name)
        if phase is not None and (when := _changed(item)) is not None:
            pairs.setdefault(_PAIR.sub("", item.name), {})[phase] = (item.name, when)
    wrong = [pair for pair in pairs.values() if len(pair) == 2 and pair[1][1] <= pair[-1][1]]
    return frozenset(name for pair in wrong for name, _ in pair.values())


def _changed(item: Input) -> int | None:
    try:
        return item.path.stat().st_mtime_ns
    except OSError:
        return None


class _Reader:
    """Reads file after file into one set of samples.

    Attributes:
        samples: What was found.
        read: Inputs with anything in them.
        ignored: Inputs with nothing.
        unreadable: Inputs that could not be read, or not to their end.
        forms: The forms that were met.
    """

    def __init__(self, contradicted: frozenset[str]) -> None:
        self.samples = Samples()
        self.read: list[str] = []
        self.ignored: list[str] = []
        self.unreadable: list[Unreadable] = []
        self.forms: dict[str, None] = {}
        self._contradicted = contradicted
        self._file_times = 0
        self._no_zone = 0
        self._dropped = 0

    def notes(self) -> list[str]:
        """What there is to say of times, and of what was left out."""
        told = (
            (self._file_times, "file(s) tell no time: that of their last change is taken, which a copy may have set"),
            (self._dropped, "file(s) say `before` or `after` and changed in the other order: they are without a time"),
            (self._no_zone, "file(s) tell times without a zone that is known: they are read as UTC"),
            (self.samples.number * self.samples.is_full, "samples are read, and all after them left out"),
        )
        return [f"host evidence: {number} {text}" for number, text in told if number]

    def file(self, item: Input) -> None:
        """Read one file."""
        place = sysfs.place(item.name)
        host, when, is_utc = where.of_path(item.name if place is None else f"{place.above}/value")
        before = self._taken()
        at = Context(item.name, when, host)
        headers = where.Headers()
        if when is None:
            at.time_ns = None if item.name in self._contradicted else _changed(item)
        try:
            if place is not None:
                self._value(item, at, place)
            else:
                self._text(item, at, headers)
        except READ_ERRORS as error:
            self.unreadable.append(Unreadable(item.name, f"cannot be read to its end: {error or type(error).__name__}"))
        if self._taken() == before:
            if not any(one.path == item.name for one in self.unreadable[-1:]):
                self.ignored.append(item.name)
            return
        self.read.append(item.name)
        if headers.time_ns is not None:
            self._no_zone += not headers.is_zone_known
        elif when is not None:
            self._no_zone += not is_utc
        else:
            self._dropped += item.name in self._contradicted
            self._file_times += item.name not in self._contradicted

    def _taken(self) -> int:
        return self.samples.number + len(self.samples.facts)

    def _value(self, item: Input, at: Context, place: sysfs.SysPlace) -> None:
        """One file of a copied tree; the copy of one that cannot be read is empty."""
        try:
            data, _ = read_bytes(item, _MOST_VALUE)
        except PermissionError:
            data = b""
        self.forms["sysfs"] = None
        sysfs.take(self.samples, at, place, data.decode("utf-8", "replace"))

    def _text(self, item: Input, at: Context, headers: where.Headers) -> None:
        head = item.head
        self.forms.update({form: None for form, seen in _SEEN.items() if seen.search(head)})
        if head.lstrip()[:1] == b"[" and b'"ifname"' in head:
            data, _ = read_bytes(item, _MOST_JSON)
            if net.document(self.samples, at, data.decode("utf-8", "replace")):
                return
        links, gpus, places = net.Lines(), gpu.Lines(), sysfs.Lines()
        named = where.device_of_name(item.name)
        for number, (raw, _) in enumerate(lines(item), 1):
            text = raw[:_MOST_LINE].decode("utf-8", "replace").rstrip()
            if headers.take(text):
                at.time_ns = at.time_ns if headers.time_ns is None else headers.time_ns
                at.host = headers.host or at.host
                continue
            links.device = headers.device or named
            if not places.take(self.samples, at, text, number) and not links.take(self.samples, at, text, number):
                gpus.take(self.samples, at, text, number)
