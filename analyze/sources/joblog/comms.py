"""NCCL's INFO lines of communicators and channels: who is which rank, who is connected to whom by what.

- `comm 0x.. rank 3 nranks 8 cudaDev 3 [nvmlDev 3] busId 1b000 [commId 0x..] - Init START|COMPLETE` (START and
  `commId` from 2.18; `parent .. splitCount|childCount .. color .. key ..` for splits, without a space before `-
  Init`).
- `Channel 03/0 : 7[7] -> 8[0] [send] via NET/IB/3(5)/GDRDMA(PCI)/Shared` (before 2.12 `Channel 00 : 0[1b000] -> ..`,
  bus ids in brackets): printed by the sender, except `[receive]`. Rings are connected first, up to `Connected all
  rings`, then trees, up to `Connected all trees`, then p2p.
- `Ring 02 : 3 -> 4 -> 5` and `Trees [0] 1/-1/-1->0->-1 [1] ..` (children -> me -> parent; cut at 1,023 characters).
  `Channel 00/02 : 0 1 2 3` is cut without a word after 20 ranks (128 characters from 2.23), so it is not used.

These lines are most of what NCCL_DEBUG=INFO prints at the start of a large job, so they are kept as numbers.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass
from typing import Final

LITERALS: Final = ("- Init ", "] -> ", "INFO Ring ", "INFO Trees ", "Connected all ")

MOST_COMMS: Final = 200_000
"""Processes times communicators that are kept; 16,384 ranks in ten communicators each."""
MOST_CHANNELS: Final = 1_000_000

_PROCESS: Final = r"(?P<host>[\w.-]{1,100}):(?P<pid>\d{1,10}):(?P<tid>\d{1,10}) (?:\[\d+\] )?NCCL INFO "
_INIT: Final = re.compile(
    _PROCESS
    + r".{0,80}?comm (?P<comm>0x[\da-f]{1,16}) rank (?P<rank>\d{1,8}) nranks (?P<nranks>\d{1,8}) cudaDev \d{1,4}"
    r"(?P<rest>.{0,300}?)- Init (?P<state>START|COMPLETE)"
)
_COMM_ID: Final = re.compile(r"commId (?:0x)?(?P<id>[\da-f]{1,32})")
_EDGE: Final = re.compile(
    _PROCESS
    + r"Channel (?P<channel>\d{1,4})(?:/\d{1,4})? ?: (?P<a>\d{1,8})\[[\da-f]{1,16}\] -> (?P<b>\d{1,8})\[[\da-f]{1,16}\]"
    r"(?: \[(?P<side>send|receive)\])? via (?P<via>[^\n]{1,120}?)(?: comm 0x.*)?\s*$"
)
_NET: Final = re.compile(r"(?P<transport>NET/[^/]{1,40})/(?P<device>\d{1,4})(?:\(\d{1,8}\))?(?P<gdr>/GDRDMA)?")
_RING: Final = re.compile(
    _PROCESS + r"Ring (?P<channel>\d{1,4}) ?: (?P<previous>\d{1,8}) -> (?P<me>\d{1,8}) -> (?P<next>\d{1,8})"
)
_TREES: Final = re.compile(_PROCESS + r"Trees (?P<list>\[.*)")
_TREE: Final = re.compile(
    r"\[(?P<channel>\d{1,4})\] (?P<a>-?\d{1,8})/(?P<b>-?\d{1,8})/(?P<c>-?\d{1,8})->(?P<me>-?\d{1,8})->(?P<up>-?\d{1,8})"
)
_CONNECTED: Final = re.compile(_PROCESS + r"Connected all (?P<what>rings|trees)")
SHAPES: Final = ("ring", "tree", "p2p")
DIRECTIONS: Final = ("send", "recv", "parent", "child")
_NONE: Final = -1
_MOST_WORDS: Final = 4_096


@dataclass(slots=True)
class Comm:
    """A process's end of a communicator.

    Attributes:
        host: Host name as NCCL prints it.
        pid: Process id.
        pointer: Address of the object in the process; '' before it is known.
        comm_id: Identity of the communicator, the same in all ranks, hexadecimal digits; None: not printed.
        rank: Rank in the communicator.
        nranks: Number of ranks in it.
        is_complete: Its initialisation ended.
        phase: What is being connected, an index into `SHAPES`.
        source: Where it was met first.
    """

    host: str
    pid: int
    pointer: str
    comm_id: str | None
    rank: int
    nranks: int
    is_complete: bool
    phase: int
    source: tuple[int, int]


class Comms:
    """All communicators and channels of a job's logs."""

    def __init__(self) -> None:
        self.comms: list[Comm] = []
        self.comms_lost = 0
        self.channels_lost = 0
        self.words: dict[str, int] = {}
        self.rows: dict[str, array[int]] = {name: array("q") for name in _CHANNEL}
        self._by_pointer: dict[tuple[str, int, str], int] = {}
        self._by_thread: dict[tuple[str, int, int], int] = {}
        self._by_process: dict[tuple[str, int], int] = {}

    def word(self, text: str) -> int:
        """A name's number; where there are too many to be names, all others are one."""
        if text not in self.words and len(self.words) >= _MOST_WORDS:
            text = "?"
        return self.words.setdefault(text, len(self.words))

    def take(self, text: str, source: tuple[int, int]) -> bool:
        """Read a line, prefixes and all; False where it is none of these.

        Args:
            text: The line.
            source: Number of the file, and of the line in it.
        """
        for literal, pattern, taken in (
            ("] -> ", _EDGE, self._edge),
            ("- Init ", _INIT, self._init),
            ("INFO Ring ", _RING, self._ring),
            ("INFO Trees ", _TREES, self._trees),
            ("Connected all ", _CONNECTED, self._connected),
        ):
            if literal in text and (match := pattern.search(text)) is not None:
                taken(match, source)
                return True
        return False

    def _connected(self, connected: re.Match[str], source: tuple[int, int]) -> None:
        slot = self._slot(connected, source)
        if slot is not None:
            self.comms[slot].phase = 1 if connected["what"] == "rings" else 2

    def _init(self, init: re.Match[str], source: tuple[int, int]) -> None:
        host, pid, tid = init["host"], int(init["pid"]), int(init["tid"])
        pointer, told = init["comm"], _COMM_ID.search(init["rest"])
        slot = self._by_pointer.get((host, pid, pointer))
        if slot is None and init["state"] == "COMPLETE":  # before 2.18 this line is the first one with a name
            slot = self._by_thread.get((host, pid, tid))
            slot = slot if slot is not None and not self.comms[slot].pointer else None
        if slot is not None and init["state"] == "START" and self.comms[slot].is_complete:
            slot = None  # the address was used again
        if slot is None:
            slot = self._new(host, pid, source)
            if slot is None:
                return
        comm = self.comms[slot]
        comm.pointer, comm.rank, comm.nranks = pointer, int(init["rank"]), int(init["nranks"])
        comm.comm_id = told["id"] if told else comm.comm_id
        comm.is_complete |= init["state"] == "COMPLETE"
        self._by_pointer[host, pid, pointer] = slot
        self._by_process[host, pid] = slot
        if comm.is_complete:
            self._by_thread.pop((host, pid, tid), None)
        else:
            self._by_thread[host, pid, tid] = slot

    def _new(self, host: str, pid: int, source: tuple[int, int]) -> int | None:
        if len(self.comms) >= MOST_COMMS:
            self.comms_lost += 1
            return None
        self.comms.append(Comm(host, pid, "", None, _NONE, _NONE, is_complete=False, phase=0, source=source))
        return len(self.comms) - 1

    def _slot(self, line: re.Match[str], source: tuple[int, int]) -> int | None:
        """The communicator that a thread is connecting; after its initialisation the process's last one."""
        host, pid, tid = line["host"], int(line["pid"]), int(line["tid"])
        slot = self._by_thread.get((host, pid, tid))
        if slot is None:
            slot = self._by_process.get((host, pid))
        if slot is None:
            slot = self._new(host, pid, source)
            if slot is not None:
                self._by_thread[host, pid, tid] = slot
        return slot

    def _edge(self, edge: re.Match[str], source: tuple[int, int]) -> None:
        slot = self._slot(edge, source)
        if slot is None:
            return
        is_receive = edge["side"] == "receive"
        me, peer = (int(edge["b"]), int(edge["a"])) if is_receive else (int(edge["a"]), int(edge["b"]))
        via = edge["via"].strip()
        net = _NET.match(via)
        transport = self.word(net["transport"] if net else via)
        device = int(net["device"]) if net else _NONE
        is_gdr = int(net["gdr"] is not None) if net else _NONE
        shape = self.comms[slot].phase
        self._row(slot, me, int(edge["channel"]), shape, int(is_receive), peer, source, (transport, device, is_gdr))

    def _ring(self, ring: re.Match[str], source: tuple[int, int]) -> None:
        slot = self._slot(ring, source)
        if slot is not None:
            me, channel = int(ring["me"]), int(ring["channel"])
            self._row(slot, me, channel, 0, 1, int(ring["previous"]), source)
            self._row(slot, me, channel, 0, 0, int(ring["next"]), source)

    def _trees(self, trees: re.Match[str], source: tuple[int, int]) -> None:
        slot = self._slot(trees, source)
        if slot is None:
            return
        for tree in _TREE.finditer(trees["list"]):
            me, channel = int(tree["me"]), int(tree["channel"])
            for name, direction in (("a", 3), ("b", 3), ("c", 3), ("up", 2)):
                if (peer := int(tree[name])) >= 0 and me >= 0:
                    self._row(slot, me, channel, 1, direction, peer, source)

    def _row(
        self,
        slot: int,
        me: int,
        channel: int,
        shape: int,
        direction: int,
        peer: int,
        source: tuple[int, int],
        via: tuple[int, int, int] = (_NONE, _NONE, _NONE),
    ) -> None:
        if len(self.rows["slot"]) >= MOST_CHANNELS:
            self.channels_lost += 1
            return
        values = (slot, me, channel, shape, direction, peer, *via, *source)
        for name, value in zip(_CHANNEL, values, strict=True):
            self.rows[name].append(value)


_CHANNEL: Final = (
    "slot",
    "comm_rank",
    "channel",
    "shape",
    "direction",
    "peer",
    "transport",
    "device",
    "is_gdr",
    "file",
    "line",
)
