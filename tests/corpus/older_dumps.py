"""Dumps as in the tests of torch's own builder of its database: schema 2.8, with text where newer ones have numbers."""

from __future__ import annotations

import dumps

SPARE = ("op_id", "timeout_ms", "thread_id", "thread_name")
"""What entries of that age lack."""


def entry(number, op, seq, size=(4, 4), group=("0", "default"), make=dumps.entry, **fields):
    """Numbers and types as text, as those tests have them."""
    sizes = [list(size)]
    made = make(number, f"nccl:{op}", seq=str(seq), process_group=group, input_sizes=sizes, output_sizes=sizes)
    made |= {"p2p_seq_id": "0", "input_dtypes": "float32", "output_dtypes": "float32", "pg_id": int(group[0])}
    return {key: value for key, value in (made | fields).items() if key not in SPARE}


def dump(rank, entries):
    """Group 1 has the same name on both ranks, and other members."""
    groups = {"1": {"name": "1", "desc": "sub_pg", "ranks": f"[{rank}]"}}
    made = dumps.dump(entries, groups=groups, version="2.8")
    return {key: value for key, value in made.items() if key != "pg_status"}
