"""roundk: find the rank that never entered round k of a torch.distributed job, and say why."""

from __future__ import annotations

from importlib.metadata import version as _version

__version__ = _version("roundk")
