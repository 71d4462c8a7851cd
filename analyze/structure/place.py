"""Has one rank left the loop that its peers are still in?"""

from __future__ import annotations

from roundk.analyze.case import Case


def has_left(case: Case, ahead: int | None, behind: int | None) -> bool:
    """Whether a call from one site comes after the loop around the other site has been left.

    Only sites in one function can be compared: a function may be called from several places, and the stack of a site is
    that of its first call.

    Args:
        case: The case.
        ahead: Site of the call that may be further on.
        behind: Site of the call that its peers make.
    """
    one, other = case.site(ahead), case.site(behind)
    if one is None or other is None or (one.file, one.function) != (other.file, other.function):
        return False
    return other.loop is not None and one.loop != other.loop and one.line > other.line
