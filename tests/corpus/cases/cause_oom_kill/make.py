from __future__ import annotations

import cause_inputs as inputs
import dumps


def make(folder):
    killed = inputs.kernel(2, "Out of memory: Killed process 702 (python) anon-rss:510000000kB", second=41)
    lines = [*inputs.where(), killed, *inputs.summary(2, 9, "SIGKILL")]
    dumps.write(folder, inputs.absent(2, leaves_dump=False) | {"job.log": inputs.log(*lines)})
