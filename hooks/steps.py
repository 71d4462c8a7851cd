"""Training steps: counted when an optimizer steps, or by the user's own marks.

Source: `torch.optim.optimizer.register_optimizer_step_post_hook`, torch 2.6 to 2.14.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from roundk.hooks import dynamo, failsafe

if TYPE_CHECKING:
    from collections.abc import Callable


class Steps:
    """Decides what ends a step: `ended` is called once for each."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = failsafe.guard(ended)
        self._marker: weakref.ref[Any] | None = None
        self._by_user = False

    def optimizer_stepped(self, optimizer: Any, *_: Any) -> None:
        """An optimizer stepped. Only the first one counts, while it lives: a step of several optimizers is one step."""
        if self._by_user:
            return
        marker = self._marker() if self._marker is not None else None
        if marker is None:
            self._marker = weakref.ref(optimizer)
        elif marker is not optimizer:
            return
        self._ended()

    def user_marked(self) -> None:
        """The user marked the end of a step: from now on only that counts."""
        self._by_user = True
        self._ended()


_steps: list[Steps] = []
"""This process's, once hooks are installed."""


def install(ended: Callable[[], None]) -> None:
    """Have `ended` called at the end of every training step of this process."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    steps = Steps(ended)
    _steps[:] = [steps]
    register_optimizer_step_post_hook(dynamo.untraced(failsafe.guard(steps.optimizer_stepped)))


def step() -> None:
    """Mark the end of a training step, for a loop without an optimizer of torch's, or with several.

    Without a recorder in this process it does nothing.
    """
    for steps in _steps:
        failsafe.guard(steps.user_marked)()
