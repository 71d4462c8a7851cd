from __future__ import annotations

import comm_dumps
import proxy_dumps
from pipelines import Pipeline, tree


def make(folder):
    parents = {1: 0, 2: 0, 3: 1, 4: 1, 5: 3, 6: 2, 7: 2}
    cut = Pipeline(tree(parents, 6), 4, cut=(1, 3), after=3).run()
    comm_dumps.write(folder, proxy_dumps.dumps([cut], counters=False, algorithm=""))
    (folder / "job.log").write_text(proxy_dumps.lines([], trees=[parents], nranks=8))
