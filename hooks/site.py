"""The folder that `roundk run` puts on the job's PYTHONPATH: start-up code, an entry point, and roundk's hooks.

The hooks lie there as a copy, for a job whose Python has no roundk; the configuration too, for launchers that forward
PYTHONPATH but not our variables.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roundk.hooks.config import Config

_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOMS = ("hooks", "tracer")


def make(folder: str, config: Config) -> None:
    """Fill the folder.

    Raises:
        OSError: it cannot be written.
    """
    os.makedirs(folder)
    for name in ("sitecustomize.py", "roundk_shim.py"):
        shutil.copyfile(os.path.join(_HERE, "shim", name), os.path.join(folder, name))
    shutil.copyfile(os.path.join(_HERE, "importhook.py"), os.path.join(folder, "roundk_importhook.py"))
    config.write(os.path.join(folder, "config.json"))
    _write_entry_point(os.path.join(folder, "roundk_shim-0.dist-info"))
    _copy_hooks(os.path.join(folder, "lib", "roundk"))


def _write_entry_point(folder: str) -> None:
    os.makedirs(folder)
    with open(os.path.join(folder, "METADATA"), "w", encoding="utf-8") as file:
        file.write("Metadata-Version: 2.1\nName: roundk-shim\nVersion: 0\n")
    with open(os.path.join(folder, "entry_points.txt"), "w", encoding="utf-8") as file:
        file.write("[torch.backends]\nroundk_shim = roundk_shim:autoload\n")


def _copy_hooks(package: str) -> None:
    for room in _ROOMS:
        source = os.path.join(os.path.dirname(_HERE), room)
        _copy(source, os.path.join(package, room))
    with open(os.path.join(package, "__init__.py"), "w", encoding="utf-8") as file:
        file.write('"""The hooks of roundk, for a job whose Python has no roundk."""\n')


def _copy(source: str, to: str) -> None:
    try:
        shutil.copytree(source, to, ignore=shutil.ignore_patterns("__pycache__"))
    except shutil.Error as error:  # of each file that it could not copy: where, whereto and why
        first, *others = error.args[0]
        more = f", and {len(others)} more like it" if others else ""
        raise OSError(f"{first[-1]}{more}") from None
