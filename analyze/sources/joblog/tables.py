"""The tables of a job's logs: facts, ranks, groups, progress, and the calls that the watchdog names."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl

from roundk.analyze import echoes
from roundk.analyze.sources import rows
from roundk.analyze.sources.inputs import Input
from roundk.analyze.sources.joblog import attempts
from roundk.analyze.sources.joblog.book import HOST_WIDE, Book, Fact
from roundk.analyze.sources.joblog.events import MOST_TEXT, Group, present
from roundk.analyze.sources.joblog.resolve import Ranks
from roundk.tracer import schema, words

UNNAMED: Final = Group("", "")
"""The group of logs that name none: torch before 2.3."""
_STATUS: Final = ("watchdog_status", "dump_signal")
_ENDS: Final = frozenset({"elastic_failed", "mpirun_exit", "slurm_task_exit"})
_MOST_MEMBERS: Final = 1 << 17
"""Larger groups are no groups but a damaged number."""
LEAST_TO_TELL_A_SPACING: Final = 3
"""Two members are evenly spaced whatever they are."""
_P2P: Final = words.P2P | {"coalesced"}


class Tables:
    """Builds the tables.

    Attributes:
        groups: Key of each process group that a line names.
        notes: What the reader has to know of them.
        are_members_told: Who the members of all groups are is known.
    """

    def __init__(self, book: Book, ranks: Ranks, inputs: Sequence[Input]) -> None:
        """Prepare.

        Args:
            book: What was found.
            ranks: Whose it is.
            inputs: The logs.
        """
        self._book, self._ranks, self._inputs = book, ranks, inputs
        self.notes: list[str] = []
        self.are_members_told = True
        self.groups: dict[Group, int] = {}
        self._members: dict[Group, dict[int, dict[int, None]]] = defaultdict(dict)
        self._seen: set[int] = set()
        every = [(fact, ranks.of(fact)) for fact in book.facts()]
        self._attempt = attempts.last(every)
        self._facts = every
        if self._attempt is not None:
            self.notes.append(self._attempt.note)
            self._facts = [(fact, rank) for fact, rank in every if self._attempt.kept(fact)]
        for fact, rank in self._facts:
            self._note(fact, rank)
        for fact, rank in every if self._attempt is not None else ():
            self._recall(fact, rank)
        self._seen |= set(ranks.of_process.values())
        self._status = {
            (rank, fact.event.fields.get("work")): fact.event.group
            for fact, rank in self._facts
            if fact.event.kind == "watchdog_status" and fact.event.group is not None
        }
        self._addresses = self._hosts_by_address()
        self._hosts: dict[int | None, str] = {rank: host for (host, _), rank in ranks.of_process.items()}

    def facts(self) -> pl.DataFrame:
        """`schema.FACTS`."""
        order = sorted(self._facts, key=_when)
        return rows.from_dicts(schema.FACTS, [self._fact(fact, rank) for fact, rank in order])

    def progress(self) -> pl.DataFrame:
        """`schema.PROGRESS`."""
        p2p = {group for group, call in self._calls_by_group if call["op"] in _P2P}
        found: dict[tuple[object, ...], dict[str, Any]] = {}
        for fact, rank in self._facts:
            group, fields = fact.event.group, fact.event.fields
            if fact.event.kind not in _STATUS or rank is None or group is None:
                continue
            completed: Any = fields.get("completed")
            work = fields.get("work")
            if fields.get("is_completed_told") is False:
                # The watchdog goes through its list in order: what stands before the work it fails has completed.
                if not isinstance(work, int) or work < 1:
                    continue
                completed = work - 1
            row = {
                "rank": rank,
                "group": self.groups[group],
                "time_ns": fact.time_ns,
                "enqueued": fields.get("enqueued"),
                "started": fields.get("started"),
                "completed": completed,
                "is_start_told": fields.get("is_start_told") is True,
                "counts": "calls" if group in p2p else "collectives",
                "source": self._source(fact),
            }
            found.setdefault((rank, group, row["enqueued"], row["started"], completed), row)
        return rows.from_dicts(schema.PROGRESS, sorted(found.values(), key=lambda row: (row["rank"], row["group"])))

    def group_rows(self) -> list[dict[str, Any]]:
        """Rows of `schema.GROUPS` of the groups that lines name."""
        return [
            {"group": key, "name": group.name, "desc": group.desc, "backend": "nccl", "ranks": self._ranks_of(group)}
            for group, key in self.groups.items()
        ]

    def calls(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Rows of `schema.CALLS` of the collectives that timed out or failed, and of `schema.SITES` of their stacks."""
        sites: dict[tuple[str, int, str], dict[str, Any]] = {}
        calls = [self._with_site(call, sites) for _, call in self._calls_by_group]
        return calls, list(sites.values())

    def ranks(self, called: Mapping[int, int]) -> pl.DataFrame:
        """`schema.RANKS` of the ranks that lines name.

        Args:
            called: Number of calls of the ranks with calls or counters; of others there is only that they are.
        """
        known: dict[int, dict[str, Any]] = {}
        for rank in sorted(self._seen | set(called)):
            data = "present" if rank in called else "missing"
            known[rank] = {
                "rank": rank,
                "data": data,
                "calls": called.get(rank, 0),
                "calls_lost": 0,
                "last_alive_ns": self._alive_ns(rank),
            }
        for (host, pid), of in self._ranks.of_process.items():
            known[of] |= {"host": host or None, "pid": pid}
        for fact, of_fact in self._facts:
            for one in [of_fact] if of_fact is not None else self._ranks.of_tasks(fact.event.fields.get("tasks")):
                if one in known:
                    self._end_of(known[one], fact)
        return rows.from_dicts(schema.RANKS, list(known.values()))

    def _alive_ns(self, rank: int) -> int | None:
        latest = self._book.alive.get(rank) or None
        is_old = latest is not None and self._attempt is not None and latest < self._attempt.begin_ns
        return None if is_old else latest

    def _note(self, fact: Fact, rank: int | None) -> None:
        group = fact.event.group
        if rank is not None:
            self._seen.add(rank)
        if group is None:
            return
        self.groups.setdefault(group, len(self.groups))
        if rank is not None and fact.event.group_rank is not None:
            self._members[group].setdefault(fact.event.group_rank, {}).setdefault(rank)

    def _recall(self, fact: Fact, rank: int | None) -> None:
        """Who is in a group an earlier attempt tells too, where the last one leaves it open."""
        group, of_group = fact.event.group, fact.event.group_rank
        if rank is None:
            return
        self._seen.add(rank)
        if group in self.groups and of_group is not None and group is not None:
            known = self._members[group]
            if of_group not in known and all(rank not in ranks for ranks in known.values()):
                known[of_group] = {rank: None}

    def _ranks_of(self, group: Group) -> list[int]:
        if group.is_default or group == UNNAMED:
            size = max(self._ranks.world_size or 0, max(self._seen, default=-1) + 1)
            return list(range(size)) if size <= _MOST_MEMBERS else sorted(self._seen)
        members = self._members[group]
        name = f"group {group.name}{f' ({group.desc})' if group.desc else ''}"
        if members and len(members) <= max(members):
            self._fill(name, members)
        twice = [k for k, ranks in members.items() if len(ranks) > 1]
        if twice:
            self.notes.append(
                f"{name}: several ranks are group rank {_short(sorted(twice))}: the name means several groups"
            )
        return list(dict.fromkeys(rank for k in sorted(members) for rank in members[k]))

    def _fill(self, name: str, members: dict[int, dict[int, None]]) -> None:
        """Who the members are that no line names: of a mesh the ranks of a group are evenly spaced."""
        holes = [k for k in range(max(members)) if k not in members]
        spaced = evenly_spaced({k: next(iter(ranks)) for k, ranks in members.items()})
        filled = {} if spaced is None else {k: spaced[0] + k * spaced[1] for k in holes}
        if filled and all(rank in self._seen or rank < max(self._seen) for rank in filled.values()):
            whom = ", ".join(map(str, list(filled.values())[:8])) + (", ..." if len(filled) > 8 else "")
            self.notes.append(f"of {name} no line names rank {whom}: taken for a member by the spacing of the others")
            members.update({k: {rank: None} for k, rank in filled.items()})
            return
        missing, shown = len(holes), _short(sorted(members))
        who = "the other one below them is" if missing == 1 else f"the other {missing} below them are"
        self.notes.append(f"of {name} the logs show group ranks {shown}, not who {who}")
        self.are_members_told = False

    @functools.cached_property
    def _calls_by_group(self) -> list[tuple[Group, dict[str, Any]]]:
        """The collectives that the watchdog names, once per rank, in the group of the status line with their seq."""
        found: dict[tuple[object, ...], tuple[Group, dict[str, Any]]] = {}
        work = [
            (fact, rank)
            for fact, rank in self._facts
            if fact.event.kind in {"collective_timeout", "async_error"}
            and rank is not None
            and "seq" in fact.event.fields
        ]
        unnamed = UNNAMED if not self._status and self._is_one_group(work) else None
        for fact, rank in work:
            seq = fact.event.fields["seq"]
            group = fact.event.group or self._status.get((rank, seq)) or unnamed
            if group is None:
                continue
            self.groups.setdefault(group, len(self.groups))
            found.setdefault((rank, group, seq), (group, self._call(fact, rank, self.groups[group])))
        return list(found.values())

    @staticmethod
    def _is_one_group(work: Sequence[tuple[Fact, int | None]]) -> bool:
        """Whether logs that name no group can be of one: no rank fails two different collectives."""
        seqs: dict[int | None, set[object]] = defaultdict(set)
        for fact, rank in work:
            seqs[rank].add(fact.event.fields["seq"])
        return all(len(found) == 1 for found in seqs.values())

    @staticmethod
    def _call(fact: Fact, rank: int | None, group: int) -> dict[str, Any]:
        fields = fact.event.fields
        shape = fields.get("shape")
        return {
            "rank": rank,
            "group": group,
            "seq": fields["seq"],
            "op": fields["op"],
            "source_op": fields["source_op"],
            "numel": fields.get("numel_in"),
            "shapes": str(shape) if shape is not None else None,
            "enter_ns": attempts.onset_ns(fact),
            "is_timed": False,
            "outcome": "failed" if fact.event.kind == "async_error" else "open",
        }

    def _with_site(self, call: dict[str, Any], sites: dict[tuple[str, int, str], dict[str, Any]]) -> dict[str, Any]:
        stack = self._stacks.get(call["rank"])
        if stack is None:
            return call
        file, _, line = str(stack["site"]).rpartition(":")
        place = (file, int(line), str(stack["function"]))
        site = sites.setdefault(
            place,
            {"site": len(sites), "file": file, "line": int(line), "function": place[2], "stack": stack["frames"]},
        )
        return {**call, "site": site["site"]}

    @functools.cached_property
    def _stacks(self) -> dict[int, dict[str, object]]:
        """The stack that a rank's log shows, where it shows one: with two there is no telling whose is whose."""
        found: dict[int, list[dict[str, object]]] = defaultdict(list)
        for fact, rank in self._facts:
            if fact.event.kind == "collective_stack" and rank is not None:
                found[rank].append(fact.event.fields)
        return {rank: stacks[0] for rank, stacks in found.items() if len(stacks) == 1}

    def _end_of(self, row: dict[str, Any], fact: Fact) -> None:
        event, origin, fields = fact.event, fact.origin, fact.event.fields
        if origin.host is not None and not event.is_about_other:
            row.setdefault("host", origin.host)
        is_agents = event.kind in {"elastic_failure", "elastic_failed"}
        is_first = "exit_source" not in row
        if event.kind == "elastic_failure" or (is_first and event.kind in _ENDS):
            row |= {
                "host": event.host or row.get("host"),
                "pid": event.pid or row.get("pid"),
                "exit_code": fields.get("exit_code"),
                "exit_signal": fields.get("exit_signal"),
                "exit_ns": fact.time_ns,
                "exit_source": "agent" if is_agents else "launcher",
            }
        elif event.kind == "exception" and _tells_more(row, fields):
            raised = _where_it_began(fields)
            row |= {
                "is_uncaught": fields.get("is_uncaught"),
                "exception_type": raised["type"],
                "exception_message": str(raised["message"])[:MOST_TEXT],
                "exception_site": raised.get("site"),
                "exception_ns": fact.time_ns,
                "source": self._source(fact),
            }

    def _fact(self, fact: Fact, rank: int | None) -> dict[str, Any]:
        event, origin = fact.event, fact.origin
        fields: dict[str, Any] = dict(event.fields)
        group = event.group or self._status.get((rank, fields.get("seq")))
        if group is not None:
            fields |= {"group": group.name, "group_desc": group.desc}
        if event.group_rank is not None:
            fields["group_rank"] = event.group_rank
        if rank is None and origin.local is not None:
            fields["local_rank"] = origin.local
        peer = fields.get("peer")
        peer_host = self._addresses.get(peer, None if _is_address(peer) else peer) if isinstance(peer, str) else None
        fields |= present(onset_ns=attempts.onset_ns(fact), peer_host=peer_host)
        if origin.pid is not None and not event.is_about_other and event.kind not in HOST_WIDE:
            fields.setdefault("pid", origin.pid)
        if fact.count > 1:
            fields |= {"count": fact.count} | ({"last_ns": fact.last_ns} if fact.last_ns is not None else {})
        if fact.time_ns is None and fact.after_ns is not None:
            fields["after_ns"] = fact.after_ns
        return {
            "time_ns": fact.time_ns,
            "host": None if event.kind == "nccl_version" else event.host or origin.host or self._hosts.get(rank),
            "rank": None if event.kind in HOST_WIDE else rank,
            "kind": event.kind,
            "text": event.text[:MOST_TEXT],
            "fields": rows.words_of(fields),
            "source": self._source(fact),
        }

    def _hosts_by_address(self) -> dict[str, str]:
        """Hosts by the addresses that NCCL's INFO lines name: completion errors name peers by those."""
        found: dict[str, str] = {}
        for fact in self._book.facts("nccl_address"):
            if fact.origin.host is not None:
                found.setdefault(str(fact.event.fields["address"]), fact.origin.host)
        return found

    def _source(self, fact: Fact) -> str:
        return f"{self._inputs[fact.origin.file].name}:{fact.line}"


