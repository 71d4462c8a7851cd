"""How the ranks' processes ended, from everybody who had a word on it.

The parent's word on a code (torchrun's agent, the launcher for its own child) goes first, then what the launcher saw,
then the process's own, then that its pid was gone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

_Line = dict[str, Any]
_File = tuple[str, list[_Line]]

_DYING_NS = 1_000_000_000
"""A stopped process that gets SIGKILL runs for an instant before it is a zombie: nobody let it go on."""


class Word(NamedTuple):
    """What a process's own files say: uncaught exceptions, the exit code, and when it said so."""

    exceptions: list[_Line]
    code: int | None
    time_ns: int | None


def generation(line: _Line) -> tuple[str, int]:
    """Job and torchelastic restart count that a line belongs to."""
    return (str(line.get("job") or ""), int(line.get("attempt") or 0))


class Ends:
    """The ends told in a run: of ranks by their parents, of processes, and by processes that never had files."""

    def __init__(self, agents: list[_File], launchers: list[_File], early: list[_File]) -> None:
        told = _of_kind("exit", [*agents, *launchers])
        self._of_process = {(_host(line), int(line["pid"])): line for line in reversed(told)}
        self._states = _of_kind("state", launchers)
        self._exits = [line for line in told if line.get("rank") is not None]
        self._early = _of_kind("exception", early)
        self._off = _of_kind("off", early)

    @property
    def of_ranks(self) -> list[_Line]:
        """Lines that name the rank they are about."""
        return [*self._exits, *self._early, *self._off]

    def keep(self, last: tuple[str, int]) -> None:
        """Leave out what names a rank of another start."""
        self._exits = [line for line in self._exits if generation(line) == last]
        self._early = [line for line in self._early if generation(line) == last]
        self._off = [line for line in self._off if generation(line) == last]

    def why_off(self, host: str, pid: int) -> str | None:
        """Why a process with files is not recorded, as it says elsewhere."""
        return next((line["why"] for line in self._off if line["pid"] == pid and _host(line) == host), None)

    def of(self, rank: int, host: str, pid: int, word: Word) -> _Line:
        """The columns of `RANKS` on the end of a process with files."""
        states = [line for line in self._states if line.get("pid") == pid and _host(line) == host]
        early = [line for line in self._early if line["pid"] == pid and _host(line) == host]
        seen = next((line for line in states if "code" in line), None)
        exit_ = self._of_rank(rank) or self._of_process.get((host, pid)) or seen
        how = _ended(exit_) or _said(word) or _vanished(states)
        return {**_state(states), **_raised([*word.exceptions, *early]), **how}

    def without_files(self, rank: int) -> _Line:
        """The columns of `RANKS` on a rank without files: what its parent, or the process itself, left about it."""
        exit_ = self._of_rank(rank)
        early = [line for line in self._early if line["rank"] == rank and (not exit_ or line["pid"] == exit_["pid"])]
        if exit_ is None and early:
            exit_ = self._of_process.get((_host(early[0]), early[0]["pid"]))
        off = [line for line in self._off if line["rank"] == rank and (not exit_ or line["pid"] == exit_["pid"])]
        first = exit_ or next(iter([*early, *off]), None)
        if first is None:
            return {}
        where = {"host": _host(first), "pid": first["pid"], "source": first["source"]}
        return {**where, **_raised(early), **_ended(exit_), "recorder_off": off[0]["why"] if off else None}

    def _of_rank(self, rank: int) -> _Line | None:
        return next((line for line in self._exits if line["rank"] == rank), None)


def _of_kind(kind: str, files: list[_File]) -> list[_Line]:
    return [{**line, "source": source} for source, lines in files for line in lines if line.get("kind") == kind]


def _host(line: _Line) -> str:
    return str(line["source"]).split("/")[0]


def _state(states: list[_Line]) -> _Line:
    over = next((line["time_ns"] for line in states if line["state"] in ("Z", "gone")), None)
    living = [line for line in states if line["state"] not in ("Z", "gone") and not _is_dying(line, over)]
    return {"process_state": living[-1]["state"], "process_state_ns": living[-1]["time_ns"]} if living else {}


def _is_dying(line: _Line, over_ns: int | None) -> bool:
    return line["state"] == "alive" and over_ns is not None and 0 <= over_ns - line["time_ns"] < _DYING_NS


def _raised(lines: list[_Line]) -> _Line:
    if not lines:
        return {}
    row = {f"exception_{key}": lines[0].get(key) for key in ("type", "message", "site")}
    return {**row, "exception_ns": lines[0]["time_ns"]}


def _ended(line: _Line | None) -> _Line:
    if line is None:
        return {}
    code = line["code"]
    source = "launcher" if line["source"].split("/")[1].startswith("launcher-") else "agent"
    how = {"exit_signal": -code} if code < 0 else {"exit_code": code}
    return {"exit_ns": line["time_ns"], "exit_source": source, **how}


def _said(word: Word) -> _Line:
    return {} if word.code is None else {"exit_ns": word.time_ns, "exit_source": "self", "exit_code": word.code}


def _vanished(states: list[_Line]) -> _Line:
    over = next((line for line in states if line["state"] in ("Z", "gone")), None)
    return {"exit_ns": over["time_ns"], "exit_source": "vanished"} if over else {}
