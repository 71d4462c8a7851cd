"""Real links: what `roundk run` records of network devices that go up and down, and what becomes of its sampler."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import harness
import polars as pl
import pyarrow as pa
import pytest

from roundk.tracer import rundir, words
from roundk.tracer.reader import read_run

PYTHON = sys.executable
FLAP_S = 0.05
HOST, PEER = "10.219.7.1", "10.219.7.2"


def ip(*arguments):
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"ip {' '.join(arguments)}: {done.stderr}")


@pytest.fixture
def namespaces():
    """Two network namespaces with a cable between them, `eth0` at either end.

    The one in the second has another number, as it would at a switch: where both are the same, the kernel takes the
    device for one of its own kind and may keep an event back for a second.
    """
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    names = [f"roundk-{os.getpid()}-{side}" for side in ("host", "peer")]
    try:
        for name in names:
            try:
                ip("netns", "add", name)
            except AssertionError as error:
                pytest.skip(f"network namespaces cannot be made here: {error}")
        ip("-n", names[1], "link", "add", "spare0", "type", "veth", "peer", "name", "spare1")
        ip("-n", names[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for name, address in zip(names, (HOST, PEER), strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def inside(namespace, *command):
    return ["ip", "netns", "exec", namespace, *command]


def roundk(run, *command, options=()):
    return [*harness.ROUNDK, "run", "--dir", str(run), *options, "--", *command]


@contextlib.contextmanager
def sampled(command, run):
    """A running command, from the first samples on."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + harness.LIMIT_S
            while not any(row["state"] == words.LOOKED for row in rows(run)):
                assert time.monotonic() < until, "no samples"
                assert process.poll() is None, "the command ended before the first sample"
                time.sleep(0.02)
            yield process
        finally:
            process.kill()


def rows(run):
    """The rows that have been stored so far."""
    found = []
    for path in sorted(run.glob("*/links-*.arrow")):
        with pa.memory_map(str(path)) as source:
            found += [row for row in pa.ipc.open_file(source).read_all().to_pylist() if row["state"]]
    return found