def _where_it_began(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of exceptions that followed one another the first where a peer's end is among them, else the one at the top."""
    chain = [*fields.get("before", ()), fields]
    return chain[0] if any(echoes.is_echo(one["type"], one["message"]) for one in chain) else fields


def _tells_more(row: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    """Whether an exception says more of a rank's end than the one that is known: an echo never does of its kind."""
    if row.get("exception_type") is None:
        return True
    if bool(fields.get("is_uncaught")) is not bool(row.get("is_uncaught")):
        return bool(fields.get("is_uncaught"))  # the other one was caught, and only logged
    raised = _where_it_began(fields)
    was = echoes.is_echo(row["exception_type"], row["exception_message"])
    return was or not echoes.is_echo(raised["type"], raised["message"])


def evenly_spaced(members: Mapping[int, int]) -> tuple[int, int] | None:
    """First rank and step of a group whose members are evenly spaced; None where too few are known to tell, or not.

    Args:
        members: Global ranks by rank in the group, with holes.
    """
    if len(members) < LEAST_TO_TELL_A_SPACING:
        return None
    (low, first), (high, last) = min(members.items()), max(members.items())
    step, rest = divmod(last - first, high - low)
    begin = first - low * step
    fits = all(rank == begin + k * step for k, rank in members.items())
    return (begin, step) if rest == 0 and step > 0 and begin >= 0 and fits else None


def _when(found: tuple[Fact, int | None]) -> tuple[bool, int, int, int]:
    fact = found[0]
    return fact.time_ns is None, fact.time_ns or 0, fact.origin.file, fact.line


def _is_address(peer: str) -> bool:
    return peer.replace(".", "").isdigit() or ":" in peer


def _short(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
