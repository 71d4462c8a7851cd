from __future__ import annotations

import dumps
from older_dumps import dump, entry


def make(folder):
    """Rank 1 goes on to an uneven reduce_scatter that rank 0 does not come to."""
    entries = [entry(0, "all_reduce", 1)]
    more = [entry(number, "_reduce_oop", 2, make=dumps.scheduled) for number in (1, 2)]
    more.append(entry(3, "REDUCE_SCATTER_coalesced", 2, make=dumps.scheduled, input_sizes=[], output_sizes=[]))
    dumps.write(folder, {"dump0": dump(0, entries), "dump1": dump(1, entries + more)})
