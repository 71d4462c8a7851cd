"""Runs a function right after a module has been imported for the first time.

`roundk run` copies this file beside its `sitecustomize`, where roundk itself may not be importable: it imports nothing
of roundk, and at start-up next to nothing at all.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # type checkers know the name; `typing` costs a process that never imports torch ten milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class _Finder:
    """Lets the other finders find the module, and has its loader call the function when it is done."""

    def __init__(self, name: str, function: Callable[[], object]) -> None:
        self.name = name
        self.function = function

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find else None
            if spec is not None:
                self._call_after(spec.loader)
                return spec
        sys.meta_path.insert(0, self)  # not there now: it may be later
        return None

    def _call_after(self, loader: Any) -> None:
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self.function()

        try:
            loader.exec_module = exec_module
        except (AttributeError, TypeError):
            return  # a loader that takes no attributes: the module is imported all the same


def when_imported(name: str, function: Callable[[], object]) -> None:
    """Call the function once `name` has been imported: at once if it already is. The function must not raise."""
    if name in sys.modules:
        function()
    else:
        sys.meta_path.insert(0, _Finder(name, function))
