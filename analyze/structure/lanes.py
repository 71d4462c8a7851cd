"""Each rank's sequence of calls in a group, beside what most of its peers called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from roundk.analyze.calls import SIGNATURE
from roundk.analyze.case import Case
from roundk.analyze.structure.sides import unseen

MAX_RANKS: Final = 64
"""Ranks whose sequences are laid beside the reference; more than these differ only where code paths differ by rank."""


@dataclass(frozen=True)
class Lane:
    """One rank's calls in one group beside what most of its peers called.

    Attributes:
        first: The seq of index 0.
        own: The rank's calls, one number each, equal for equal calls from equal sites.
        peers: The reference.
        majority: More than half of the members made the reference call where the rank first differs.
    """

    rank: int
    first: int
    own: list[int]
    peers: list[int]
    majority: bool

    def differs_at(self) -> int | None:
        """Index of the first call that is not that of its peers; None: there is none as far as both go."""
        both = zip(self.own, self.peers, strict=False)
        return next((at for at, (own, peer) in enumerate(both) if own != peer), None)

    def tail(self) -> int | None:
        """Index from which on every call of the rank differs; None: its last one is like its peers'."""
        at = len(self.own)
        while at > 0 and (at > len(self.peers) or self.own[at - 1] != self.peers[at - 1]):
            at -= 1
        return at if at < len(self.own) else None


def lanes(case: Case, group: int) -> list[Lane]:
    """The ranks whose calls differ from the reference anywhere, the latest to begin first."""
    calls = case.calls.filter(pl.col("group") == group, ~pl.col("p2p")).select(
        "rank", "seq", call=pl.struct("site", *SIGNATURE).hash()
    )
    reference = (
        calls.group_by("seq", "call")
        .agg(count=pl.len(), rank=pl.col("rank").min())
        .sort("seq", "count", "rank", descending=[False, True, False])
        .group_by("seq", maintain_order=True)
        .agg(peers=pl.col("call").first(), most=pl.col("count").first(), all=pl.col("count").sum())
    )
    beside = calls.join(reference, on="seq").with_columns(differs=pl.col("call") != pl.col("peers"))
    differing = (
        beside.filter("differs")
        .group_by("rank")
        .agg(since=pl.col("seq").min())
        .sort("since", "rank", descending=[True, False])
    ).head(MAX_RANKS)
    found: list[Lane] = []
    for rank, since in differing.iter_rows():
        own = calls.filter(pl.col("rank") == rank).sort("seq")
        first = int(own["seq"][0])
        peers = reference.filter(pl.col("seq") >= first)
        at = reference.filter(pl.col("seq") == since).row(0, named=True)
        there = calls.filter(pl.col("seq") == since)["rank"].to_list()
        most = 2 * at["most"] > at["all"] + unseen(case, group, there)
        found.append(Lane(rank, first, own["call"].to_list(), peers["peers"].to_list(), most))
    return found
