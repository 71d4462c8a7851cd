from __future__ import annotations

import cause_inputs as inputs
import dumps


def make(folder):
    lines = [*inputs.where(), inputs.completion(1, 2, status=5)]
    dumps.write(folder, inputs.all_in() | {"job.log": inputs.log(*lines)})
