from __future__ import annotations

import cause_inputs as inputs
import dumps


def make(folder):
    lines = [*inputs.where(), inputs.event(2, "port error"), inputs.event(2, "port active", second=49)]
    dumps.write(folder, inputs.all_in() | {"job.log": inputs.log(*lines, inputs.completion(1, 2))})
