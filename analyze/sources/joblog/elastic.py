"""Lines of torchrun's agent (torch.distributed.elastic): what its workers died of.

`Received 2 death signal, shutting down workers` (`Signals.SIGINT` by Python before 3.11), `Sending process 7 closing
signal SIGTERM`, `failed (exitcode: -9) local_rank: 1 (pid: 7) of binary: ...`, `Unable to
shutdown process 7 via SIGTERM, forcefully exiting via SIGKILL`, `Process 7 did not exit after ... Worker may be in
uninterruptible kernel sleep` (2.13), `Worker group FAILED. 2/3 attempts left; will restart worker group` (INFO, so
with TORCHELASTIC's log level raised), and the summary of `ChildFailedError`, a block per rank (`time`, `host`, `rank`,
`exitcode`, `traceback`) under `Failures:` and `Root Cause (first observed failure):` (1.9 to 1.10: `Root Cause:` and
`Other Failures:`).

Trap: in a hang the `Root Cause` is the rank whose timeout came first, a victim; the rank that did not come shows -15,
the agent's own SIGTERM. It is right for crashes. So `is_first_observed` is a field and no judgement.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from roundk.analyze.phrases import signal_name
from roundk.analyze.sources.joblog import clock
from roundk.analyze.sources.joblog.events import Event, number, present, rank_number, short

LITERALS: Final = (
    "death signal, shutting down workers",
    "closing signal SIG",
    "failed (exitcode:",
    "forcefully exiting via",
    "uninterruptible kernel sleep",
    "will restart worker group",
    "Root Cause",
    "Failures:",
)

_TOLD: Final = re.compile(
    r"Received (?:(?P<number>\d{1,3})|Signals\.(?P<name>SIG\w{1,20})) death signal, shutting down"
)
_CLOSING: Final = re.compile(r"(?:Sending|Closing) process (?P<pid>\d{1,10}) (?:closing|via) signal (?P<signal>SIG\w+)")
_FAILED: Final = re.compile(
    r"failed \(exitcode: (?P<code>-?\d{1,4})\) local_rank: (?P<local>\d{1,8}) \(pid: (?P<pid>\d{1,10})\)"
    r"(?: of (?P<what>.{1,300}))?"
)
_FORCED: Final = re.compile(
    r"Unable to shutdown process (?P<pid>\d{1,10}) via (?P<signal>\S{1,40}), forcefully exiting via"
)
_STUCK: Final = re.compile(r"Process (?P<pid>\d{1,10}) did not exit after (?P<signal>\S{1,40}) within (?P<waited>\d+)s")

_BEGIN: Final = re.compile(r"^\s*(?:Failures|Other Failures|Root Cause(?: \(first observed failure\))?):\s*$")
_ITEM: Final = re.compile(r"^\s*\[\d+\]:\s*$")
_FIELD: Final = re.compile(r"^\s*(?P<name>time|host|rank|exitcode|error_file|traceback)\s*: ?(?P<value>.*)$")
_RANK: Final = re.compile(r"(?P<rank>\d{1,8}) \(local_rank: (?P<local>\d{1,8})\)")
_EXIT: Final = re.compile(r"(?P<code>-?\d{1,4}) \(pid: (?P<pid>\d{1,10})\)(?:\s*\((?P<signal>SIG\w+)\))?")


def parse(text: str) -> Iterator[Event]:
    """What a line of the agent outside its summary says."""
    if (closing := _CLOSING.search(text)) is not None:
        pid = number(closing["pid"])
        what = f"the agent sends {closing['signal']} to process {closing['pid']}"
        yield Event("elastic_closing", what, present(pid=pid, signal=closing["signal"]), pid=pid, is_about_other=True)
    elif (told := _TOLD.search(text)) is not None:
        name = told["name"] or signal_name(int(told["number"]))
        what = f"{name} reached the agent, which ended its workers"
        yield Event("elastic_told", what, {"signal": name}, is_about_other=True)
    elif (failed := _FAILED.search(text)) is not None:
        fields = present(
            **ended(int(failed["code"])),
            local_rank=rank_number(failed["local"]),
            pid=number(failed["pid"]),
            what=short(failed["what"]) if failed["what"] else None,
        )
        yield Event(
            "elastic_failed",
            f"the agent saw process {failed['pid']} (local rank {failed['local']}) end with {failed['code']}",
            fields,
            pid=number(failed["pid"]),
            is_about_other=True,
        )
    elif (forced := _FORCED.search(text)) is not None:
        pid = number(forced["pid"])
        yield Event(
            "elastic_forced",
            f"process {pid} did not end on {forced['signal']}",
            present(pid=pid),
            pid=pid,
            is_about_other=True,
        )
    elif "will restart worker group" in text:
        yield Event("elastic_restart", "the agent starts its workers again", is_about_other=True)
    elif (stuck := _STUCK.search(text)) is not None:
        pid = number(stuck["pid"])
        fields = present(pid=pid, waited_s=number(stuck["waited"]))
        yield Event(
            "elastic_stuck",
            f"process {pid} cannot be ended: it may hang in the kernel",
            fields,
            pid=pid,
            is_about_other=True,
        )


def begins(text: str) -> bool:
    """Whether the summary's list of failures begins with this line."""
    return _BEGIN.match(text) is not None


