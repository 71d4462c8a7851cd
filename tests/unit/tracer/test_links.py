"""The sampler of links on synthetic trees: it stores what the files said, and tells what it could not read."""

from __future__ import annotations

import json
import os
import pathlib
import struct
import threading
import time

import polars as pl
import pyarrow as pa
import pytest
import sysfs_tree

from roundk.tracer import (
    kmsg,
    links,
    linkstore,
    make_template,
    netlink,
    pacing,
    ports,
    reader,
    ring,
    rundir,
    schema,
    side,
    template,
    words,
)


class Host:
    """A synthetic host: its tree, and a sampler that reads it when it is told to."""

    def __init__(self, root, **options):
        self.sys, self.proc, self.run = root / "sys", root / "proc", root / "run"
        self.options = options
        self.sampler = None

    def begin(self):
        folder = rundir.prepare(str(self.run))
        self.sampler = links.Sampler(folder, sysfs_root=str(self.sys), **self.options)
        self.sampler._begin()
        self.look()
        return self

    def look(self):
        """One round of everything; the times of its begin and its end."""
        begin_ns = time.time_ns()
        gone = [one.read(self.sampler._store) for one in self.sampler._rounds]
        if any(gone):
            self.sampler._scan()
        return begin_ns, time.time_ns()

    def end(self):
        self.sampler.close()
        return reader.read_run(self.run)


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def counters(run):
    return pl.from_arrow(run.counters)


def told(run, counter, device=None, port=None):
    """What was told of a counter, in order: its value, its word, or `unreadable`."""
    rows = counters(run).filter(pl.col("counter") == counter)
    rows = rows if device is None else rows.filter(pl.col("device") == device)
    rows = rows if port is None else rows.filter(pl.col("port") == port)
    return ["unreadable" if not row["is_read"] else row["word"] or row["value"] for row in rows.to_dicts()]


def facts(run, kind):
    rows = pl.from_arrow(run.facts).filter(pl.col("kind") == kind).to_dicts()
    return [json.loads(row["fields"]) for row in rows]


@pytest.mark.parametrize("rows", make_template.SEGMENT_ROWS)
def test_template_is_what_pyarrow_writes_for_the_schema(rows, tmp_path):
    path = tmp_path / "made.arrow"
    ring.created(str(path), rows, template.LINK_SEGMENTS[rows])
    assert path.read_bytes() == make_template.segment_bytes(rows, schema.LINK_RING)
    assert [name for name, _, _ in template.LINK_SEGMENTS[rows].columns] == schema.LINK_RING.names


def test_counters_and_words_are_those_of_the_files(host):
    sysfs_tree.add_netdev(host.sys, "eth0", mtu="9000", carrier_changes="6", carrier_down_count="3")
    sysfs_tree.add_port(host.sys, "mlx5_0", 1)
    (host.sys / "class/infiniband/mlx5_0/ports/1/counters/port_xmit_data").write_text("9223372036854775000\n")
    (host.sys / "class/infiniband/mlx5_0/hw_counters").mkdir()
    (host.sys / "class/infiniband/mlx5_0/hw_counters/odp_faults").write_text("7\n")
    sysfs_tree.set_tcp(host.proc, out=1000, retransmitted=3, timeouts=2)
    run = host.begin().end()
    table = counters(run)
    assert run.counters.schema == schema.COUNTERS
    assert table.equals(table.sort("host", "device", "port", "counter", "time_ns", maintain_order=True))
    kinds = dict(table.group_by("kind").agg(pl.col("counter").n_unique()).iter_rows())
    assert kinds == {
        "netdev": len(sysfs_tree.NET) + len(sysfs_tree.STATISTICS),
        "ib": len(sysfs_tree.PORT) + len(sysfs_tree.COUNTERS) + len(sysfs_tree.HW_COUNTERS) + 1,
        "tcp": len(["OutNoRoutes", "FragFails", "InDestUnreachs", "OutSegs", "RetransSegs", "InCsumErrors"])
        + len(["TCPTimeouts", "TCPLostRetransmit"]),
    }
    assert {name: told(run, name)[0] for name in ("mtu", "carrier_changes", "carrier_down_count", "operstate")} == {
        "mtu": 9000,
        "carrier_changes": 6,
        "carrier_down_count": 3,
        "operstate": "up",
    }
    assert told(run, "state", "mlx5_0", 1)[0] == "4: ACTIVE"
    assert told(run, "rate", "mlx5_0", 1)[0] == "400 Gb/sec (4X NDR)"
    assert told(run, "port_xmit_data")[0] == 9_223_372_036_854_775_000
    assert told(run, "odp_faults")[0] == 7
    assert [told(run, name)[0] for name in ("OutSegs", "RetransSegs", "TCPTimeouts")] == [1000, 3, 2]
    assert told(run, "InCsumErrors")[0] == 0, "that of Tcp, not of Icmp, which is 7"
    assert "lifespan" not in table["counter"].to_list()


