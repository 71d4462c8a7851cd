"""The line of a rank's settings and versions."""

from __future__ import annotations

import json

import pytest
import torch

import roundk
from roundk.hooks import config, failsafe, settings
from roundk.tracer import side


def line():
    return settings.line(config.Config("run", 64, 12.5))


def test_variables_versions_and_own_options(monkeypatch):
    monkeypatch.setenv("NCCL_IB_TIMEOUT", "22")
    monkeypatch.setenv("NCCL_AUTH_TOKEN", "hunter2")
    told = line()
    assert told["settings"]["NCCL_IB_TIMEOUT"] == "22"
    assert told["recorder"] == {"--max-mb": "64", "--stall-s": "12.5"}
    assert told["versions"]["roundk"] == roundk.__version__
    assert told["versions"].get("cuda") == torch.version.cuda
    assert "hunter2" not in json.dumps(told)


def test_it_fits_into_a_side_file_s_first_bytes(monkeypatch):
    for number in range(200):
        monkeypatch.setenv(f"NCCL_{number}", '"' * 400)
    assert len(side.encode(line())) < 16_384 - 1_024


@pytest.mark.parametrize(
    ("number", "version"), [((2 << 32) | (27 << 16) | 5, "2.27.5"), ((2 << 32) | (9 << 16), "2.9.0")]
)
def test_the_version_of_nccl(monkeypatch, number, version):
    monkeypatch.setattr(torch._C, "_nccl_version", lambda: number, raising=False)
    assert line()["versions"]["nccl"] == version


def test_a_torch_that_cannot_tell_the_version_of_nccl(monkeypatch):
    def fail():
        raise RuntimeError("no NCCL here")

    monkeypatch.setattr(torch._C, "_nccl_version", fail, raising=False)
    assert "nccl" not in line()["versions"]
    assert failsafe.errors == 0
