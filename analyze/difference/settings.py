"""Settings and versions: what ranks recorded of their environment, and what NCCL's log says of its own."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from roundk.analyze.difference.found import Found, Topic
from roundk.analyze.difference.run import Run
from roundk.analyze.difference.values import Values
from roundk.analyze.told import Told

_OWN: Final = "--max-mb"
"""The recorder's own option: where that is told, so are all variables that are kept."""
_ALWAYS: Final = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA")
"""Told by recordings of every age."""
_NCCL: Final = "NCCL_"
PLACES: Final = frozenset(
    {
        "NCCL_COMM_ID",
        "NCCL_DEBUG_FILE",
        "NCCL_GRAPH_DUMP_FILE",
        "NCCL_INSPECTOR_DUMP_DIR",
        "NCCL_TOPO_DUMP_FILE",
        "TORCH_FR_DUMP_TEMP_FILE",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
        "TORCH_TRACE",
    }
)
"""Where one run's output or rendezvous is: its own in every run. Compared is whether they are set."""
IS_SET: Final = "set"


def compare(a: Run, b: Run, found: Found) -> None:
    """Compare the settings of two runs.

    Args:
        a: One run.
        b: The other one.
        found: Takes what is found.
    """
    of_a, of_b = _Settings(a), _Settings(b)
    if not of_a.sources or not of_b.sources:
        found.is_untold(Topic.SETTINGS, "settings", a=not of_a.sources, b=not of_b.sources)
        return
    partial: dict[tuple[bool, bool], list[str]] = defaultdict(list)
    for name in sorted({*of_a.names, *of_b.names}, key=_worth):
        in_a, in_b = of_a.values(name), of_b.values(name)
        if in_a is None or in_b is None:
            partial[in_a is None, in_b is None].append(name)
        else:
            found.values(Topic.SETTINGS, name, in_a, in_b)
    for (not_in_a, not_in_b), names in partial.items():
        found.is_untold(Topic.SETTINGS, ", ".join(names), a=not_in_a, b=not_in_b)


def versions(a: Run, b: Run, found: Found) -> None:
    """Compare the versions of what two runs ran with.

    Args:
        a: One run.
        b: The other one.
        found: Takes what is found.
    """
    of_a, of_b = _versions(a), _versions(b)
    for name in dict.fromkeys([*of_a, *of_b]):
        found.values(Topic.VERSIONS, name, of_a.get(name), of_b.get(name))
    if not of_a and not of_b:
        found.is_untold(Topic.VERSIONS, "versions", a=True, b=True)


def _versions(run: Run) -> dict[str, Values]:
    pairs: dict[str, list[tuple[str | None, int | str]]] = defaultdict(list)
    for fact in run.facts("version"):
        name = str(fact.fields.get("name"))
        pairs["NCCL, as torch tells" if name == "nccl" else name] += _pairs(fact)
    made = {name: Values.of(of, run.hosts) for name, of in pairs.items()}
    if run.nccl:
        made = {"NCCL": Values.of([(", ".join(run.nccl), "job")])} | made
    return made


class _Settings:
    """The settings of a run by name."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._told: dict[str, list[tuple[str | None, int | str]]] = defaultdict(list)
        self._logged: dict[str, list[tuple[str | None, int | str]]] = defaultdict(list)
        for fact in run.facts("setting"):
            self._told[str(fact.fields.get("name"))] += _pairs(fact)
        for fact in run.facts("nccl_setting"):
            value, who = fact.text_of("value"), fact.host if fact.rank is None or fact.host else fact.rank
            self._logged[str(fact.fields.get("name"))].append((value, "a log" if who is None else who))
        self._is_complete = _OWN in self._told
        self._speaking = {fact.host for fact in run.facts("nccl_network") if fact.host is not None}
        self._has_log = bool(self._logged) or run.has(("nccl_network", "nccl_devices"))
        self.sources = self._is_complete or bool(self._told) or self._has_log

    @property
    def names(self) -> list[str]:
        return [*self._told, *self._logged]

    def values(self, name: str) -> Values | None:
        """Who has which value; `not set` where the run would tell; None: it does not tell."""
        pairs = self._told.get(name) or self._with_silent(name)
        if pairs and name in PLACES:
            pairs = [(value and IS_SET, who) for value, who in pairs]
        if not pairs and (self._is_complete or self._would_tell(name)):
            pairs = [(None, rank) for rank in self._run.trace.ranks["rank"].to_list()] or [(None, "job")]
        return Values.of(pairs, self._run.hosts) if pairs else None

    def _with_silent(self, name: str) -> list[tuple[str | None, int | str]]:
        """What logs say of a setting; not set it is on a host whose log tells of the network and not of it."""
        pairs = self._logged.get(name, [])
        hosts = {host for _, host in pairs}
        return pairs + [(None, host) for host in sorted(self._speaking - hosts) if pairs]

    def _would_tell(self, name: str) -> bool:
        if name in _ALWAYS and self._run.is_recorded:
            return True
        return self._has_log and name.startswith(_NCCL) and bool(self._logged)


def _pairs(fact: Told) -> list[tuple[str | None, int | str]]:
    """Value and who has it, of a fact of the recorder's."""
    value = fact.fields.get("value")
    text = None if value is None else str(value)
    ranks = (rank for first, last in fact.fields.get("ranks") or () for rank in range(first, last + 1))
    return [(text, rank) for rank in ranks] + [(text, str(host)) for host in fact.fields.get("hosts") or ()]


def _worth(name: str) -> tuple[int, str]:
    """Network first, the recorder's own last."""
    order = ("NCCL_", "TORCH_", "GLOO_", "UCX_", "FI_", "CUDA_", "PYTORCH_")
    at = next((at for at, prefix in enumerate(order) if name.startswith(prefix)), len(order))
    return (len(order) + 1 if name.startswith("--") else at, name)