def test_a_wrapped_counter_is_stored_as_it_is(host):
    folder = sysfs_tree.add_port(host.sys, "mlx5_0", 1)
    file = folder / "counters/port_xmit_wait"
    for number, value in enumerate([4_294_967_290, 4_294_967_295, 3]):
        file.write_text(f"{value}\n")
        host.look() if number else host.begin()
    values = told(host.end(), "port_xmit_wait")
    assert sorted(set(values), key=values.index) == [4_294_967_290, 4_294_967_295, 3]


def test_what_cannot_be_read_is_not_zero(host):
    folder = sysfs_tree.add_port(host.sys, "mlx5_0", 1)
    (folder / "counters/symbol_error").unlink()
    (folder / "counters/symbol_error").mkdir()  # reading it fails, as a driver's EINVAL does
    (folder / "counters/link_error_recovery").write_text("N/A (no PMA)\n")
    (folder / "counters/port_rcv_errors").write_text("")
    sysfs_tree.add_netdev(host.sys, "eth0", speed="-1")
    run = host.begin().end()
    for name in ("symbol_error", "link_error_recovery", "port_rcv_errors", "speed"):
        assert set(told(run, name)) == {"unreadable"}, name
    assert set(told(run, "link_downed")) == {0}
    assert counters(run).filter(~pl.col("is_read"))["value"].null_count() == len(
        counters(run).filter(~pl.col("is_read"))
    )
    assert [fact["what"] for fact in facts(run, "links_unreadable")] == ["tcp"], "there is no /proc beside this tree"


def test_what_becomes_readable_and_unreadable_again(host):
    folder = sysfs_tree.add_netdev(host.sys, "eth0")
    host.begin()
    (folder / "carrier").write_text("\n")
    host.look()
    (folder / "carrier").write_text("0\n")
    host.look()
    values = told(host.end(), "carrier")
    assert [value for value, before in zip(values, [None, *values], strict=False) if value != before] == [
        1,
        "unreadable",
        0,
    ]


def test_the_time_of_a_sample_is_that_of_its_reading(host):
    folder = sysfs_tree.add_port(host.sys, "mlx5_0", 1, lifespan_ms=25)
    host.begin()
    for name in ("counters/port_rcv_data", "hw_counters/np_cnp_sent"):
        (folder / name).write_text("1\n")
    begin_ns, end_ns = host.look()
    rows = counters(host.end()).filter(pl.col("value") == 1, pl.col("error_ns") > 0)
    for name, lag_ns in (("port_rcv_data", 0), ("np_cnp_sent", 25_000_000)):
        [row] = rows.filter(pl.col("counter") == name).to_dicts()
        assert begin_ns <= row["time_ns"] <= end_ns
        assert lag_ns <= row["error_ns"] <= lag_ns + end_ns - begin_ns
        assert row["time_ns"] - row["error_ns"] + lag_ns >= begin_ns - 1


def test_unchanged_is_told_apart_from_not_looked_at(host):
    sysfs_tree.add_netdev(host.sys, "eth0")
    folder = sysfs_tree.add_netdev(host.sys, "eth1")
    host.begin()
    times = [host.look() for _ in range(3)]
    (folder / "statistics/rx_errors").write_text("5\n")
    changed = host.look()
    (host.sys / "class/net/eth0").rename(host.sys / "eth0-is-gone")
    host.sampler._scan()
    last = [host.look() for _ in range(2)][-1]
    run = host.end()
    rows = counters(run)
    of = {
        (device, name): rows.filter(pl.col("device") == device, pl.col("counter") == name)
        .select("time_ns", "value")
        .rows()
        for device, name in (("eth0", "rx_errors"), ("eth1", "rx_errors"), ("eth1", "tx_errors"))
    }
    first, before, after, end = of["eth1", "rx_errors"]
    assert [row[1] for row in (first, before, after, end)] == [0, 0, 5, 5]
    assert times[-1][0] <= before[0] <= times[-1][1], "the last look at which it was still 0"
    assert changed[0] <= after[0] <= changed[1]
    assert last[0] <= end[0] <= last[1]
    assert [row[1] for row in of["eth1", "tx_errors"]] == [0, 0]
    assert last[0] <= of["eth1", "tx_errors"][-1][0] <= last[1]
    assert changed[0] <= of["eth0", "rx_errors"][-1][0] <= changed[1], "nobody looked at it after that"


