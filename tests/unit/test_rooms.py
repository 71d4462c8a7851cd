"""What importing each room loads, seen in a process of its own. The import contracts are in pyproject.toml."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

SOURCE = pathlib.Path(__file__).parents[2] / "src" / "roundk"
WRITING_HALF = (
    "environment",
    "errors",
    "linkfiles",
    "links",
    "linkstore",
    "netlink",
    "ports",
    "ring",
    "rundir",
    "side",
    "sockdiag",
    "template",
    "words",
)
# The launcher's command line, and what is copied into jobs rather than imported.
NOT_IN_TRAINING = ("roundk.hooks.command", "roundk.hooks.shim")
HEAVY = ("click", "matplotlib", "numpy", "polars", "pyarrow", "torch")


def modules(room):
    """Every module of a room that runs in its kind of process, as found on disk."""
    files = (
        path.relative_to(SOURCE).with_suffix("") for path in (SOURCE / room).rglob("*.py") if path.parent.name != "shim"
    )
    names = (".".join(("roundk", *file.parts)).removesuffix(".__init__") for file in files)
    return sorted(name for name in names if not name.startswith(NOT_IN_TRAINING))


def output_of(code):
    """Lines that the code prints in a fresh process."""
    done = subprocess.run([sys.executable, "-c", f"import sys\n{code}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def loaded_by(code):
    """Top-level names of the modules in memory after the code ran."""
    return set(output_of(f"{code}\nprint(*{{name.partition('.')[0] for name in sys.modules}})")[-1].split())


def imports(names):
    return "\n".join(f"import {name}" for name in names)


def test_the_training_process_loads_the_standard_library_only():
    names = [*modules("hooks"), *(f"roundk.tracer.{name}" for name in WRITING_HALF)]
    assert len(names) > len(WRITING_HALF)
    foreign = loaded_by(imports(names)) - loaded_by("") - sys.stdlib_module_names
    assert foreign == {"roundk"}


def test_of_the_tracer_the_training_process_loads_the_writing_half_only():
    code = imports(modules("hooks")) + "\nprint(*(name for name in sys.modules if name.startswith('roundk.tracer.')))"
    assert set(output_of(code)[0].split()) <= {f"roundk.tracer.{name}" for name in WRITING_HALF}


def test_the_tracer_loads_no_torch_and_no_polars():
    assert loaded_by(imports(modules("tracer"))) & set(HEAVY) <= {"pyarrow", "numpy"}


def test_the_analysis_loads_no_torch_and_no_hooks():
    names = modules("analyze")
    code = imports(names) + "\nassert not any(name.startswith('roundk.hooks') for name in sys.modules)"
    assert "torch" not in loaded_by(code)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"]])
def test_help_is_quick_to_load(arguments):
    code = f"""
import contextlib, runpy
sys.argv = ["roundk", *{arguments!r}]
with contextlib.suppress(SystemExit):
    runpy.run_module("roundk", run_name="__main__")
"""
    assert loaded_by(code) & set(HEAVY) == {"click"}
