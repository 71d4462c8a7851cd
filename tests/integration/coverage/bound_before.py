"""A job that binds torch's functions by name before it installs roundk: `bound_before.py DIR`."""

from __future__ import annotations

import sys

import torch
from torch.distributed import all_reduce, destroy_process_group, init_process_group, new_group

from roundk.hooks import install

install(sys.argv[1])
init_process_group("gloo")
group = new_group([0, 1])
all_reduce(torch.ones(4), group=group)
destroy_process_group(group)
destroy_process_group()