def test_the_samples_of_two_samplers_of_one_host_are_in_order(host):
    sysfs_tree.add_netdev(host.sys, "eth0")
    sysfs_tree.add_port(host.sys, "mlx5_0", 1)
    (host.sys / "class/infiniband/mlx5_0/hw_counters").mkdir()
    (host.sys / "class/infiniband/mlx5_0/hw_counters/rx_write_requests").write_text("7\n")
    other = Host(host.run.parent)
    for one in (host, other):
        one.begin().sampler.close()
    table = counters(reader.read_run(host.run))
    assert table["source"].n_unique() == 2
    assert table.equals(table.sort("host", "device", "port", "counter", "time_ns", maintain_order=True))


def test_devices_come_and_go(host):
    sysfs_tree.add_netdev(host.sys, "eth0")
    host.begin()
    folder = sysfs_tree.add_netdev(host.sys, "eth1", carrier_changes="0")
    host.sampler._scan()
    host.look()
    folder.rename(host.sys / "away")
    host.sampler._scan()
    host.look()
    (host.sys / "away").rename(folder)
    (folder / "carrier_changes").write_text("8\n")
    host.sampler._scan()
    host.look()
    (host.sys / "class/net/bonding_masters").write_text("bond0\n")
    host.sampler._scan()
    values = told(host.end(), "carrier_changes", "eth1")
    assert sorted(set(values), key=values.index) == [0, 8]


def test_a_port_that_goes_down_is_an_event(host):
    folder = sysfs_tree.add_port(host.sys, "mlx5_0", 1)
    sysfs_tree.add_port(host.sys, "mlx5_1", 1, state="1: DOWN")
    host.begin()
    host.look()
    (folder / "state").write_text("1: DOWN\n")
    (folder / "counters/link_downed").write_text("1\n")
    host.look()
    (folder / "state").write_text("4: ACTIVE\n")
    host.look()
    events = [
        (fact["device"], fact["port"], fact["state"], fact["is_up"]) for fact in facts(host.end(), "ib_port_event")
    ]
    assert events == [("mlx5_0", 1, "1: DOWN", False), ("mlx5_0", 1, "4: ACTIVE", True)]


# Which ports the job uses


@pytest.mark.parametrize(
    ("setting", "chosen"),
    [  # NCCL's own documentation of NCCL_SOCKET_IFNAME: beginnings, `=` whole names, `^` left out, `^=` both
        ("eth", ["eth0", "eth1", "eth10"]),
        ("=eth0", ["eth0"]),
        ("=eth1,ib0", ["eth1", "ib0"]),
        ("^eth", ["docker0", "ib0"]),
        ("^=eth1,docker0", ["eth0", "eth10", "ib0"]),
        ("eth1", ["eth1", "eth10"]),
        ("wlan", []),
    ],
)
def test_netdevs_by_nccls_setting(setting, chosen):
    devices = ["docker0", "eth0", "eth1", "eth10", "ib0"]
    found = ports.by_settings({"NCCL_SOCKET_IFNAME": setting}, devices, [])
    assert [(used.device, used.by) for used in found] == [(device, "NCCL_SOCKET_IFNAME") for device in chosen]


@pytest.mark.parametrize(
    ("setting", "chosen"),
    [
        ("mlx5", [("mlx5_0", 1), ("mlx5_1", 1), ("mlx5_1", 2), ("mlx5_10", 1)]),
        ("=mlx5_1", [("mlx5_1", 1), ("mlx5_1", 2)]),
        ("=mlx5_0:1,mlx5_1:2", [("mlx5_0", 1), ("mlx5_1", 2)]),
        ("^mlx5_1", [("mlx5_0", 1)]),
        ("^=mlx5_1:1", [("mlx5_0", 1), ("mlx5_1", 2), ("mlx5_10", 1)]),
    ],
)
def test_hcas_by_nccls_setting(setting, chosen):
    hcas = [("mlx5_0", 1), ("mlx5_1", 1), ("mlx5_1", 2), ("mlx5_10", 1)]
    found = ports.by_settings({"NCCL_IB_HCA": setting}, [], hcas)
    assert [(used.device, used.port) for used in found] == chosen