def lines(run):
    [path] = run.glob("*/links-*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def facts(run, kind):
    found = pl.from_arrow(read_run(run).facts).filter(pl.col("kind") == kind)
    return [(row["time_ns"], json.loads(row["fields"])) for row in found.to_dicts()]


def delta(run, counter, device="eth0"):
    table = pl.from_arrow(read_run(run).counters)
    values = table.filter(pl.col("device") == device, pl.col("counter") == counter)["value"].to_list()
    return values[-1] - values[0]


def sampler_of(run):
    [path] = run.glob("*/links-*.jsonl")
    return int(path.stem.removeprefix("links-"))


def flapped(host, peer, run):
    """Run with the cable pulled twice for 50 ms; the times at which each command began, and the end of the last."""
    began = []
    with sampled(inside(host, *roundk(run, "sleep", "60")), run) as job:
        for state in ("down", "up", "down", "up"):
            began.append(time.time_ns())
            ip("-n", peer, "link", "set", "eth0", state)
            time.sleep(FLAP_S)
        began.append(time.time_ns())
        time.sleep(2.5)  # the kernel keeps an event back for a second at most, and a steady sample comes every second
        job.send_signal(signal.SIGTERM)
        job.wait(harness.LIMIT_S)
    return began


def test_flaps_shorter_than_any_sampling_have_their_times(namespaces, tmp_path):
    run = tmp_path / "run"
    began = flapped(*namespaces, run)
    events = [(time_ns, fact) for time_ns, fact in facts(run, "netdev_event") if fact["device"] == "eth0"]
    assert [fact["is_up"] for _, fact in events] == [False, True, False, True]
    assert [fact["changes"] for _, fact in events] == [1, 1, 1, 1]
    for (time_ns, _), before_ns, after_ns in zip(events, began, began[1:], strict=False):
        assert before_ns < time_ns < after_ns, "each belongs to its own command, 50 ms from the next"
    assert [delta(run, name) for name in ("carrier_changes", "carrier_down_count", "carrier_up_count")] == [4, 2, 2]
    assert facts(run, "sampler_gap") == []


def test_flaps_that_the_kernel_tells_at_once_are_counted(namespaces, tmp_path):
    host, peer = namespaces
    ip("-n", host, "link", "del", "eth0")
    at_peer = ("name", "eth0", "index", "71", "netns", peer)
    ip("-n", host, "link", "add", "eth0", "index", "71", "type", "veth", "peer", *at_peer)
    for name in namespaces:
        ip("-n", name, "link", "set", "eth0", "up")
    run = tmp_path / "run"
    flapped(host, peer, run)
    events = [fact for _, fact in facts(run, "netdev_event") if fact["device"] == "eth0"]
    assert sum(fact["changes"] for fact in events) == delta(run, "carrier_changes") == 4
    assert events[-1]["is_up"]


def test_a_device_that_is_switched_off_is_told_from_one_without_a_carrier(namespaces, tmp_path):
    host, _ = namespaces
    run = tmp_path / "run"
    with sampled(inside(host, *roundk(run, "sleep", "60")), run) as job:
        ip("-n", host, "link", "set", "eth0", "down")
        time.sleep(1.5)
        job.send_signal(signal.SIGTERM)
        job.wait(harness.LIMIT_S)
    ends = [(fact["is_up"], fact["is_admin_up"]) for _, fact in facts(run, "netdev_event")]
    assert ends[-1] == (False, False)
    carrier = pl.from_arrow(read_run(run).counters).filter(pl.col("device") == "eth0", pl.col("counter") == "carrier")
    assert carrier["is_read"].to_list()[-1] is False, "the kernel gives EINVAL, which is not 0"


def test_the_devices_of_another_namespace_are_never_taken_for_ones_own(namespaces, tmp_path):
    """A process moved to a namespace still has the old one's /sys, where another eth0 may be."""
    host, _ = namespaces
    if shutil.which("nsenter") is None:
        pytest.skip("needs nsenter")
    run = tmp_path / "run"
    command = ["nsenter", f"--net=/run/netns/{host}", *roundk(run, "sleep", "1.5")]
    subprocess.run(command, check=True, capture_output=True)
    assert [fact["what"] for _, fact in facts(run, "links_unreadable")] == ["netdev"]
    assert set(pl.from_arrow(read_run(run).counters)["kind"]) == {"tcp"}


ROUTES = """
from roundk.tracer import netlink
print(*(netlink.device_towards(address) for address in ("{peer}", "{host}", "127.0.0.1", "::1", "192.0.2.77")))
"""


def test_the_device_towards_an_address(namespaces):
    command = inside(namespaces[0], PYTHON, "-c", ROUTES.format(peer=PEER, host=HOST))
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["eth0", "eth0", "lo", "lo", "None"]


def test_every_run_has_its_links(tmp_path):
    run = tmp_path / "run"
    code = "import time; time.sleep(1.5)"
    done = subprocess.run(roundk(run, PYTHON, "-c", code, options=["--host-name", "node-7"]), check=False)
    assert done.returncode == 0
    assert [path.name for path in run.iterdir() if path.is_dir()] == ["node-7"]
    assert lines(run)[-1]["kind"] == "end"
    table = pl.from_arrow(read_run(run).counters)
    assert set(table["host"]) == {"node-7"}
    assert set(table["kind"]) >= {"netdev", "tcp"}
    shown = subprocess.run([*harness.ROUNDK, "show", str(run)], capture_output=True, text=True, check=True).stdout
    assert f"Counters         {table.height:,} rows" in shown


RANK = """
import sys
import torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
dist.barrier()
"""
FORWARDER = """
import json, os, pathlib, subprocess, sys
site = os.environ["PYTHONPATH"].split(os.pathsep)[0]
path = pathlib.Path(site, "config.json")
path.write_text(json.dumps(json.loads(path.read_text()) | json.loads(sys.argv[1])))
subprocess.run([sys.executable, "-c", *sys.argv[2:]], env={"PYTHONPATH": site}, check=True)
"""
"""A launcher that gives its worker PYTHONPATH only, and may have been moved to another machine."""


@pytest.mark.parametrize(("written", "host"), [({}, "node-7"), ({"machine": "another"}, rundir.host_name())])
def test_a_rank_that_is_given_pythonpath_only_keeps_the_hosts_name(tmp_path, written, host):
    run = tmp_path / "run"
    command = [PYTHON, "-c", FORWARDER, json.dumps(written), RANK, str(tmp_path / "store")]
    options = ["--host-name", "node-7", "--no-links"]
    subprocess.run(roundk(run, *command, options=options), check=True, capture_output=True)
    assert set(read_run(run).ranks["host"].to_pylist()) == {host}
    assert {path.parent.name for path in run.glob("*/rank-*")} == {host}


def test_links_can_be_left_out_and_read_from_elsewhere(tmp_path):
    run, tree = tmp_path / "run", tmp_path / "tree"
    subprocess.run(roundk(run, "true", options=["--no-links"]), check=True, capture_output=True)
    assert list(run.glob("*/links-*")) == []
    statistics = tree / "sys/class/net/eth7/statistics"
    statistics.mkdir(parents=True)
    (statistics / "rx_bytes").write_text("12\n")
    run = tmp_path / "other"
    options = ["--sysfs-root", str(tree / "sys")]
    subprocess.run(roundk(run, "sleep", "0.5", options=options), check=True, capture_output=True)
    table = pl.from_arrow(read_run(run).counters)
    assert set(table.select("device", "counter", "value").rows()) == {("eth7", "rx_bytes", 12)}


def test_a_killed_launcher_leaves_samples_that_can_be_read_and_no_sampler(tmp_path):
    run = tmp_path / "run"
    with sampled(roundk(run, "sleep", "60"), run) as job:
        pid = sampler_of(run)
        job.kill()
        job.wait()
        until = time.monotonic() + harness.LIMIT_S
        while pathlib.Path(f"/proc/{pid}").exists():
            assert time.monotonic() < until, "the sampler stays"
            time.sleep(0.02)
    found = read_run(run)
    assert found.unreadable == ()
    assert found.counters.num_rows > 20


def test_a_sampler_that_is_killed_takes_nothing_with_it(tmp_path):
    run = tmp_path / "run"
    command = roundk(run, PYTHON, "-c", "input(); print('done')")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as job:
        while not rows(run):
            time.sleep(0.02)
        os.kill(sampler_of(run), signal.SIGKILL)
        time.sleep(0.6)  # the launcher looks at it meanwhile
        out, err = job.communicate(b"\n")
    assert (job.returncode, out) == (0, b"done\n")
    assert err.count(b"links are no longer recorded; the job goes on") == 1
    assert read_run(run).counters.num_rows > 20


def test_a_time_without_samples_is_told(tmp_path):
    run = tmp_path / "run"
    stopped_s = 2.0
    with sampled(roundk(run, "sleep", "60"), run) as job:
        os.kill(sampler_of(run), signal.SIGSTOP)
        time.sleep(stopped_s)
        os.kill(sampler_of(run), signal.SIGCONT)
        time.sleep(1)
        job.send_signal(signal.SIGTERM)
        job.wait(harness.LIMIT_S)
    [(_, gap)] = facts(run, "sampler_gap")
    assert gap["for_ms"] > 1_000 * (stopped_s - 1.1), "all but the time to the round that was due"


FILES = """
import contextlib, os
for fd in os.listdir("/proc/self/fd"):
    with contextlib.suppress(OSError):  # that of the listing
        print(fd, os.readlink(f"/proc/self/fd/{fd}").partition(":")[0])
"""


def test_the_command_gets_no_file_of_the_sampler(tmp_path):
    listed = []
    for options in ([], ["--no-links"]):
        command = roundk(tmp_path / str(len(listed)), PYTHON, "-c", FILES, options=options)
        listed.append(subprocess.run(command, capture_output=True, check=True, stdin=subprocess.DEVNULL).stdout)
    assert listed[0] == listed[1]
    assert listed[0].startswith(b"0 ")


STALLING = """
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(8)
dist.all_reduce(x)
if dist.get_rank() == 1:
    time.sleep(4)
dist.all_reduce(x)
dist.destroy_process_group()
"""


def test_the_jobs_own_port_is_looked_at_closely_while_a_call_is_stalled(start, tmp_path):
    script, run = tmp_path / "stalling.py", tmp_path / "run"
    script.write_text(STALLING)
    job = start(harness.torchrun(script, ranks=2), dir=run, env={"GLOO_SOCKET_IFNAME": "lo"})
    assert job.wait().code == 0
    assert [fact for _, fact in facts(run, "port_used")] == [
        {"device": "lo", "by": "GLOO_SOCKET_IFNAME", "kind": "netdev"},
    ]
    said = lines(run)
    of_lo = [line for line in said if line["kind"] == "counters" and line["device"] == "lo"]
    own = {line["id"] + number for line in of_lo for number in range(len(line["names"]))}
    looks = {
        line["id"]: {number for start_, count in line["counters"] for number in range(start_, start_ + count)}
        for line in said
        if line["kind"] == "look"
    }
    looked = {row["value"] for row in rows(run) if row["state"] == words.LOOKED}
    closely = {look for look, counters in looks.items() if len(counters) > 1 and counters < own}
    assert looked & closely, "only the fast reading takes some counters of one device"
