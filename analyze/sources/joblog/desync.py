r"""torch's reports that compare ranks: the desync report and the fingerprints of `TORCH_DISTRIBUTED_DEBUG=DETAIL`.

The desync report (TORCH_NCCL_DESYNC_DEBUG, torch 1.13 on, TraceUtils.h) is one message of many lines, `\n\t` between
them, so a launcher's prefix may stand in front of each. It compares the latest work of each rank only and throws the
groups together: its seq is evidence, no verdict.

The fingerprint (ProcessGroupWrapper.cpp, 1.9 on) reads `Op type: ALLREDUCEvs BROADCAST`, without a space; what stands
inside `TensorDeviceTypes=` has brackets of its own.

NCCLX's watchdog prints `Collective (OpCount=.., OpType=.., ...) for Comm .. raised watchdog timeout`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from roundk.analyze.sources import ops
from roundk.analyze.sources.joblog.events import Event, number, present, rank_number, ranks, short

LITERALS: Final = ("OpType=", "lagging ranks", " collective #", "Timeout at collective:", "Snapshot of ranks' latest")
SNAPSHOT: Final = "Snapshot of ranks' latest states"

_LISTED: Final = r"\[(?P<ranks>[\d, \-]{1,8000})\]"
_NEVER: Final = re.compile(rf"ranks {_LISTED} are the lagging ranks that caused this timeout")
_LAGGING: Final = re.compile(
    rf"{_LISTED} (?P<what>joined but didn't finish|finished) collective #(?P<seq>\d+)"
    r"(?:, but didn't join collective #(?P<next>\d+))?"
)
_AT: Final = re.compile(r"\[(?P<rank>\d{1,8})\] Timeout at collective: (?P<op>\w+), #(?P<seq>\d+)")
_STATE: Final = re.compile(r"#(?P<seq>\d+) (?P<state>started|finished) ranks:")
_MEMBERS: Final = re.compile(rf"{_LISTED} (?P<state>started|finished) (?P<op>\w+)")
_PRINT: Final = (
    r"CollectiveFingerPrint\((?:SequenceNumber=(?P<{0}seq>\d+), )?OpType=(?P<{0}op>\w+)"
    r"(?:, TensorShape=\[(?P<{0}shape>[^\]]{{0,500}})\])?(?:, TensorDtypes=(?P<{0}dtype>\w+))?"
)
_MISMATCH: Final = re.compile(
    r"Rank (?P<rank>\d{1,8}) is running (?:inconsistent )?collective: "
    + _PRINT.format("")
    + r"(?:.{0,2000}?but Rank (?P<other>\d{1,8}) is running collective: "
    + _PRINT.format("other_")
    + r")?"
)
_DIFFERENCE: Final = re.compile(
    r"(?P<what>Op type|Sequence number|Tensor[ \w]*?): ?(?P<a>[^:]{1,200}?) ?vs (?P<b>[^\t:]{1,200}?)(?=\s{2,}|\t|$)"
)
_NCCLX: Final = re.compile(
    r"Collective \((?:OpCount=(?P<count>\w+))?[, ]*OpType=(?P<op>\w+)(?P<rest>[^)]{0,500})\) for Comm "
    r"(?P<comm>.{1,200}?) raised "
    r"(?P<what>AsyncError|watchdog timeout)"
)
_NCCLX_STATE: Final = re.compile(r"CurrentState=(?P<state>Finished|Kernel Running|Kernel Not Started|Not Scheduled)")


def parse(text: str) -> Iterator[Event]:
    """What a line of a report says."""
    if (at := _AT.search(text)) is not None:
        fields = present(seq=number(at["seq"]), op=ops.op_name(at["op"]), source_op=at["op"])
        yield Event(
            "desync_timeout",
            f"desync report: timeout at {at['op']} #{at['seq']}",
            fields,
            group_rank=rank_number(at["rank"]),
        )
    if (never := _NEVER.search(text)) is not None:
        yield _lagging("never_joined", ranks(never["ranks"]), None)
    elif (lagging := _LAGGING.search(text)) is not None:
        did = "not_finished" if lagging["what"].startswith("joined") else "not_joined"
        seq = lagging["next"] if did == "not_joined" else lagging["seq"]
        yield _lagging(did, ranks(lagging["ranks"]), number(seq))
    if "DESYNC_DEBUG report" in text and "Failed to retrieve" in text:
        yield Event("desync_missing", "the desync report could not be made")
    if (pair := _MISMATCH.search(text)) is not None:
        yield _mismatch(pair, text)
    if (ncclx := _NCCLX.search(text)) is not None:
        yield _ncclx(ncclx)


class Snapshot:
    """Reads on behind `Snapshot of ranks' latest states`: two levels of lines, the seq above its ranks."""

    is_bare = True

    def __init__(self) -> None:
        self._seq: int | None = None

    def feed(self, text: str) -> Iterator[Event] | None:
        """What the next line of this process says; None where the snapshot has ended."""
        if (state := _STATE.search(text)) is not None:
            self._seq = number(state["seq"])
            return iter(())
        if self._seq is None or (members := _MEMBERS.search(text)) is None:
            return None
        listed = ranks(members["ranks"])
        fields = present(
            seq=self._seq, state=members["state"], op=ops.op_name(members["op"]), source_op=members["op"], ranks=listed
        )
        what = f"desync report: {len(listed)} rank(s) {members['state']} {members['op']} #{self._seq}"
        return iter((Event("desync_state", what, fields, is_about_other=True),))


def _lagging(did: str, listed: list[int], seq: int | None) -> Event:
    what = {"never_joined": "joined no collective", "not_finished": "did not finish", "not_joined": "did not join"}[did]
    shown = ", ".join(map(str, listed[:16])) + (", ..." if len(listed) > 16 else "")
    fields = present(did=did, ranks=listed, seq=seq)
    return Event(
        "desync_lagging",
        f"desync report: ranks {shown} {what}{'' if seq is None else f' #{seq}'}",
        fields,
        is_about_other=True,
    )


def _mismatch(pair: re.Match[str], text: str) -> Event:
    def one(prefix: str, rank: str) -> dict[str, object]:
        return present(
            rank=rank_number(pair[rank]),
            seq=number(pair[f"{prefix}seq"]),
            op=ops.op_name(pair[f"{prefix}op"]),
            source_op=pair[f"{prefix}op"],
            shape=pair[f"{prefix}shape"],
            dtype=pair[f"{prefix}dtype"],
        )

    sides = [one("", "rank")] + ([one("other_", "other")] if pair["other"] is not None else [])
    tail = text.partition("differ in the following aspects:")[2]
    differences = [
        {"what": match["what"].strip().lower(), "values": [match["a"].strip(), match["b"].strip()]}
        for match in _DIFFERENCE.finditer(tail)
    ][:8]
    shown = " against ".join(f"group rank {side.get('rank')} {side['source_op']}" for side in sides)
    fields: dict[str, object] = {"sides": sides, "differences": differences}
    return Event(
        "fingerprint_mismatch", f"ranks make different calls: {shown}", fields, group_rank=rank_number(pair["rank"])
    )


def _ncclx(line: re.Match[str]) -> Event:
    state = _NCCLX_STATE.search(line["rest"])
    what = "async_error" if line["what"] == "AsyncError" else "timeout"
    fields = present(
        op_count=line["count"],
        op=ops.op_name(line["op"]),
        source_op=line["op"],
        comm=short(line["comm"]),
        state=state["state"] if state else None,
        what=what,
    )
    return Event(f"ncclx_{what}", f"{line['op']} of {short(line['comm'])} raised {line['what']}", fields)