def test_gloo_takes_whole_names():
    found = ports.by_settings({"GLOO_SOCKET_IFNAME": "eth1,ib0"}, ["eth1", "eth10", "ib0"], [])
    assert [used.device for used in found] == ["eth1", "ib0"]


def rank(host, waits_s=0.0, **network):
    """A rank's side file, which says since when it waits."""
    _, file = rundir.side_file(rundir.prepare(str(host.run)), 0)
    file.append({"kind": "process", "rank": 0, "network": network})
    file.renew(time.time_ns(), time.time_ns() - int(waits_s * 1e9) if waits_s else 0)
    return file


def test_the_ports_of_the_ranks_are_told(host):
    for name in ("eth0", "eth1"):
        sysfs_tree.add_netdev(host.sys, name)
    sysfs_tree.add_port(host.sys, "mlx5_0", 1)
    host.begin()
    rank(host, GLOO_SOCKET_IFNAME="eth1", NCCL_IB_HCA="mlx5", MASTER_ADDR="node-that-is-not-asked-for")
    host.sampler._look(time.monotonic())
    host.sampler._scan()
    run = host.end()
    assert sorted(facts(run, "port_used"), key=lambda fact: fact["device"]) == [
        {"kind": "netdev", "device": "eth1", "by": "GLOO_SOCKET_IFNAME"},
        {"kind": "ib", "device": "mlx5_0", "port": 1, "by": "NCCL_IB_HCA"},
    ]
    assert facts(run, "links_unreadable")[1:] == [], "routes of this machine are not asked for a recorded tree"


def test_a_rank_of_an_earlier_job_is_not_asked(host):
    sysfs_tree.add_netdev(host.sys, "eth0")
    rank(host, waits_s=1, GLOO_SOCKET_IFNAME="eth0").renew(time.time_ns() - 60 * 10**9, 1)
    host.begin()
    assert host.sampler._ranks.look() == (None, [])
    host.end()


def seen(host, seconds):
    """How often a counter of eth0 that moves all the time was found moved, in that time."""
    path = host.sys / "class/net/eth0/statistics/tx_bytes"
    stop, hold = os.pipe()
    sampling = threading.Thread(target=host.sampler.run, args=(stop,))
    sampling.start()
    until = time.monotonic() + seconds
    with path.open("r+") as file:
        while time.monotonic() < until:
            os.pwrite(file.fileno(), f"{time.monotonic_ns()}\n".encode(), 0)
            time.sleep(0.002)
    os.close(hold)
    sampling.join()
    return counters(host.end()).filter(pl.col("counter") == "tx_bytes", pl.col("error_ns") > 0).height


def test_the_jobs_ports_are_looked_at_more_often_while_a_call_is_stalled(tmp_path):
    found = {}
    for waits_s in (0.0, 0.2, 5.0):
        host = Host(tmp_path / str(waits_s))
        sysfs_tree.add_netdev(host.sys, "eth0")
        folder = rundir.prepare(str(host.run))
        host.sampler = links.Sampler(folder, sysfs_root=str(host.sys))
        rank(host, waits_s=waits_s, GLOO_SOCKET_IFNAME="eth0")
        found[waits_s] = seen(host, 0.7)
    assert found[5.0] > 5 * found[0.0]
    assert found[0.2] <= found[0.0] + 1, "it has not waited long"