def time_of(text: str) -> clock.Stamp | None:
    """The time that a line of the summary tells; None where it is no such line."""
    found = _FIELD.match(text)
    return clock.read(found["value"]) if found is not None and found["name"] == "time" else None


def ended(code: int) -> dict[str, object]:
    """An exit code as the agent prints it: negative ones are signals."""
    return {"exit_signal": -code} if code < 0 else {"exit_code": code}


class Summary:
    """Reads the blocks of `ChildFailedError` line by line."""

    is_bare = False

    def __init__(self, first: str) -> None:
        self._is_root = "Root Cause" in first
        self._told: dict[str, str] = {}

    @property
    def rank(self) -> int | None:
        """Rank of the block that is being read: a traceback in it is that rank's."""
        found = _RANK.match(self._told.get("rank", ""))
        return rank_number(found["rank"]) if found else None

    def feed(self, text: str) -> Iterator[Event] | None:
        """What the next line of this process says; None where the summary has ended."""
        if (item := _FIELD.match(text)) is not None:
            self._told[item["name"]] = item["value"].strip()
            return iter(())
        if _ITEM.match(text) or begins(text):
            done = self.finish()
            self._is_root = "Root Cause" in text if begins(text) else self._is_root
            return iter(done)
        stripped = text.strip()
        if stripped and not stripped.strip("=*") and self._told:
            return None  # the rule below the last block
        return iter(())

    def finish(self) -> list[Event]:
        """What the block read last says."""
        told, self._told = self._told, {}
        rank, exit_ = _RANK.match(told.get("rank", "")), _EXIT.match(told.get("exitcode", ""))
        if rank is None or exit_ is None:
            return []
        host = told.get("host") or None
        fields = present(
            **ended(int(exit_["code"])),
            local_rank=rank_number(rank["local"]),
            pid=number(exit_["pid"]),
            is_first_observed=self._is_root,
            host=host,
            error_file=None if told.get("error_file") in {None, "", "<N/A>"} else short(told["error_file"]),
            message=short(told["traceback"]) if told.get("traceback") else None,
        )
        how = f"signal {-int(exit_['code'])}" if exit_["code"].startswith("-") else f"exit code {exit_['code']}"
        event = Event(
            "elastic_failure",
            f"the agent's summary: rank {rank['rank']} ended with {how}",
            fields,
            rank=rank_number(rank["rank"]),
            host=short_host(host),
            pid=number(exit_["pid"]),
            at=clock.read(told.get("time", "")),
            is_about_other=True,
        )
        return [event]


def short_host(name: str | None) -> str | None:
    """A host's name without its domain, as all other lines print it; an address stays as it is."""
    if name is None or re.fullmatch(r"[\d.]+|[\da-fA-F:]+", name):
        return name
    return name.partition(".")[0]
