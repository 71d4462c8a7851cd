from __future__ import annotations

import cause_inputs as inputs
import dumps


def make(folder):
    other = inputs.kernel(3, "NVRM: Xid (PCI:0000:1b:00): 63, pid='<unknown>', name=<unknown>, Row Remapper")
    dumps.write(folder, inputs.lagging(1) | {"job.log": inputs.log(*inputs.where(), other)})