def test_the_time_of_fast_reading_is_limited(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(pacing.time, "monotonic", lambda: now[0])
    credit, fast = pacing.Credit(), 0
    for _ in range(4 * 3600):
        now[0] += 1
        fast += credit.may(wanted=True)
    assert pacing.CREDIT_S <= fast <= pacing.CREDIT_S + pacing.EARNED * 4 * 3600
    for _ in range(60):
        now[0] += 1
        assert not credit.may(wanted=False)
    now[0] += 1
    assert credit.may(wanted=True)


# Files


def test_the_oldest_samples_are_deleted_and_every_counter_is_still_there(host, monkeypatch):
    monkeypatch.setattr(linkstore, "_LATER_ROWS", linkstore._FIRST_ROWS)
    size = template.LINK_SEGMENTS[linkstore._FIRST_ROWS].size
    host.options["max_bytes"] = 3 * size
    folder = sysfs_tree.add_netdev(host.sys, "eth0")
    host.begin()
    [moving] = [one for one in host.sampler._steady.readings if one.names == ["rx_bytes"]]
    with (folder / "statistics/rx_bytes").open("r+") as file:
        for value in range(18_000):
            os.pwrite(file.fileno(), b"%d\n" % value, 0)
            moving.read(host.sampler._store) if value % 1_000 else host.look()
    host.look()
    files = sorted(host.run.glob("*/links-*.arrow"))
    assert len(files) <= 3
    assert sum(path.stat().st_size for path in files) <= 3 * size
    run = host.end()
    assert run.unreadable == ()
    values = told(run, "rx_bytes")
    assert values[-1] == 17_999
    assert values[0] > 0
    assert len(set(values)) > 6_000
    assert set(counters(run)["counter"]) >= {*sysfs_tree.NET, *sysfs_tree.STATISTICS}


def files_of_a_run(host):
    folder = sysfs_tree.add_netdev(host.sys, "eth0")
    host.begin()
    (folder / "statistics/rx_bytes").write_text("77\n")
    host.look()
    host.end()
    [segment] = host.run.glob("*/links-*.arrow")
    [lines] = host.run.glob("*/links-*.jsonl")
    return segment, lines


@pytest.mark.parametrize("size", [0, 100, 3_000, 60_000, 119_000])
def test_a_segment_that_was_cut_short_loses_nothing_else(host, size):
    segment, _ = files_of_a_run(host)
    other = Host(host.run.parent / "other")
    other.run = host.run
    sysfs_tree.add_netdev(other.sys, "eth9")
    other.begin()
    other.end()
    whole = len(counters(reader.read_run(host.run)).filter(pl.col("device") == "eth9"))
    os.truncate(segment, size)
    run = reader.read_run(host.run)
    assert [problem.path for problem in run.unreadable] == [str(segment.relative_to(host.run))]
    assert len(counters(run).filter(pl.col("device") == "eth9")) == whole > 0


@pytest.mark.parametrize("size", [0, 50, 400, 1_500])
def test_a_side_file_that_was_cut_short_loses_only_what_it_named(host, size):
    _, lines = files_of_a_run(host)
    os.truncate(lines, size)
    run = reader.read_run(host.run)
    assert run.counters.schema == schema.COUNTERS


def test_samples_of_an_earlier_run_in_the_directory_are_left_out(host):
    files_of_a_run(host)
    launcher = pathlib.Path(rundir.prepare(str(host.run))) / "launcher-1.jsonl"
    launcher.write_bytes(side.alive(time.time_ns()) + side.encode({"kind": "start", "time_ns": time.time_ns()}))
    assert len(counters(reader.read_run(host.run))) == 0


def test_no_space_ends_the_sampler_with_an_error_and_a_reason(host, monkeypatch):
    sysfs_tree.add_netdev(host.sys, "eth0")
    host.begin()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ring, "created", full)
    host.sampler._store._next = host.sampler._store._rows
    with pytest.raises(OSError, match="No space"):
        host.sampler._store.sample(1, 1, 2, 1, 1)
    host.sampler.close("No space left on device")
    assert facts(reader.read_run(host.run), "sampler_off") == [{"why": "No space left on device"}]


def test_an_xid_of_the_kernels_log():
    since_boot_us = (time.monotonic_ns() - 5 * 10**9) // 1000
    text = "NVRM: Xid (PCI:0000:dc:00): 79, pid=1818990, name=python3, GPU has fallen off the bus."
    found = kmsg._xid(f"3,1234,{since_boot_us},-;{text}\n SUBSYSTEM=pci\n".encode())
    assert (found.bus_id, found.number, found.is_switch, found.text) == ("0000:dc:00", 79, False, text)
    assert abs(found.time_ns - (time.time_ns() - 5 * 10**9)) < 10**9
    assert kmsg._xid(b"6,1,1,-;eth0: renamed from veth1\n") is None


def test_any_arrow_reader_opens_a_segment_while_it_is_written(host):
    sysfs_tree.add_netdev(host.sys, "eth0")
    host.begin()
    [segment] = host.run.glob("*/links-*.arrow")
    with pa.memory_map(str(segment)) as source:
        assert pa.ipc.open_file(source).schema.names == schema.LINK_RING.names
    assert pl.scan_ipc(segment).filter(pl.col("state") > 0).collect().height > 20
    host.end()


