"""The calls of a run as a plain table, CSV or Parquet, as someone with a recorder of his own would hand it in."""

from __future__ import annotations

import polars as pl
from generated.program import P2P, UNEVEN_GATHER

UNITS = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}


def write(case, folder):
    """Write the table; give its form in words."""
    rng = case.rng
    unit = rng.choice(tuple(UNITS))
    has_starts, has_signature = rng.random() < 0.4, rng.random() < 0.8
    lost = set(rng.sample(range(case.world), 1)) if rng.random() < 0.1 and case.world > 2 else set()
    case.lost, case.has_sites = frozenset(lost), False
    rows = []
    for rank in range(case.world):
        if rank not in lost:
            _rows(case, rank, rows, unit)
    table = pl.DataFrame(rows, infer_schema_length=None)
    if not has_starts:
        table = table.drop(f"start_{unit}", strict=False)
    if not has_signature:
        table = table.drop("numel", "dtype", "root", strict=False)
    if rng.random() < 0.5:
        table.write_csv(folder / "calls.csv", separator=rng.choice(",;\t"))
        form = "csv"
    else:
        table.write_parquet(folder / "calls.parquet")
        form = "parquet"
    return f"table {form} {'gloo' if case.is_blocking else 'nccl'} lost={lost or '{}'}" + (
        " starts" if has_starts else ""
    )


def _rows(case, rank, rows, unit):
    offset = case.offsets[case.hosts[rank]] + 1_750_000_000
    how, at = case.run.halted.get(rank, ("", 0.0))
    until = min(at if how in ("dead", "exit") else case.cut, case.cut)

    def time(seconds):
        if seconds is None or seconds > until:
            return None
        exact = (seconds + offset) * UNITS[unit]
        return round(exact) if unit in ("ns", "us") else round(exact, 6)

    seqs = {}
    for node in case.run.calls[rank]:
        if node.enter > until:
            break
        for part in node.call.batch or (node.call,):
            pair = (part.op, part.peer) if part.op in P2P else None
            seqs[part.group, pair] = seqs.get((part.group, pair), 0) + 1
            rows.append(
                {
                    "rank": rank,
                    "group": case.layout.groups[part.group].name,
                    "seq": seqs[part.group, pair],
                    "op": "all_gather" if part.op == UNEVEN_GATHER else part.op,
                    "numel": part.numel,
                    "dtype": part.dtype,
                    "root": part.root,
                    "peer": part.peer,
                    f"enter_{unit}": time(node.enter),
                    f"start_{unit}": time(node.start),
                    f"end_{unit}": time(node.end),
                }
            )
