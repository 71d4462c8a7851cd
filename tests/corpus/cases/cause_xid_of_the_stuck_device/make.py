from __future__ import annotations

import cause_inputs as inputs
import dumps


def make(folder):
    xid = "NVRM: Xid (PCI:0000:1b:00): "
    fell = inputs.kernel(1, xid + "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    echo = inputs.kernel(3, xid + "45, pid=703, name=python, Ch 00000001", second=44)
    dumps.write(folder, inputs.lagging(1) | {"job.log": inputs.log(*inputs.where(), fell, echo)})
