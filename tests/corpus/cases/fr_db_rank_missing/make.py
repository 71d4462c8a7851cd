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


def make(folder):
    """Rank 1 goes on to an uneven reduce_scatter that rank 0 does not come to."""
    entries = [entry(0, "all_reduce", 1)]
    more = [entry(number, "_reduce_oop", 2, make=dumps.scheduled) for number in (1, 2)]
    more.append(entry(3, "REDUCE_SCATTER_coalesced", 2, make=dumps.scheduled, input_sizes=[], output_sizes=[]))
    dumps.write(folder, {"dump0": dump(0, entries), "dump1": dump(1, entries + more)})
