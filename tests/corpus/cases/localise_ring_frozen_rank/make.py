from __future__ import annotations

import comm_dumps
import proxy_dumps
from pipelines import Pipeline, ring


def make(folder):
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    still = Pipeline(ring(order, 14, 2), 8, freeze=6, moves=12).run()
    comm_dumps.write(folder, proxy_dumps.dumps([still, still]))
    (folder / "job.log").write_text(proxy_dumps.lines([order, order]))
