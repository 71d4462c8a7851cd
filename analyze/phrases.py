"""Numbers and places in words, the same in every sentence of a report."""

from __future__ import annotations

import pathlib
import signal
from collections.abc import Iterable, Sequence
from typing import Final

from roundk.tracer import words

NS_PER_S: Final = 1_000_000_000
NS_PER_MS: Final = 1_000_000


def fold(ranks: Iterable[int], *, limit: int = 12) -> str:
    """Ranks as `0, 2-7`; a list of more than `limit` pieces ends in how many are left out."""
    pieces: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if pieces and rank == pieces[-1][1] + 1:
            pieces[-1][1] = rank
        else:
            pieces.append([rank, rank])
    shown = [str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}-{b}" for a, b in pieces[:limit]]
    left = sum(b - a + 1 for a, b in pieces[limit:])
    return ", ".join(shown) + (f" and {left} more" if left else "")


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0, 2-7`, `no rank`."""
    distinct = sorted(set(ranks))
    if not distinct:
        return "no rank"
    return f"rank {distinct[0]}" if len(distinct) == 1 else f"ranks {fold(distinct)}"


def verb(ranks: Sequence[int], one: str, many: str) -> str:
    """The form of a verb that goes with so many ranks."""
    return one if len(set(ranks)) == 1 else many


def number_of(count: int, one: str, many: str = "") -> str:
    """How many of something: `1 round`, `3 rounds`, `16,384 ranks`.

    Args:
        count: How many.
        one: The noun for one of them.
        many: For several; '' where it ends in an s more.
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def capital(sentence: str) -> str:
    """The sentence with its first letter upper case and the rest as it is."""
    return sentence[:1].upper() + sentence[1:]


def duration(ns: float) -> str:
    """A span of time with two or three digits: `80 µs`, `35 ms`, `1.2 s`, `4 min 10 s`, `3 h 12 min`, `7 d 4 h`."""
    seconds = ns / NS_PER_S
    if 0 < abs(ns) < NS_PER_MS:
        return f"{max(round(abs(ns) / 1000), 1) * (1 if ns > 0 else -1)} µs"
    if abs(seconds) < 1:
        return f"{ns / NS_PER_MS:.0f} ms"
    if abs(seconds) < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if abs(seconds) <= 2 * 3600:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    if abs(seconds) < 48 * 3600:
        return f"{hours} h {minutes} min"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days} d {hours} h"


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; `signal 77` for one that has no name here."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def group_text(name: str, desc: str, *, destroying: bool = False) -> str:
    """What to call a process group in a sentence: `group tp`, or what the calls of a control group are about.

    Args:
        name: Its name.
        desc: Its description, which goes before the name where somebody gave one; torch's own filler is "undefined".
        destroying: Of a control group, whether this is about the end of groups.
    """
    if desc == words.CONTROL:
        making = "process group destruction" if destroying else "process group creation"
        return f"coalescing in group {name.rpartition('/')[0]}" if name else making
    told = desc if desc not in ("", "undefined") else name
    return f"group {told}" if told else "an unnamed group"


def port_text(device: str, port: int | None) -> str:
    """A port as NCCL spells it: `mlx5_0:1`; the name alone of a network device, which has no numbered ports."""
    return device if port is None else f"{device}:{port}"


def place(file: str, line: int) -> str:
    """A place in the code, short enough for a sentence: `train.py:42`."""
    return f"{pathlib.PurePath(file).name}:{line}"
