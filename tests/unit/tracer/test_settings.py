"""What is kept of a process's settings and versions, and how the reader tells them."""

from __future__ import annotations

import json
import pathlib

import pytest

from roundk.tracer import environment, reader, side, words

T0 = 1_795_000_000_000_000_000


def kept(**environ):
    return environment.settings(environ)[0]


def test_variables_of_the_network_and_of_torch_are_kept():
    environ = {
        "NCCL_IB_HCA": "mlx5_0",
        "TORCH_NCCL_BLOCKING_WAIT": "1",
        "GLOO_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": "8",
        "UCX_TLS": "tcp",
        "FI_PROVIDER": "efa",
        "LD_LIBRARY_PATH": "/opt/nccl/lib",
    }
    assert environment.settings({**environ, "HOME": "/root", "PATH": "/bin", "MY_NCCL_X": "1"}) == (environ, 0)


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_API_KEY",
        "TORCH_HUB_TOKEN",
        "UCX_SECRET",
        "FI_PASSWORD",
        "CUDA_Credentials",
        "NVIDIA_API_KEY",
        "OMPI_MCA_auth_user",
    ],
)
def test_a_name_that_sounds_like_a_secret_is_never_kept(name):
    assert environment.settings({name: "hunter2", "NCCL_DEBUG": "INFO"}) == ({"NCCL_DEBUG": "INFO"}, 0)


def test_a_value_with_a_password_in_it_is_not_kept():
    assert kept(TORCH_X="http://user:hunter2@proxy:3128/") == {"TORCH_X": environment.NOT_KEPT}
    assert kept(TORCH_X="http://proxy:3128/") == {"TORCH_X": "http://proxy:3128/"}


def test_a_long_value_is_cut():
    value = kept(UCX_TLS="x" * 10_000)["UCX_TLS"]
    assert (len(value), value[-4:]) == (environment.MOST_CHARACTERS, "x...")


def test_of_many_variables_those_of_nccl_are_kept_and_the_rest_counted():
    environ = {f"OMP_{number}": "x" * 100 for number in range(1000)} | {"NCCL_DEBUG": "WARN"}
    settings, left_out = environment.settings(environ)
    assert settings["NCCL_DEBUG"] == "WARN"
    assert len(settings) + left_out == 1001
    assert sum(len(name) + len(value) for name, value in settings.items()) <= environment.MOST_BYTES
    assert len(settings) > 50


def test_bytes_that_are_no_text_are_written_out():
    value = kept(NCCL_X=b"\xff!".decode(errors="surrogateescape"))["NCCL_X"]
    assert value.encode("utf-8").endswith(b"!")


def test_the_versions_of_this_host():
    versions = environment.host_versions()
    assert versions["kernel"] in pathlib.Path("/proc/version").read_text()


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024", "550.54.15"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build", "570.86.15"),
    ],
)
def test_the_gpu_driver_s_version(monkeypatch, line, version):
    monkeypatch.setattr(environment, "_first_bytes", lambda path: f"{line}\n" if "nvidia" in path else "")
    assert environment.host_versions()["nvidia driver"] == version


def rank_file(run, rank, environment_line=None, host="node-a", **header):
    folder = run / host
    folder.mkdir(parents=True, exist_ok=True)
    file = side.SideFile(str(folder / f"rank-{rank:05d}-{100 + rank}.jsonl"))
    told = {"kind": "process", "schema": words.SCHEMA_VERSION, "rank": rank, "world_size": 4, "host": host}
    file.append({**told, "pid": 100 + rank, "time_ns": T0, "python": "3.12.1", **header})
    if environment_line is not None:
        file.append({"kind": "environment", **environment_line})


def facts(run, kind):
    rows = reader.read_run(run).facts.to_pylist()
    found = (json.loads(row["fields"]) for row in rows if row["kind"] == kind)
    return {(one["name"], one["value"]): one.get("ranks", one.get("hosts")) for one in found}


def test_a_setting_is_one_fact_per_value_and_not_set_where_a_rank_has_none(tmp_path):
    for rank in range(4):
        settings = {"NCCL_DEBUG": "INFO"} | ({"NCCL_IB_HCA": "mlx5_1"} if rank == 2 else {})
        rank_file(tmp_path, rank, {"settings": settings, "versions": {"roundk": "1"}, "recorder": {"--max-mb": "9"}})
    assert facts(tmp_path, "setting") == {
        ("--max-mb", "9"): [[0, 3]],
        ("NCCL_DEBUG", "INFO"): [[0, 3]],
        ("NCCL_IB_HCA", "mlx5_1"): [[2, 2]],
        ("NCCL_IB_HCA", None): [[0, 1], [3, 3]],
    }
    assert facts(tmp_path, "version") == {("python", "3.12.1"): [[0, 3]], ("roundk", "1"): [[0, 3]]}


def test_an_older_recording_tells_what_it_has(tmp_path):
    network = {"GLOO_SOCKET_IFNAME": "eth0", "MASTER_ADDR": "node-a"}
    rank_file(tmp_path, 0, network=network, torch="2.7.0")
    assert facts(tmp_path, "setting") == {("GLOO_SOCKET_IFNAME", "eth0"): [[0, 0]]}
    assert facts(tmp_path, "version") == {("python", "3.12.1"): [[0, 0]], ("torch", "2.7.0"): [[0, 0]]}


def test_a_value_of_its_own_on_every_rank_stays_bounded(tmp_path):
    for rank in range(300):
        rank_file(tmp_path, rank, {"settings": {"UCX_TCP_PORT": str(rank)}})
    told = facts(tmp_path, "setting")
    assert len(told) == 257
    assert sum(last - first + 1 for ranks in told.values() for first, last in ranks) == 300


def test_versions_of_a_host_come_from_its_launcher(tmp_path):
    rank_file(tmp_path, 0)
    for host, kernel in (("node-a", "6.1"), ("node-b", "6.2")):
        (tmp_path / host).mkdir(exist_ok=True)
        line = {"kind": "start", "time_ns": T0 - 1, "command": ["x"], "versions": {"kernel": kernel}}
        (tmp_path / host / "launcher-7.jsonl").write_text(json.dumps(line) + "\n")
    assert facts(tmp_path, "version").items() >= {("kernel", "6.1"): ["node-a"], ("kernel", "6.2"): ["node-b"]}.items()
