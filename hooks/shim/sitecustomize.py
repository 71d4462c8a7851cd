"""Starts roundk's recorder in a process that comes to import torch, then runs the sitecustomize it stands before.

This folder was put on PYTHONPATH by `roundk run`. It goes away with the run directory.
"""

import os
import sys
from importlib.machinery import PathFinder


def _start() -> None:
    try:
        import roundk_importhook  # type: ignore[import-not-found]  # beside this file once it is copied
        import roundk_shim  # type: ignore[import-not-found]

        roundk_importhook.when_imported("torch", roundk_shim.autoload)
    except Exception as error:  # nothing of ours may keep a user's Python from starting
        sys.stderr.write(f"roundk: not started in this process: {error!r}\n")


def _chain() -> None:
    # Not the folder of another `roundk run` around this one either: it would chain to ours, for ever.
    others = [entry for entry in sys.path if not os.path.exists(os.path.join(entry or ".", "roundk_shim.py"))]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        import importlib.util  # it costs several milliseconds, and few have a sitecustomize

        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_start()
_chain()
