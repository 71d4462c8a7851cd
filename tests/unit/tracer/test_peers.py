"""What the sampler keeps of TCP connections, from a kernel that is played: sums, small changes, too many, trouble."""

from __future__ import annotations

import errno
import json
import os
import threading
import time

import polars as pl
import pytest

from roundk.tracer import links, linkstore, peers, reader, rundir, sockdiag

OWN = "10.0.0.1"


def flow(peer, **fields):
    """A quiet connection to a peer."""
    quiet = dict.fromkeys(sockdiag.Flow._fields, 0)
    quiet |= {"local_address": OWN, "peer_address": peer, "state": "established", "is_probing": False}
    return sockdiag.Flow(**{**quiet, "rtt_us": 100, "min_rtt_us": 50, **fields})


class Kernel:
    """Stands in for `SockDiag`: the connections that it is given."""

    def __init__(self):
        self.told, self.is_cut, self.error, self.asked = [], False, None, 0

    def flows(self):
        self.asked += 1
        if self.error:
            raise self.error
        return list(self.told)

    def close(self):
        pass


class Host:
    """A host whose connections are sampled when it is told to."""

    def __init__(self, run, kernel):
        self.run, self.kernel = run, kernel
        self.store = linkstore.Store(rundir.prepare(str(run)))
        self.peers = peers.Peers(self.store)

    def look(self, *flows, error=None, is_cut=False):
        self.kernel.told, self.kernel.error, self.kernel.is_cut = flows, error, is_cut
        begin_ns = time.time_ns()
        self.peers.read(self.store)
        return begin_ns, time.time_ns()

    def end(self):
        self.store.close("end")
        return reader.read_run(self.run)


@pytest.fixture
def kernel(monkeypatch):
    kernel = Kernel()
    monkeypatch.setattr(sockdiag, "SockDiag", lambda: kernel)
    return kernel


@pytest.fixture
def host(tmp_path, kernel):
    return Host(tmp_path / "run", kernel)


def told(run, counter, peer="10.0.0.2"):
    rows = pl.from_arrow(run.counters).filter(kind="peer", device=peer, counter=counter)
    return [row["value"] if row["is_read"] else "unreadable" for row in rows.to_dicts()]


def facts(run, kind):
    rows = pl.from_arrow(run.facts).filter(pl.col("kind") == kind).to_dicts()
    return [json.loads(row["fields"]) for row in rows]


def test_the_connections_to_one_address_are_taken_together(host):
    first = {"retrans_total": 3, "backoff": 2, "rtt_us": 400, "min_rtt_us": 80, "send_queue": 7, "notsent_bytes": 5}
    second = {"retrans_total": 4, "backoff": 6, "is_probing": True, "rtt_us": 90, "send_queue": 1, "reord_seen": 2}
    begin_ns, end_ns = host.look(
        flow("10.0.0.2", lost=1, bytes_acked=9, **first),
        flow("10.0.0.2", bytes_acked=4, **second),
        flow("10.0.0.3", recv_queue=9, reord_seen=None, rtt_us=None),
    )
    run = host.end()
    table = pl.from_arrow(run.counters)
    first = dict(table.filter(device="10.0.0.2").select("counter", "value").rows())
    assert first == {
        "flows": 2,
        "bytes_acked": 13,
        "retrans_total": 7,
        "reord_seen": 2,
        "lost": 1,
        "backoff": 2,
        "probe_backoff": 6,
        "rtt_us": 400,
        "min_rtt_us": 50,
        "send_queue": 8,
        "notsent_bytes": 5,
        "recv_queue": 0,
    }
    assert told(run, "recv_queue", "10.0.0.3") == [9]
    assert told(run, "reord_seen", "10.0.0.3") == told(run, "rtt_us", "10.0.0.3") == [], "not told, which is not 0"
    assert set(table["kind"]) == {"peer"}
    assert table["port"].null_count() == len(table)
    assert all(begin_ns <= time_ns <= end_ns for time_ns in table["time_ns"])


def test_a_peer_that_is_gone_has_no_connections_and_no_round_trips(host):
    host.look(flow("10.0.0.2", retrans_total=3, backoff=2, send_queue=7))
    host.look()
    host.look()
    host.look(flow("10.0.0.2", retrans_total=1))
    run = host.end()
    assert told(run, "flows") == [1, 0, 1]
    assert told(run, "backoff") == [2, 0, 0]
    assert told(run, "send_queue") == [7, 0, 0]
    assert told(run, "retrans_total") == [3, 0, 1]
    assert told(run, "rtt_us") == [100, "unreadable", 100]


@pytest.mark.parametrize(
    ("counter", "values", "stored"),
    [
        ("rtt_us", [1000, 1099, 1100, 1101, 1000, 990, None, 990], [1000, 1101, 990, "unreadable", 990]),
        ("send_queue", [0, 10, 14, 15, 16, 9, 7, 0, 0], [0, 10, 16, 7, 0]),
        ("retrans_total", [5, 5, 6, 2], [5, 6, 2]),
        ("backoff", [0, 1, 1, 2, 0], [0, 1, 2, 0]),
    ],
)
def test_small_changes_of_what_is_never_the_same_are_left_out(host, counter, values, stored):
    for value in values:
        host.look(flow("10.0.0.2", **{counter: value}))
    assert told(host.end(), counter) == stored


