"""The verdict contract: what `roundk analyze --format json` prints and what tests compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from roundk.analyze.finding import Evidence, Occurrence
from roundk.analyze.names import Cause, Confidence, Detail, Status, Structure
from roundk.analyze.trace import Unreadable

SCHEMA: Final = 1
"""Version of the JSON form."""

SLOW: Final = frozenset(
    {
        Structure.STRAGGLER,
        Structure.ROTATING_STRAGGLER,
        Structure.SLOW_TRANSFER,
        Structure.SHARED_SLOWDOWN,
        Structure.CONFIG_FINDING,
    }
)
UNSAID: Final = frozenset({Structure.METHODS_DISAGREE, Structure.INSUFFICIENT_EVIDENCE})

EXIT_FINE: Final = 0
EXIT_SAID: Final = 1
EXIT_UNSAID: Final = 3


@dataclass(frozen=True)
class GroupRef:
    """A process group as a verdict names it."""

    name: str
    desc: str
    size: int


@dataclass(frozen=True)
class Link:
    """One end of a link."""

    host: str
    device: str
    port: int | None


@dataclass(frozen=True)
class Victims:
    """Who is held up, directly or through others."""

    ranks: int
    groups: int
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """WHO, WHERE and WHY, and what carries it. The fields are those of the contract in the design document."""

    structure: Structure
    detail: Detail | None
    structure_confidence: Confidence
    cause: Cause | None
    cause_confidence: Confidence
    culprit_ranks: tuple[int, ...]
    culprit_hosts: tuple[str, ...]
    group: GroupRef | None
    seq: int | None
    op: str | None
    onset_ns: int | None
    waiting_ranks: tuple[int, ...]
    victims: Victims
    summary: str
    culprit_links: tuple[Link, ...] = ()
    occurrences: tuple[Occurrence, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    contradictions: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Coverage:
    """What the analysis had before it."""

    world_size: int | None
    ranks_seen: int
    ranks_missing: tuple[int, ...]
    ranks_empty: tuple[int, ...]
    truncated: tuple[int, ...]
    unreadable: tuple[Unreadable, ...]
    clock_error_ns: int | None
    sources: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """All verdicts on one job; the first is the root."""

    status: Status
    verdicts: tuple[Verdict, ...]
    coverage: Coverage
    notes: tuple[str, ...] = ()
    """What the sources had to say. `not_checked` repeats it; as it tells of no omission, pages tell it apart."""

    @property
    def exit_code(self) -> int:
        """0 healthy or in progress; 1 something is wrong and the verdict says what; 3 it cannot be said what."""
        root = self.verdicts[0]
        if self.status in (Status.HEALTHY, Status.IN_PROGRESS):
            return EXIT_FINE
        if root.structure in UNSAID:
            return EXIT_UNSAID
        # A round that nobody or not everybody left says where it hangs, but not what is wrong.
        vague = root.structure in (
            Structure.ALL_ENTERED_NONE_COMPLETED,
            Structure.PARTIAL_COMPLETION,
            Structure.ERROR_REPORTED,
            Structure.STUCK_IN_INIT,
            Structure.STUCK_OUTSIDE,
            Structure.RANK_NOT_ENTERED,
        )
        said = root.culprit_ranks or root.culprit_hosts or root.culprit_links or root.cause is Cause.HOST_STALL
        return EXIT_UNSAID if vague and not said else EXIT_SAID

    def to_json(self) -> dict[str, Any]:
        """The report in the JSON form of the contract."""
        return {
            "schema": SCHEMA,
            "status": self.status.value,
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
            "coverage": asdict(self.coverage),
        }


def status_of(structure: Structure, cause: Cause | None, *, ended: bool) -> Status:
    """The state of a run by its root and by whether the job is known to have ended."""
    if structure is Structure.HEALTHY:
        return Status.HEALTHY
    if structure is Structure.IN_PROGRESS:
        return Status.IN_PROGRESS
    # A setting that keeps communicators from being made is no slow job.
    if structure in SLOW and cause not in (Cause.DUPLICATE_GPU, Cause.NETWORK_CONFIG):
        return Status.SLOW
    if structure in UNSAID:
        return Status.UNDETERMINED
    return Status.FAILED if ended else Status.STUCK
