from __future__ import annotations

import cause_inputs as inputs
import dumps


def make(folder):
    events = [inputs.event(rank, "port error") for rank in range(inputs.WORLD)]
    dumps.write(folder, inputs.all_in() | {"job.log": inputs.log(*inputs.where(), *events)})