def test_of_many_peers_those_with_most_bytes_are_kept(host, monkeypatch):
    monkeypatch.setattr(peers, "MOST_PEERS", 2)
    host.look(flow("a", bytes_acked=5), flow("b", bytes_acked=9), flow("c", bytes_received=7))
    host.look(flow("a", bytes_acked=8), flow("b", bytes_acked=9), flow("c", bytes_received=7))
    host.look(flow("a", bytes_acked=8), flow("b", bytes_acked=9), flow("c", bytes_received=7))
    host.look(flow("a", bytes_acked=8), flow("c", bytes_received=7))
    run = host.end()
    assert told(run, "flows", "a") == [1]
    assert told(run, "flows", "b") == [1, 0]
    assert told(run, "flows", "c") == [1, "unreadable", 1], "it has connections that nobody looked at"


def test_what_the_kernel_does_not_answer_is_not_zero_and_told_once(host):
    host.look(flow("10.0.0.2", backoff=3))
    for _ in range(2):
        host.look(error=OSError(errno.EPERM, "no"))
    host.look(flow("10.0.0.2", backoff=3))
    run = host.end()
    assert told(run, "backoff") == [3, "unreadable", 3]
    assert [fact["what"] for fact in facts(run, "links_unreadable")] == ["TCP connections"]


def test_a_peer_that_may_be_among_connections_left_out_is_not_gone(host):
    host.look(flow("10.0.0.2"))
    host.look(is_cut=True)
    run = host.end()
    assert told(run, "flows") == [1, "unreadable"]
    assert len(facts(run, "links_unreadable")) == 1


def test_peers_without_end_do_not_use_up_the_counters(host, monkeypatch):
    monkeypatch.setattr(peers, "_MOST_EVER", 3)
    for number in range(6):
        host.look(flow(f"10.1.0.{number}"))
    run = host.end()
    assert set(pl.from_arrow(run.counters)["device"]) == {"10.1.0.0", "10.1.0.1", "10.1.0.2"}
    assert len(facts(run, "links_unreadable")) == 1


def test_a_new_segment_has_the_values_that_have_not_changed(host):
    host.look(flow("10.0.0.2", retrans_total=4))
    host.store._next = host.store._rows
    host.look(flow("10.0.0.2", retrans_total=4, backoff=1))
    host.look(flow("10.0.0.2", retrans_total=4, backoff=1))
    run = host.end()
    assert told(run, "retrans_total") == [4, 4]
    assert told(run, "backoff") == [0, 1, 1]


def test_each_address_of_the_host_is_told_once(host):
    for _ in range(2):
        host.look(flow("10.0.0.2"), flow("10.0.0.3", local_address="fd00::1"), flow("10.0.0.4"))
    for _ in range(2):
        host.peers.tell_addresses(host.store, ["10.9.9.9", OWN], is_used=True)
    run = host.end()
    assert [(fact["address"], fact["is_used"]) for fact in facts(run, "host_address")] == [
        (OWN, False),
        ("fd00::1", False),
        (OWN, True),
        ("10.9.9.9", True),
    ]


class Busy(Kernel):
    """A new retransmission at every look."""

    def flows(self):
        self.asked += 1
        return [flow("10.0.0.2", retrans_total=self.asked)]


@pytest.fixture
def busy(monkeypatch):
    kernel = Busy()
    monkeypatch.setattr(sockdiag, "SockDiag", lambda: kernel)
    return kernel


def sampled(run, seconds, *, waits_s=0.0, **options):
    folder = rundir.prepare(str(run))
    sampler = links.Sampler(folder, **options)
    _, file = rundir.side_file(folder, 0)
    file.append({"kind": "process", "rank": 0, "network": {}})
    file.renew(time.time_ns(), time.time_ns() - int(waits_s * 1e9) if waits_s else 0)
    stop, hold = os.pipe()
    sampling = threading.Thread(target=sampler.run, args=(stop,))
    sampling.start()
    time.sleep(seconds)
    os.close(hold)
    sampling.join()
    sampler.close()
    return reader.read_run(run)


def test_connections_are_looked_at_more_often_while_a_call_is_stalled(tmp_path, busy):
    seen = [len(told(sampled(tmp_path / str(waits_s), 1.5, waits_s=waits_s), "retrans_total")) for waits_s in (0, 5)]
    assert seen[1] > 2 * seen[0] > 0


def test_what_has_not_changed_was_looked_at_to_the_end(tmp_path, busy):
    run = sampled(tmp_path / "run", 2.5)
    rows = pl.from_arrow(run.counters).filter(kind="peer")
    ends = {name: rows.filter(counter=name)["time_ns"].max() for name in ("retrans_total", "flows")}
    assert busy.asked > 2
    assert abs(ends["flows"] - ends["retrans_total"]) < 10**8, "the last look covers both"
    assert told(run, "flows") == [1, 1]


def test_a_recorded_tree_has_no_connections(tmp_path, busy):
    sampled(tmp_path / "run", 0.3, sysfs_root=str(tmp_path / "sys"))
    assert busy.asked == 0
