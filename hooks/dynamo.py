"""Keeps torch.compile out of our code.

While a compiled function runs, torch.compile looks at every Python frame that begins, our kernels' too: it would spend
seconds on compiling them and warn the user about what it finds there.

Source: torch/csrc/dynamo/eval_frame.c; `set_code_exec_strategy` since torch 2.7, `skip_code` before.
"""

from __future__ import annotations

from typing import Any, TypeVar

_Function = TypeVar("_Function")


def untraced(function: _Function) -> _Function:
    """The same function: torch.compile runs it, and what it calls, as it is; in a trace it stands like a C function."""
    import torch

    eval_frame: Any = torch._C._dynamo.eval_frame
    code = function.__code__  # type: ignore[attr-defined]
    if hasattr(eval_frame, "set_code_exec_strategy") and hasattr(eval_frame, "_FrameExecStrategy"):
        skip = eval_frame._FrameAction.SKIP
        eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(skip, skip))
    elif hasattr(eval_frame, "skip_code"):
        eval_frame.skip_code(code)
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function
