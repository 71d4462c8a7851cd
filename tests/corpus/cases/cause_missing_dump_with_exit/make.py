from __future__ import annotations

import cause_inputs as inputs
import dumps


def make(folder):
    lines = [*inputs.where(), *inputs.summary(2, 11, "SIGSEGV")]
    dumps.write(folder, inputs.absent(2, leaves_dump=False) | {"job.log": inputs.log(*lines)})
