"""What the wheel and the source distribution hold: the rooms are links in the checkout, and have to be files there."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[2]
ROOMS = ("tracer", "hooks", "analyze")


def build(kind, source, out):
    """Build with the setuptools that is installed: no network, nothing written into the checkout."""
    code = f"import setuptools.build_meta as backend; print(backend.build_{kind}({str(out)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out / done.stdout.splitlines()[-1]


def in_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The part of the checkout that the build reads, links kept."""
    copy = tmp_path_factory.mktemp("checkout") / "roundk"
    skip = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    for folder in ("src", *ROOMS):
        shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=skip)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def wanted(source):
    """Every Python file of the package and what the page is made of, under the names they are installed by."""
    files = [*(source / "src" / "roundk").glob("*.py")]
    named = {f"roundk/{path.name}" for path in files} | {"roundk/py.typed"}
    for room in ROOMS:
        for kind in ("*.py", "*.css", "*.js"):
            named |= {f"roundk/{path.relative_to(source)}" for path in (source / room).rglob(kind)}
    return named


def test_the_wheel_holds_the_three_rooms(source, wanted, tmp_path):
    assert in_wheel(build("wheel", source, tmp_path)) == wanted


def test_a_wheel_from_the_source_distribution_is_the_same(source, wanted, tmp_path):
    with tarfile.open(build("sdist", source, tmp_path)) as archive:
        assert not [member.name for member in archive if member.issym() or member.islnk()]
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert in_wheel(build("wheel", unpacked, tmp_path)) == wanted
