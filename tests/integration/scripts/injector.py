"""Makes functions of roundk fail at will: every one of `roundk.hooks` and of the tracer is compiled with a call of ours
at its beginning, which counts, and raises where it is told to.

The counts lie in memory that forked processes share, so that whoever starts them can read what they called.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import importlib.machinery
import mmap
import pathlib
import pkgutil
import sys
import types

MOST = 2_000
MESSAGE = "injected into"
PACKAGES = ("roundk.hooks.", "roundk.tracer.")
names: list[str] = []
"""Every function, as `module:qualified name`."""
_counts = memoryview(mmap.mmap(-1, 8 * MOST)).cast("q")
_from_ours = memoryview(mmap.mmap(-1, MOST))
_now = types.SimpleNamespace(target=-1, left=None, folder="")


def load(but: tuple[str, ...]) -> None:
    """Import all modules of both packages, ready to fail, but these."""
    builtins._roundk_passing = _passing
    sys.meta_path.insert(0, _Finder())
    for package in PACKAGES:
        found = importlib.import_module(package.rstrip("."))
        _now.folder = str(pathlib.Path(found.__path__[0]).parent)
        for module in pkgutil.iter_modules(found.__path__, package):
            if module.name not in but and not module.ispkg:
                importlib.import_module(module.name)
    assert len(names) < MOST


def arm(name: str | None, moment: int) -> memoryview:
    """In this process, and in those forked from now on, let the function raise from its n-th call on; None: never.

    What is returned has 0 or less once it has raised.
    """
    _now.target = names.index(name) if name else -1
    _now.left = memoryview(mmap.mmap(-1, 8)).cast("q")
    _now.left[0] = moment
    return _now.left


def disarm() -> None:
    """In this process, let nothing raise, and count nothing."""
    builtins._roundk_passing = lambda number: None


def reset() -> None:
    """Count anew."""
    for k in range(len(names)):
        _counts[k] = _from_ours[k] = 0


def counted() -> dict[str, int]:
    """The functions that were called since the last `reset`, and how often."""
    return {name: _counts[k] for k, name in enumerate(names) if _counts[k]}


def called_by_ours() -> set[str]:
    """Those of them that a function of roundk called: the others are what Python, torch or the user call."""
    return {name for k, name in enumerate(names) if _from_ours[k]}


def _passing(number: int) -> None:
    _counts[number] += 1
    if not _from_ours[number]:
        _from_ours[number] = _caller().startswith(_now.folder)
    if number == _now.target:
        _now.left[0] -= 1
        if _now.left[0] <= 0:
            message = f"{MESSAGE} {names[number]}"
            raise ArithmeticError(message)  # of a kind that no narrow `except` of roundk's awaits


def _caller() -> str:
    """The file that the function which called `_passing` was called from."""
    frame = sys._getframe(3)
    while frame.f_code.co_filename == contextlib.__file__ and frame.f_back:
        frame = frame.f_back
    return frame.f_code.co_filename


class _Instrument(ast.NodeTransformer):
    def __init__(self, module: str) -> None:
        self._module = module
        self._scope: list[str] = []

    def visit_ClassDef(self, node):
        return self._inside(node, node.name)

    def visit_FunctionDef(self, node):
        names.append(f"{self._module}:{'.'.join([*self._scope, node.name])}")
        number = len(names) - 1
        self._inside(node, f"{node.name}.<locals>")
        first = node.body[0]
        documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        call = ast.parse(f"_roundk_passing({number})").body[0]
        for part in ast.walk(call):
            ast.copy_location(part, first)
        node.body.insert(int(documented), call)
        return node

    def _inside(self, node, name):
        self._scope.append(name)
        self.generic_visit(node)
        self._scope.pop()
        return node


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname):  # never from the cache, which holds the functions as they are
        path = self.get_filename(fullname)
        tree = _Instrument(fullname).visit(ast.parse(self.get_data(path)))
        return compile(tree, path, "exec")


class _Finder:
    def find_spec(self, name, path, target=None):
        if not name.startswith(PACKAGES):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec
