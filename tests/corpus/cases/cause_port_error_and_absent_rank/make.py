from __future__ import annotations

import cause_inputs as inputs
import dumps


def make(folder):
    lines = [*inputs.where(), inputs.event(1, "port error")]
    dumps.write(folder, inputs.absent(2, leaves_dump=True) | {"job.log": inputs.log(*lines)})
