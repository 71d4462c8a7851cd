from __future__ import annotations

import dumps
from older_dumps import dump, entry


def make(folder):
    two = {"input_sizes": [[4, 4], [2]], "output_sizes": [[4, 4], [2]]}
    dumps.write(folder, {f"dump{rank}": dump(rank, [entry(0, "allreduce_coalesced", 1, **two)]) for rank in range(2)})