# Trees as no kernel should have them


def test_a_number_of_more_than_64_bits_is_unreadable_and_the_sampler_goes_on(host):
    folder = sysfs_tree.add_netdev(host.sys, "eth0")
    (folder / "statistics/rx_bytes").write_text(f"-{'9' * 30}\n")
    (folder / "statistics/tx_bytes").write_text(f"{2**63}\n")
    (folder / "statistics/rx_errors").write_text("9" * 4_090)
    sysfs_tree.set_tcp(host.proc, out=2**64, retransmitted=3, timeouts=2)
    run = host.begin().end()
    for name in ("rx_bytes", "tx_bytes", "rx_errors", "OutSegs"):
        assert set(told(run, name)) == {"unreadable"}, name
    assert [told(run, name)[0] for name in ("RetransSegs", "TCPTimeouts", "tx_errors")] == [3, 2, 0]
    assert run.unreadable == ()


def test_what_is_too_large_for_a_sample_is_stored_as_unreadable(host):
    host.begin()
    [number] = host.sampler._store.counters("peer", "10.0.0.1", None, ["bytes_acked"])
    host.sampler._store.sample(number, 1, 2, words.VALUE, 2**64 - 1)
    assert told(host.end(), "bytes_acked") == ["unreadable"]


@pytest.mark.parametrize("lifespan", ["9" * 30, "-10", "10001", "x", ""])
def test_a_lifespan_that_no_kernel_has_is_none(host, lifespan):
    folder = sysfs_tree.add_port(host.sys, "mlx5_0", 1)
    (folder / "hw_counters/lifespan").write_text(f"{lifespan}\n")
    rows = counters(host.begin().end()).filter(pl.col("counter") == "np_cnp_sent")
    assert 0 <= rows["error_ns"].max() < 10**9
    assert len(rows) > 0


def test_a_folder_that_is_no_port_is_left_out(host):
    folder = sysfs_tree.add_port(host.sys, "mlx5_0", 1)
    for name in ("99999999999", "01", "\N{ARABIC-INDIC DIGIT THREE}", "x"):
        (folder.parent / name).mkdir()
        (folder.parent / name / "state").write_text("4: ACTIVE\n")
    run = host.begin().end()
    assert set(counters(run).filter(pl.col("kind") == "ib")["port"]) == {1}
    assert run.unreadable == ()


def test_a_pipe_in_place_of_a_file_is_unreadable_and_nobody_waits_for_it(host):
    net, port = sysfs_tree.add_netdev(host.sys, "eth0"), sysfs_tree.add_port(host.sys, "mlx5_0", 1)
    (host.proc / "net").mkdir(parents=True)
    pipes = [
        *(net / "statistics/rx_bytes", net / "ifindex", net / "carrier"),
        *(port / "hw_counters/lifespan", port / "state", host.proc / "net/snmp"),
    ]
    for path in pipes:
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    sampling = threading.Thread(target=host.begin, daemon=True)
    sampling.start()
    sampling.join(timeout=20)
    assert not sampling.is_alive()
    run = host.end()
    for name in ("rx_bytes", "carrier", "state"):
        assert set(told(run, name)) == {"unreadable"}, name
    assert told(run, "tx_bytes")[0] == 0
    assert [fact["what"] for fact in facts(run, "links_unreadable")] == ["tcp"]


def test_a_device_whose_name_is_no_text_is_sampled_like_any(host):
    folder = sysfs_tree.add_netdev(host.sys, "eth0")
    sysfs_tree.add_netdev(host.sys, "od")
    (host.sys / "class/net/od").rename(host.sys / "class/net" / os.fsdecode(b"od\xfd"))
    host.begin()
    (folder / "statistics/rx_bytes").write_text("7\n")
    host.look()
    run = host.end()
    assert set(counters(run).filter(pl.col("kind") == "netdev")["device"]) == {"eth0", "od\\xfd"}
    assert set(told(run, "carrier", "od\\xfd")) == {1}


def test_the_kernels_events_spell_such_a_name_as_its_files_do():
    attribute = struct.pack("=HH", 4 + 4, 3) + b"od\xfd\0"  # IFLA_IFNAME of rtnetlink(7)
    link = netlink._link(16, struct.pack("=BxHiII", 0, 1, 7, 0x1, 0) + attribute)
    assert link.name == os.fsdecode(b"od\xfd")
