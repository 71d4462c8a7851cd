"""What RAS told, for a person at a terminal: one screen, 80 columns, the sentence that matters first."""

from __future__ import annotations

import textwrap
from typing import Final

from roundk.analyze.output.text import MAX_WIDTH, MIN_WIDTH, Paint, plain
from roundk.analyze.phrases import duration
from roundk.analyze.ras_polls import RIGHT, UNCLEAR, WRONG, Compared, Finding
from roundk.analyze.sources.ras.snapshot import Snapshot

MOST_SHOWN: Final = 8
_MOST_HASHES: Final = 4

_HEADS: Final = {
    WRONG: ("WRONG", "red", "Something is wrong."),
    UNCLEAR: ("UNCLEAR", "yellow", "It cannot be said whether something is wrong."),
    RIGHT: ("NOTHING WRONG SEEN", "green", "The job goes on, as far as RAS can tell."),
}
_LIMITS: Final = (
    "RAS counts what was launched, not what ended, of five types of collectives; not send/recv, all-to-all or CUDA"
    " graphs."
)
_NO_COUNTS: Final = (
    "This answer has no counts: the text form gives them only of communicators whose ranks differ. Whether the job"
    " moves is not told (NCCL 2.28.7 and later answer in JSON, which has them)."
)


def render(
    compared: Compared, last: Snapshot, apart_ns: int | None, *, where: str, width: int = 80, paint: Paint = plain
) -> str:
    """The report.

    Args:
        compared: What the answers tell.
        last: The later answer.
        apart_ns: Time between the answers; None: there is one.
        where: The address that was asked.
        width: Columns of the terminal.
        paint: How to colour a word.
    """
    width = min(max(width, MIN_WIDTH), MAX_WIDTH)
    name, colour, sentence = _HEADS[compared.code]
    worst = compared.findings[0].text if compared.findings and compared.code != RIGHT else None
    lines = [paint(name, colour), "", *textwrap.wrap(_sentence(worst) if worst else sentence, width)]
    shown = compared.findings[1 if worst else 0 :]
    if shown:
        lines.append("")
    for one in shown[:MOST_SHOWN]:
        lines += _finding(one, width)
    if len(shown) > MOST_SHOWN:
        lines.append(f"  and {len(shown) - MOST_SHOWN} more (--out DIR keeps the answers, roundk show reads them)")
    told = f"{_movement(compared, apart_ns)} {_LIMITS}" if last.counts_told() else _NO_COUNTS
    lines += ["", *textwrap.wrap(told, width), "", *textwrap.wrap(_asked(last, apart_ns, where), width)]
    return "\n".join(lines)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _finding(one: Finding, width: int) -> list[str]:
    return textwrap.wrap(one.text, width, initial_indent=f"  {one.label:<8}", subsequent_indent=" " * 10)


def _movement(compared: Compared, apart_ns: int | None) -> str:
    if apart_ns is None:
        return "There is one answer only, so nothing is known of what moves."
    span = f"Between the answers, {duration(apart_ns)} apart,"
    told = compared.moved + len(compared.unmoved)
    if not told:
        return f"{span} what moved is not known: no communicator has counts in both."
    if not compared.unmoved:
        text = f"{span} ranks launched more in {_comms(compared.moved)}"
    elif not compared.moved:
        text = f"{span} nobody launched more in {_comms(told)}"
    else:
        listed = ", ".join(compared.unmoved[:_MOST_HASHES]) + (", ..." if compared.unmoved[_MOST_HASHES:] else "")
        text = f"{span} ranks launched more in {compared.moved} of {_comms(told)}, nobody in {listed}"
    return text + (f"; {_comms(compared.untold)} without counts." if compared.untold else ".")


def _comms(number: int) -> str:
    return "1 communicator" if number == 1 else f"{number} communicators"


def _asked(last: Snapshot, apart_ns: int | None, where: str) -> str:
    ranks = len({m.place for comm in last.comms for m in comm.members.values() if m.place.is_whole})
    gpus = last.num_gpus or ranks
    parts = [
        f"Asked: {where}",
        f"NCCL {last.version or 'of unknown version'}",
        f"{'one answer' if apart_ns is None else 'two answers'} as {last.form}",
    ]
    if gpus:
        parts.append(f"{gpus} GPU processes")
    parts.append(_comms(len(last.comms)) + ("" if last.form == "JSON" else " told of"))
    if last.num_timeouts:
        parts.append(f"{last.num_timeouts} timeouts while gathering")
    return ", ".join(parts) + "."
