"""Tables of runs as a batch writes them, made from what a test says of each run."""

from __future__ import annotations

import datetime as dt
import random

import polars as pl
import pyarrow as pa

from roundk.analyze.batch.table import CATEGORIES, RUNS
from roundk.analyze.names import Cause

START = dt.datetime(2026, 7, 6, 8, tzinfo=dt.UTC)
"""A Monday."""


def run(name, hosts=(), **told):
    """A row: a run that failed for no known reason, unless something else is told."""
    lists = ("hosts", "culprit_ranks", "culprit_hosts", "culprit_links", "sources")
    row = {column: [] if column in lists else None for column in RUNS.names}
    row |= {"run": name, "root": "runs", "verdict": 0, "hosts": sorted(hosts), "status": "failed"}
    row |= {"fingerprint": "0", "roundk_version": "0"}
    if told.get("status") not in ("healthy", "in_progress", "error"):
        row |= {"structure": "RANK_NOT_ENTERED", "structure_confidence": "high", "cause": "UNDETERMINED"}
        row |= {"cause_confidence": "none" if told.get("cause") in (None, "UNDETERMINED") else "high"}
    row |= told
    if row["cause"] is not None:
        row["category"] = CATEGORIES[Cause(row["cause"])].value
    return row


def link(host, device="mlx5_0", port=1):
    return {"host": host, "device": device, "port": port}


def table(rows):
    return pl.from_arrow(pa.Table.from_pylist(list(rows), schema=RUNS))


def topology(path, hosts, *, rails=8, planes=4, rack=4):
    """A file in which device n of a host is on rail n, and rails share planes."""
    lines = ["host,device,rack,rail,plane"]
    for number, host in enumerate(hosts):
        place = f"rack{number // rack}"
        lines += [f"{host},mlx5_{rail},{place},rail{rail},plane{rail % planes}" for rail in range(rails)]
    path.write_text("\n".join(lines) + "\n")
    return path


def week(number):
    return START + dt.timedelta(weeks=number)


def mixed(count=300, seed=7):
    """A fleet with some of everything: a port of node-017 that flaps, node-042 that stalls, job 4711 that diverges."""
    draw = random.Random(seed)
    names = [f"node-{number:03d}" for number in range(120)]
    rows = []
    for number in range(count):
        hosts = draw.sample(names, 8)
        begin = START + dt.timedelta(hours=draw.uniform(0, 24 * 7 * 9))
        onset, end = begin + dt.timedelta(hours=draw.uniform(1, 30)), None
        end = onset + dt.timedelta(minutes=draw.uniform(5, 90))
        told = {"started_at": begin, "onset_at": onset, "ended_at": end, "world_size": 64}
        told |= {"gpu_hours": 64 * (end - begin).total_seconds() / 3600, "op": "all_reduce", "group": "dp", "seq": 9}
        told |= {"job": str(5000 + number), "attempt": 0, "summary": "Rank 3 never entered all_reduce #9 of group dp."}
        name, kind = f"runs/{5000 + number}/0", number % 20
        lost = {"gpu_hours_lost": 64 * (end - onset).total_seconds() / 3600}
        if kind < 5:
            bad = "node-017" if kind == 0 else hosts[0]
            hosts = sorted({bad, *hosts[1:]})
            device = "mlx5_3" if kind == 0 else f"mlx5_{draw.randrange(8)}"
            sure = draw.choice(["high", "high", "medium", "low"])
            told |= lost | {"cause": draw.choice(["LINK_FLAP", "LINK_FLAP", "LINK_DOWN", "CONGESTION"])}
            told |= {"cause_confidence": sure, "structure": "ALL_ENTERED_NONE_COMPLETED", "culprit_hosts": [bad]}
            told |= {"culprit_links": [link(bad, device)]}
        elif kind < 8:
            bad = "node-042" if kind == 5 else hosts[0]
            hosts = sorted({bad, *hosts[1:]})
            told |= lost | {"cause": draw.choice(["HOST_STALL", "OOM_KILLED", "PROCESS_KILLED"])}
            told |= {"culprit_hosts": [bad], "culprit_ranks": [3], "detail": "DEAD"}
        elif kind < 10:
            told |= lost | {"cause": "GPU_FAULT", "structure": "DEVICE_STUCK", "culprit_hosts": hosts[:1]}
        elif kind < 12:
            told |= lost | {"cause": "CODE_DIVERGENCE", "structure": "SIGNATURE_MISMATCH", "job": "4711"}
        elif kind < 14:
            told |= lost | {"structure": "INSUFFICIENT_EVIDENCE", "structure_confidence": "low"}
        elif kind < 16:
            told |= {"status": "slow", "structure": "STRAGGLER", "cause": "HOST_SLOW", "culprit_hosts": hosts[:1]}
        elif kind < 18:
            told |= {"status": "healthy"}
        elif kind == 18:
            told = {"status": "error", "problem": "took more than 600 s"}
            hosts = []
        rows.append(run(name, hosts, **told))
    return table(rows)
