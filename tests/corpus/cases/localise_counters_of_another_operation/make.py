from __future__ import annotations

import comm_dumps
import proxy_dumps
from pipelines import Pipeline, ring


def make(folder):
    order = list(range(8))
    cut = Pipeline(ring(order, 14, 2), 4, cut=(3, 4), after=3).run()
    comm_dumps.write(folder, proxy_dumps.dumps([cut], ahead=2))
