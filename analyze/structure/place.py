"""Has one rank left the loop that its peers are still in?"""

from __future__ import annotations

from roundk.analyze.case import Case, Site


def has_left(case: Case, ahead: int | None, behind: int | None) -> bool:
    """Whether a call from one site comes after the loop around the other site has been left.

    Judged in the innermost function that both calls were made from, by the same path down to it: `main`, where one
    call is in a helper that the loop calls. The stack of a site is that of its first call only, which is why this never
    makes a verdict surer than medium.

    Args:
        case: The case.
        ahead: Site of the call that may be further on.
        behind: Site of the call that its peers make.
    """
    one, other = case.site(ahead), case.site(behind)
    if one is None or other is None:
        return False
    places = _parting(one, other)
    if places is None:
        return False
    (line, loop), (other_line, other_loop) = places
    return other_loop is not None and loop != other_loop and line > other_line


def _parting(one: Site, other: Site) -> tuple[tuple[int, int | None], tuple[int, int | None]] | None:
    """Line and loop of both in the function where their paths part; None where that is no function of both."""
    for (frame, loop), (other_frame, other_loop) in zip(one.frames, other.frames, strict=False):
        if frame == other_frame:
            continue
        (file, line, function), (other_file, other_line, other_function) = _split(frame), _split(other_frame)
        same = (file, function) == (other_file, other_function)
        return ((line, loop), (other_line, other_loop)) if same else None
    if (one.file, one.function) == (other.file, other.function):
        return (one.line, one.loop), (other.line, other.loop)
    return None


def _split(frame: str) -> tuple[str, int, str]:
    place, _, function = frame.partition(" ")
    file, _, line = place.rpartition(":")
    return file, int(line) if line.isdigit() else 0, function
