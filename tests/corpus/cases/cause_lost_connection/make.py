from __future__ import annotations

import cause_inputs as inputs
import dumps


def make(folder):
    lines = [*inputs.where(), inputs.completion(1, 2), inputs.completion(3, 2)]
    dumps.write(folder, inputs.all_in() | {"job.log": inputs.log(*lines)})
