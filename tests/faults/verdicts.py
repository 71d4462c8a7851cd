"""What roundk says of a recorded run, and whether that is true."""

from __future__ import annotations

import json
import pathlib
import shutil
import tempfile
from dataclasses import dataclass

import recording
import stage

from roundk.analyze import case, diagnose, sources
from roundk.analyze.output import json as json_output

_NS_PER_S = 1_000_000_000
UNDETERMINED = "UNDETERMINED"


@dataclass(frozen=True)
class Judged:
    """A report beside the truth.

    Attributes:
        structure, cause, culprit, event: Whether that is right.
        innocents: What the report says at high confidence of a host that did nothing.
        wrong: What is not right, for people.
    """

    report: dict
    structure: bool
    cause: bool
    culprit: bool
    event: bool
    innocents: tuple[str, ...]
    wrong: tuple[str, ...]

    @property
    def right(self):
        """Whether all of it is right."""
        return not self.wrong

    @property
    def told(self):
        """The verdicts in a few words."""
        return " + ".join(f"{one['structure']}/{one['cause'] or '-'}" for one in self.report["verdicts"])


def analyze(run, now_ns):
    """The report on a run directory as it was at a time: the ranks of a copy made then still hang."""
    trace, _ = sources.load([str(run)])
    built = case.build(trace, now_ns=now_ns, stall_ns=round(stage.STALL_S * _NS_PER_S))
    return json.loads(json_output.render(diagnose.report(built)))


def analyze_without_links(run, now_ns):
    """The report on the same run without its samples of links."""
    with tempfile.TemporaryDirectory(prefix="roundk-lab-") as scratch:
        copy = pathlib.Path(scratch) / "run"
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns("links-*"))
        return analyze(copy, now_ns)


def judge(report, truth, form, *, links=True):
    """Compare a report with the truth.

    Args:
        report: As `roundk analyze --format json` gives it.
        truth: What is true.
        form: The job's form.
        links: Whether samples of links were there. Without them a cause may stay open and a link unnamed, but the
            report must say what it could not look at.
    """
    verdicts = report["verdicts"]
    pairs = _pairs(verdicts, truth)
    structure = all(_structure(one, verdict) for one, verdict in pairs)
    cause = all(_cause(one, verdict, links=links) for one, verdict in pairs)
    culprit = all(_culprit(one, verdict, links=links) for one, verdict in pairs)
    event = not links or truth.event is None or _mentions(report, truth.event)
    innocents = tuple(_innocents(verdicts, truth.guilty_hosts(recording.per_host(form)), recording.per_host(form)))
    not_told = not links and any(one.links for one in truth.expected) and not any(v["not_checked"] for v in verdicts)
    checks = {
        "structure": structure,
        "cause": cause,
        "culprit": culprit,
        f"the event on {truth.event} is not listed": event,
        f"innocent: {'; '.join(innocents)}": not innocents,
        "not_checked does not say that links were not sampled": not not_told,
    }
    return Judged(
        report, structure, cause, culprit, event, innocents, tuple(what for what, right in checks.items() if not right)
    )


def _pairs(verdicts, truth):
    """Each expected verdict with the one that is to say it; where the order is open, the one of its structure."""
    if not truth.any_order:
        return [(one, verdicts[at] if at < len(verdicts) else None) for at, one in enumerate(truth.expected)]
    return [(one, next((v for v in verdicts if _structure(one, v)), None)) for one in truth.expected]


def _structure(expected, verdict):
    if verdict is None or verdict["structure"] not in expected.structures:
        return False
    detailed = verdict["structure"] == "RANK_NOT_ENTERED" and expected.details
    return not detailed or verdict["detail"] in expected.details


def _cause(expected, verdict, *, links):
    if verdict is None:
        return False
    return verdict["cause"] in expected.causes or (not links and bool(expected.links) and _open(verdict))


def _open(verdict):
    return verdict["cause"] in (None, UNDETERMINED)


def _culprit(expected, verdict, *, links):
    if verdict is None or tuple(sorted(verdict["culprit_ranks"])) != tuple(sorted(expected.ranks)):
        return False
    named = {(link["host"], link["device"]) for link in verdict["culprit_links"]}
    if not expected.links:
        return not named
    return named <= set(expected.links) and (bool(named) or not links)


def _innocents(verdicts, guilty, per_host):
    for verdict in verdicts:
        if "high" not in (verdict["structure_confidence"], verdict["cause_confidence"]):
            continue
        named = {f"h{rank // per_host}": f"rank {rank}" for rank in verdict["culprit_ranks"]}
        named |= {host: f"host {host}" for host in verdict["culprit_hosts"]}
        named |= {link["host"]: f"{link['device']} of {link['host']}" for link in verdict["culprit_links"]}
        for host, what in named.items():
            if host not in guilty:
                yield f"{what} by {verdict['structure']}/{verdict['cause']}"


def _mentions(report, event):
    """Whether the report lists an event on a link somewhere beside its culprits."""
    host, device = event
    texts = [
        json.dumps({key: verdict[key] for key in ("summary", "evidence", "not_checked", "contradictions")})
        for verdict in report["verdicts"]
    ]
    return any(host in text and device in text for text in texts)
