from __future__ import annotations

import dumps
from older_dumps import dump, entry


def make(folder):
    """The parts of an uneven all_gather are broadcasts; of the second the ranks pass other sizes."""
    files = {}
    for rank in range(2):
        entries = [entry(0, "_broadcast_oop", 1, make=dumps.scheduled)]
        entries.append(entry(1, "_broadcast_oop", 1, size=(5 - rank, 5 - rank), make=dumps.scheduled))
        entries.append(entry(2, "ALLGATHER_coalesced", 1, make=dumps.scheduled, input_sizes=[], output_sizes=[]))
        files[f"dump{rank}"] = dump(rank, entries)
    dumps.write(folder, files)
