"""Answers of RAS as tables: groups, progress, ranks and facts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from roundk.analyze.phrases import fold
from roundk.analyze.sources.ops import op_name
from roundk.analyze.sources.ras import snapshot as ras
from roundk.analyze.sources.ras.snapshot import Comm, Event, Lag, Member, Place, Snapshot
from roundk.analyze.sources.rows import from_dicts, table, words_of
from roundk.tracer import schema

MOST_LISTED: Final = 100
"""Ranks that a fact lists; the table of progress has them all."""

_MOST_MEMBERS: Final = 1 << 22
"""Members of all groups together: a file of garbage must not fill the memory."""

_KINDS: Final = {ras.DEAD: "ras_dead", ras.UNRESPONSIVE: "ras_unresponsive", ras.NOT_MEMBER: "ras_not_member"}
_SAID: Final = {
    ras.DEAD: "is considered dead: RAS cannot reach it",
    ras.UNRESPONSIVE: "does not answer RAS",
    ras.NOT_MEMBER: "answers RAS and does not have a communicator that others have",
}


class Tables:
    """The tables of a Part, built once.

    Attributes:
        groups: `schema.GROUPS`, of the communicators whose members are all known as global ranks.
        progress: `schema.PROGRESS`; where a communicator's counts do not change over several answers, those of the
            first and the last.
        ranks: `schema.RANKS`.
        facts: `schema.FACTS`.
        world_size: Size of the communicator that spans the job.
        notes: What could not be said in tables.
    """

    def __init__(self, snapshots: Sequence[Snapshot], events: Sequence[Event]) -> None:
        self._snapshots = snapshots
        self._places, self._whole, note = ras.world(snapshots)
        self.notes = [f"RAS: {note}"] if note else []
        self._keys: dict[tuple[str, str], int] = {}
        self.world_size = max(self._whole.values(), default=None)
        self.groups = self._groups()
        self.progress = self._progress()
        self.ranks = self._ranks()
        self.facts = self._facts(events)

    def _global(self, comm: Comm, member: Member) -> int | None:
        if (comm.hash, comm.key) in self._whole:
            return member.rank
        return self._places.get(member.place)

    def _groups(self) -> pl.DataFrame:
        rows: list[dict[str, Any]] = []
        budget = _MOST_MEMBERS
        for snapshot in self._snapshots:
            for comm in snapshot.comms:
                name = (comm.hash, comm.key)
                if name in self._keys or comm.size is None or comm.size > budget:
                    continue
                ranks = self._member_ranks(comm, comm.size)
                if ranks is None:
                    continue
                budget -= comm.size
                self._keys[name] = len(rows)
                rows.append({"group": len(rows), "name": comm.hash, "desc": "", "backend": "nccl", "ranks": ranks})
        unknown = {
            (comm.hash, comm.key)
            for snapshot in self._snapshots
            for comm in snapshot.comms
            if comm.ops and (comm.hash, comm.key) not in self._keys
        }
        if unknown:
            self.notes.append(
                f"RAS: the members of {len(unknown)} communicators are not all known as global ranks;"
                " their counts are in the facts only"
            )
        return from_dicts(schema.GROUPS, rows)

    def _member_ranks(self, comm: Comm, size: int) -> list[int] | None:
        if (comm.hash, comm.key) in self._whole:
            return list(range(size))
        if len(comm.members) < size:
            return None
        ranks = [self._places.get(comm.members[number].place) for number in range(size)]
        known = [rank for rank in ranks if rank is not None]
        return known if len(known) == size else None

    def _progress(self) -> pl.DataFrame:
        data: dict[str, list[Any]] = {name: [] for name in ("rank", "group", "time_ns", "enqueued", "op", "source")}
        for snapshot, comm in self._telling():
            group = self._keys.get((comm.hash, comm.key))
            if group is None:
                continue
            counted = [op for op in comm.ops if any(comm.spread(op))]
            for member in comm.members.values():
                rank = self._global(comm, member)
                for op in counted if rank is not None else ():
                    if op not in member.counts:
                        continue
                    data["rank"].append(rank)
                    data["group"].append(group)
                    data["time_ns"].append(snapshot.time_ns)
                    data["enqueued"].append(member.counts[op] or None)
                    data["op"].append(op_name(op))
                    data["source"].append(snapshot.source)
        number = len(data["rank"])
        full = table(schema.PROGRESS, {**data, "is_start_told": [False] * number, "counts": ["collectives"] * number})
        return full.sort("rank", "group", maintain_order=True)

    def _telling(self) -> list[tuple[Snapshot, Comm]]:
        """The communicators of each answer, without those whose counts are the same before and after."""
        history: dict[tuple[str, str], list[tuple[Snapshot, Comm]]] = defaultdict(list)
        for snapshot in self._snapshots:
            for comm in snapshot.comms:
                history[comm.hash, comm.key].append((snapshot, comm))
        kept: list[tuple[Snapshot, Comm]] = []
        for own in history.values():
            last = len(own) - 1
            kept += [
                told
                for number, told in enumerate(own)
                if number in (0, last)
                or not (_level(own[number - 1][1], told[1]) and _level(told[1], own[number + 1][1]))
            ]
        return kept

    def _ranks(self) -> pl.DataFrame:
        rows: dict[int, dict[str, Any]] = {}
        for snapshot in self._snapshots:
            for comm in snapshot.comms:
                for member in comm.members.values():
                    rank = self._global(comm, member)
                    if rank is None:
                        continue
                    row = rows.setdefault(rank, {"rank": rank, "calls": 0, "calls_lost": 0, "data": "missing"})
                    row["host"] = member.place.host or row.get("host")
                    row["pid"] = row.get("pid") if member.place.pid is None else member.place.pid
                    if member.state in {ras.HERE, ras.NOT_MEMBER}:
                        row["data"] = "present"
                        row["last_alive_ns"] = snapshot.time_ns or row.get("last_alive_ns")
                        row["source"] = snapshot.source
        return from_dicts(schema.RANKS, [rows[rank] for rank in sorted(rows)])

    def _facts(self, events: Sequence[Event]) -> pl.DataFrame:
        rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        for snapshot in self._snapshots:
            for comm in snapshot.comms:
                for lag in comm.lags():
                    rows[snapshot.source, comm.hash, comm.key, lag.op] = self._mismatch(snapshot, comm, lag)
                self._of_members(snapshot, comm, rows)
            self._of_processes(snapshot, rows)
        for number, event in enumerate(events):
            rows["event", number] = self._event(event)
        facts = from_dicts(schema.FACTS, list(rows.values()))
        return facts.sort("time_ns", nulls_last=True, maintain_order=True)

    def _mismatch(self, snapshot: Snapshot, comm: Comm, lag: Lag) -> dict[str, Any]:
        ranks = [self._global(comm, comm.members[number]) for number in lag.behind]
        known = sorted(rank for rank in ranks if rank is not None)
        are_global = len(known) == len(ranks)
        behind = known if are_global else sorted(lag.behind)
        names = f": {'ranks' if are_global else 'communicator ranks'} {fold(behind)}" if behind else ""
        text = (
            f"communicator {comm.hash}: {lag.num_behind} of {lag.num_ranks} ranks have launched fewer {lag.op}"
            f" ({lag.low} against {lag.high}){names}"
        )
        fields = {
            "comm": comm.hash,
            "size": comm.size,
            "op": None if lag.op == ras.ANY_OP else op_name(lag.op),
            "low": lag.low,
            "high": lag.high,
            "num_behind": lag.num_behind,
            "num_ranks": lag.num_ranks,
            "behind": behind[:MOST_LISTED],
            "are_global": are_global,
        }
        rank = behind[0] if are_global and len(behind) == 1 else None
        host = comm.members[lag.behind[0]].place.host if len(lag.behind) == 1 else None
        return _fact(snapshot, "ras_mismatch", text, fields, host, rank)

    def _of_members(self, snapshot: Snapshot, comm: Comm, rows: dict[tuple[Any, ...], dict[str, Any]]) -> None:
        statuses = {member.status for member in comm.members.values()} - {None}
        for member in comm.members.values():
            rank = self._global(comm, member)
            who = (f"rank {rank}" if rank is not None else f"communicator rank {member.rank}") + f" ({member.place})"
            base = {"comm": comm.hash, "comm_rank": member.rank, **_of_place(member.place)}
            if member.error is not None:
                text = f"{who} reports in communicator {comm.hash}: {member.error}"
                fact = _fact(snapshot, "ras_error", text, {**base, "error": member.error}, member.place.host, rank)
                rows.setdefault(("error", comm.hash, comm.key, member.rank, member.error), fact)
            if member.status == "ABORT" or (member.status in {"FINALIZE", "INIT"} and len(statuses) > 1):
                text = f"{who} is in status {member.status} in communicator {comm.hash}"
                fields = {**base, "status": member.status}
                fact = _fact(snapshot, "ras_status", text, fields, member.place.host, rank)
                rows.setdefault(("status", comm.hash, comm.key, member.rank, member.status), fact)
            if member.state != ras.HERE:
                whom = rank if rank is not None else (comm.hash, member.rank)
                # A process is gone once, whatever number of communicators miss it.
                about = comm.hash if member.state == ras.NOT_MEMBER else ""
                key = (member.state, member.place if member.place.pid is not None else whom, about)
                fact = _fact(
                    snapshot, _KINDS[member.state], f"{who} {_SAID[member.state]}", base, member.place.host, rank
                )
                known = rows.setdefault(key, fact)
                if known["rank"] is None and rank is not None:
                    rows[key] = {**fact, "time_ns": known["time_ns"], "source": known["source"]}

    def _of_processes(self, snapshot: Snapshot, rows: dict[tuple[Any, ...], dict[str, Any]]) -> None:
        named: dict[str, int] = defaultdict(int)
        known = {(key[0], key[1].host, key[1].pid) for key in rows if isinstance(key[1], Place)}
        for place, state in snapshot.processes:
            named[state] += 1
            fact = _fact(
                snapshot,
                _KINDS[state],
                f"{place} {_SAID[state]}",
                _of_place(place),
                place.host,
                self._places.get(place),
            )
            # The text form names a process here and its rank under a communicator.
            if (state, place.host, place.pid) not in known:
                rows[state, place] = fact
        for state, number in ((ras.DEAD, snapshot.num_dead), (ras.UNRESPONSIVE, snapshot.num_missing)):
            if number > named[state]:
                text = f"{number} processes of the job: each {_SAID[state]}; {named[state]} are named"
                fact = _fact(snapshot, _KINDS[state], text, {"processes": number}, None, None)
                rows.setdefault((state, "number", number), fact)
        if snapshot.num_timeouts:
            text = f"RAS ran into {snapshot.num_timeouts} timeouts while it gathered its data"
            fact = _fact(snapshot, "ras_timeout", text, {"timeouts": snapshot.num_timeouts}, None, None)
            rows["timeout", snapshot.source] = fact

    def _event(self, event: Event) -> dict[str, Any]:
        text = f"{event.name}: {event.details or event.place}"
        return {
            "time_ns": event.time_ns,
            "host": event.place.host,
            "rank": self._places.get(event.place),
            "kind": "ras_event",
            "text": text,
            "fields": words_of({"event": event.name, "details": event.details, **_of_place(event.place)}),
            "source": event.source,
        }


def _level(one: Comm, other: Comm) -> bool:
    """Whether all counts of the two are the same."""
    return one.members.keys() == other.members.keys() and all(
        member.counts == other.members[rank].counts for rank, member in one.members.items()
    )


def _of_place(place: Place) -> dict[str, Any]:
    return {"pid": place.pid, "gpu": place.gpu}


def _fact(
    snapshot: Snapshot, kind: str, text: str, fields: dict[str, Any], host: str | None, rank: int | None
) -> dict[str, Any]:
    return {
        "time_ns": snapshot.time_ns,
        "host": host,
        "rank": rank,
        "kind": kind,
        "text": text,
        "fields": words_of(fields),
        "source": snapshot.source,
    }
