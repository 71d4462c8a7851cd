from __future__ import annotations

import cause_inputs as inputs
import dumps


def make(folder):
    dumps.write(folder, inputs.absent(2, leaves_dump=False))
