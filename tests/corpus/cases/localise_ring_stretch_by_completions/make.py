from __future__ import annotations

import comm_dumps
import proxy_dumps
from pipelines import Pipeline, ring


def make(folder):
    order = list(range(8))
    cut = Pipeline(ring(order, 14, 2), 2, cut=(3, 4), after=26).run()
    comm_dumps.write(folder, proxy_dumps.dumps([cut], counters=False))
    (folder / "job.log").write_text(proxy_dumps.lines([order, order]))
