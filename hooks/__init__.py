"""What runs inside a training job: the hooks into torch.distributed, and the launcher behind `roundk run`.

Loads torch only inside functions, and of the tracer only its writing half: a training process gets no pyarrow.
"""

from __future__ import annotations

from roundk.hooks.autoload import install
from roundk.hooks.steps import step

__all__ = ["install", "step"]
