from __future__ import annotations

import comm_dumps
import proxy_dumps
from pipelines import Pipeline, ring


def make(folder):
    order = [0, 1, 3, 2, 4, 5, 7, 6]
    cut = Pipeline(ring(order, 14, 2), 4, cut=(2, 4), after=25).run()
    comm_dumps.write(folder, proxy_dumps.dumps([cut]))
    (folder / "job.log").write_text(proxy_dumps.lines([order]))
