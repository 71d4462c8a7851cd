"""`roundk links`: when ports went down, which counters moved and how fast, what was quiet or not to be read."""

from __future__ import annotations

import json
import pathlib
import re
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from jobs import Job, S, ns, table

from roundk.analyze import diagnose
from roundk.analyze.case import build
from roundk.analyze.commands.links import command
from roundk.analyze.links.counted import counted, peers, stepped
from roundk.analyze.links.events import by_port
from roundk.analyze.links.lanes import chart
from roundk.analyze.links.plot import draw
from roundk.analyze.links.view import view
from roundk.analyze.links.windows import Cover, Window, windows
from roundk.analyze.output import links as text
from roundk.analyze.output import linksjson
from roundk.analyze.trace import Trace
from roundk.cli import group
from roundk.tracer import schema
from roundk.tracer.errors import RoundkError

SAMPLES = pathlib.Path(__file__).parents[3] / "sample_traces"
MB = 10**6


class Lab:
    """A rank on each host; counters and events of links given in seconds, on one clock with the calls."""

    def __init__(self, hosts=4, *, device="eth0", kind="netdev", port=None):
        self.job, self.facts, self.samples = Job(hosts), [], []
        self.hosts = [f"h{number}" for number in range(hosts)]
        for rank, host in enumerate(self.hosts):
            self.job.rank(rank, host=host)
            self.fact("port_used", host, 0, device=device, port=port, kind=kind, by="GLOO_SOCKET_IFNAME")
            self.fact("host_address", host, 0, address=f"10.0.0.{rank}")

    def fact(self, kind, host, at, /, text="", **fields):
        self.facts.append(
            {"time_ns": ns(at), "host": host, "rank": None, "kind": kind, "text": text, "fields": json.dumps(fields),
             "source": f"{host}/links-1.jsonl:1"}
        )  # fmt: skip
        return self

    def carrier(self, host, at, *, up, device="eth0"):
        said = f"{device} has {'a' if up else 'no'} carrier"
        return self.fact("netdev_event", host, at, said, device=device, is_up=up, is_admin_up=True)

    def count(self, host, counter, values, *, kind="tcp", device="", port=None, every=1.0, times=None, is_read=True):
        """Samples once a second from the beginning on; words for a state, None for what could not be read."""
        for number, value in enumerate(values):
            at = number * every if times is None else times[number]
            word = value if isinstance(value, str) else None
            self.samples.append(
                {"time_ns": None if at is None else ns(at), "error_ns": 1_000_000, "host": host, "kind": kind,
                 "device": device, "port": port, "counter": counter, "value": None if word else value, "word": word,
                 "is_read": is_read and value is not None, "source": f"{host}/links-1.jsonl"}
            )  # fmt: skip
        return self

    def eth(self, host, counter, values, device="eth0", **columns):
        return self.count(host, counter, values, kind="netdev", device=device, **columns)

    def ib(self, host, counter, values, device="mlx5_0", port=1, **columns):
        return self.count(host, counter, values, kind="ib", device=device, port=port, **columns)

    def moving(self, seconds, per_s=100 * MB):
        """Every host's eth0 takes and gives so many bytes each second."""
        for host in self.hosts:
            for counter in ("rx_bytes", "tx_bytes"):
                self.eth(host, counter, [per_s * number for number in range(seconds + 1)])
        return self

    def trace(self, **end):
        return replace(
            self.job.trace(**(end or {"alive": self.job.clock + 60})),
            facts=table(self.facts, schema.FACTS),
            counters=table(self.samples, schema.COUNTERS),
        )

    def seen(self, **end):
        case = build(self.trace(**end), now_ns=ns(self.job.clock + 60), stall_ns=30 * S)
        report = diagnose.report(case)
        return view(case, report), report

    def text(self, width=80):
        return text.render(*self.seen(), width=width)

    def line(self, *words, width=120):
        """The one line that has all these words."""
        rows = [line for line in self.text(width).splitlines() if line.startswith(" ")]
        found = [line for line in rows if all(word in line for word in words)]
        assert len(found) == 1, found
        return found[0]

    def hung(self):
        """Good rounds for about two seconds, then one that nobody leaves."""
        while self.job.clock < 2:
            self.job.round(lasts=0.1)
        self.job.hang(enter=2.0)
        return self


def moved(samples, *, bad=(), **columns):
    """What `counted` says of one counter; `bad`: begin and end of stuck rounds, in seconds."""
    lab = Lab().count("h0", "TCPTimeouts", samples, **columns)
    found = [Window(ns(begin), ns(end), is_stuck=True) for begin, end in bad]
    rows = counted(stepped(lab.trace(), Cover(found))).to_dicts()
    assert len(rows) == 1
    return rows[0]


# Events


def test_a_port_that_went_down_has_its_time_and_how_long_to_the_millisecond():
    lab = Lab().moving(5).carrier("h2", 1.234, up=False).carrier("h2", 2.237, up=True)
    line = lab.line("h2", "went down")
    assert line.split()[0] == "22:13:21.234"  # the jobs begin at 22:13:20 UTC
    assert "in use" in line
    assert "not in use" not in line
    assert "went down for 1.003 s, back 22:13:22.237" in line


def test_a_port_that_stays_down_and_one_that_the_job_does_not_use():
    lab = Lab().moving(5).carrier("h1", 2.5, up=False).carrier("h3", 1.0, up=False, device="eth1")
    assert "not seen to come back" in lab.line(" h1 ", "went down")
    assert "not in use" in lab.line(" h3 ", "went down")


def test_of_an_hca_with_two_ports_only_the_one_that_was_chosen_is_in_use():
    lab = Lab(device="mlx5_0", kind="ib", port=1).ib("h0", "port_xmit_data", [0, 4])
    lab.ib("h0", "port_xmit_data", [0, 4], port=2).ib("h1", "link_downed", [0, 1], port=2)
    links, _ = lab.seen()
    assert [(one.port, one.use) for one in links.ports] == [(1, "used"), (2, "unused")]
    assert [(one.port, one.use) for one in links.events] == [(2, "unused")]


def test_an_outage_whose_time_is_told_is_whole_in_the_bad_rounds():
    lab = Lab().hung().moving(9).carrier("h1", 2.4, up=False).carrier("h1", 2.9, up=True)
    lab.eth("h1", "carrier_down_count", [1, 1], times=[0, 1.5]).eth("h1", "carrier_down_count", [2], times=[2.5])
    assert lab.line("carrier_down_count", "h1 eth0").split()[-2:] == ["1", "1"]


def test_the_time_is_told_from_the_onset_too():
    lab = Lab().hung().moving(9).carrier("h1", 2.5, up=False)
    assert re.search(r"\+\d+ ms", lab.line("h1", "went down"))
    assert "after onset" in lab.text()


def test_what_only_a_counter_tells_lies_between_two_samples():
    lab = Lab(device="mlx5_0", kind="ib", port=1).ib("h1", "link_downed", [7, 7, 8, 8]).moving(4)
    line = lab.line("h1", "mlx5_0:1", "went down")
    assert "link_downed went up by 1, within the 1.0 s before" in line
    assert line.split()[0] == "22:13:22.000"


def test_states_that_a_port_passes_stand_with_its_outage():
    lab = Lab(device="mlx5_0", kind="ib", port=1).moving(4)
    for at, state, is_up in ((1.0, "1: DOWN", False), (1.5, "2: INIT", False), (1.75, "4: ACTIVE", True)):
        lab.fact("ib_port_event", "h1", at, "x", device="mlx5_0", port=1, state=state, is_up=is_up)
    assert "went down for 0.750 s, back 22:13:21.750 (DOWN, INIT, ACTIVE)" in lab.line("h1", "mlx5_0:1", "went down")


def test_a_change_of_mtu_or_rate_is_an_event():
    lab = Lab().moving(4).eth("h0", "mtu", [9000, 9000, 1500]).ib("h1", "rate", ["400 Gb/sec", "100 Gb/sec"])
    assert "mtu 9000 became 1500, within the 1.0 s before" in lab.line("h0", "became")
    assert "rate 400 Gb/sec became 100 Gb/sec" in lab.line("h1", "became")


def test_a_port_that_was_down_when_somebody_looked_did_not_go_down_then():
    lab = Lab().moving(2).fact("link_down", "h1", 1, "eth0 has no carrier", device="eth0", state="no carrier")
    assert "was down when it was read" in lab.line("h1", "down")


def test_a_port_that_flaps_all_the_time_has_one_line():
    lab = Lab().moving(60)
    for second in range(30):
        lab.carrier("h2", second, up=False).carrier("h2", second + 0.25, up=True)
    assert "went down 30 times until 22:13:49.000, 250 ms each" in lab.line("h2", "went down")


def test_counters_that_begin_anew_are_an_event_and_no_movement():
    lab = Lab().eth("h1", "rx_bytes", [500, 900, 10]).eth("h1", "tx_bytes", [500, 900, 5])
    assert "its counters began anew" in lab.line("h1", "anew")
    rows = {row["counter"]: row for row in lab.seen()[0].counters.to_dicts()}
    assert (rows["rx_bytes"]["moved"], rows["rx_bytes"]["resets"]) == (400, 1)


def test_one_number_that_falls_among_many_that_grow_is_no_new_beginning():
    lab = Lab().eth("h1", "rx_bytes", [5, 9, 20]).eth("h1", "tx_bytes", [5, 9, 15]).eth("h1", "queued", [9, 3, 7])
    assert lab.seen()[0].events == ()


# Numbers


def test_counts_and_rates_over_the_run_and_within_the_bad_rounds():
    # 2 a second for 4 s, then 10 a second for 2 s: 28 in 6 s, of which the bad rounds have the last 20.
    row = moved([0, 2, 4, 6, 8, 18, 28], bad=[(4, 6)])
    assert (row["moved"], row["run_ns"]) == (28, 6 * S)
    assert (row["inside"], row["covered_ns"]) == (20.0, 2 * S)


def test_what_was_counted_across_the_edge_of_a_bad_round_is_shared_by_time():
    row = moved([0, 0, 8, 8], bad=[(1.25, 1.75)])
    assert row["inside"] == pytest.approx(4.0)
    assert row["covered_ns"] == S // 2


def test_several_bad_rounds_add_up():
    row = moved([0, 10, 20, 30, 40, 50], bad=[(0, 1), (3, 4.5)])
    assert row["inside"] == pytest.approx(25.0)
    assert row["covered_ns"] == 2.5 * S


def test_bytes_that_flowed_until_the_moment_of_the_hang_do_not_count_as_flowing_in_it():
    lab = Lab().eth("h0", "rx_bytes", [0, 100, 200, 250, 250, 250, 250])
    row = counted(stepped(lab.trace(), Cover([Window(ns(2.5), ns(6), is_stuck=True)]))).to_dicts()[0]
    assert (row["inside"], row["covered_ns"]) == (0.0, 3 * S)


def test_a_counter_of_32_bits_that_wraps_goes_on():
    assert moved([4_294_967_000, 4_294_967_290, 200])["moved"] == 290 + 206


def test_a_counter_without_times_has_a_difference_and_no_rate():
    row = moved([7, 5], times=[None, None])
    assert (row["moved"], row["run_ns"], row["resets"]) == (2, None, 0)


def test_infiniband_counts_words_of_four_bytes():
    lab = Lab(device="mlx5_0", kind="ib", port=1)
    lab.ib("h0", "port_xmit_data", [0, 250 * MB]).ib("h0", "port_rcv_data", [0, 500 * MB])
    assert lab.line("h0", "mlx5_0:1", "GB/s").split()[-4:] == ["2.00", "GB/s", "1.00", "GB/s"]  # in, out


def test_throughput_of_the_ports_in_use_stands_beside_that_in_the_bad_rounds():
    lab = Lab().hung()
    for host in lab.hosts:
        for counter in ("rx_bytes", "tx_bytes"):
            lab.eth(host, counter, [0, 100 * MB, 200 * MB, *[200 * MB] * 8])
    told = lab.text().splitlines()
    row = next(line for line in told if line.startswith("  h3"))
    assert row.split() == ["h3", "eth0", "20.0", "MB/s", "20.0", "MB/s", "0", "0"]  # 200 MB in 10 s
    assert any("over the run" in line and "in stuck rounds" in line for line in told)


# What stands out, what is quiet, what is not known


def test_timeouts_stand_out_on_the_hosts_that_had_them_and_the_others_are_named_as_quiet():
    lab = Lab().moving(5).count("h1", "TCPTimeouts", [0, 0, 60, 60, 60, 60])
    for host in ("h0", "h2", "h3"):
        lab.count(host, "TCPTimeouts", [3] * 6)
    assert lab.line("TCPTimeouts", "h1", "60 (12/s)")
    assert lab.line("3 other hosts").split()[-1] == "0"
    assert "no acknowledgement for a whole timeout" in lab.text(120)


@pytest.mark.parametrize(("again", "is_apart"), [(40, False), (2_000, True)])
def test_segments_sent_again_stand_out_by_their_share(again, is_apart):
    lab = Lab().moving(4)
    for host in lab.hosts:
        lab.count(host, "OutSegs", [0, 100_000]).count(host, "RetransSegs", [0, again if host == "h2" else 5])
    if is_apart:
        assert "2,000 (2,000/s, 2 %)" in lab.line("RetransSegs", "h2")
    else:
        assert "none stands out: RetransSegs 5 to 40" in lab.text()


def test_reordering_alike_on_all_hosts_is_a_line_and_on_one_host_a_row():
    lab = Lab(8).moving(4)
    for host in lab.hosts:
        lab.count(host, "TCPSACKReorder", [0, 50]).count(host, "TCPOFOQueue", [0, 900 if host == "h5" else 50])
    assert "900 (900/s)" in lab.line("TCPOFOQueue", "h5")
    assert "As on other hosts, or a few: TCPSACKReorder 50." in lab.text()


def test_what_did_not_move_is_counted():
    lab = Lab().eth("h0", "rx_errors", [4, 4]).eth("h0", "rx_packets", [4, 4]).count("h1", "TCPTimeouts", [0, 0])
    assert (
        "Quiet: 3 counters of 1 port and TCP of 1 host did not move, 2 of them of errors, drops and retransmissions"
        in (" ".join(lab.text().split()))
    )


def test_what_cannot_be_read_is_no_zero_and_not_quiet():
    lab = Lab().eth("h0", "rx_errors", [None, None]).eth("h0", "tx_errors", [0, 0])
    told = lab.text()
    assert "Not to be read, which is not zero: rx_errors (h0 eth0)." in told
    assert "Quiet: 1 counter of 1 port" in told


def test_a_counter_at_its_end_cannot_move_and_a_gap_is_told():
    lab = Lab().ib("h3", "symbol_error", [65_535, 65_535])
    lab.fact("sampler_gap", "h1", 2, "link counters were not read for 4200 ms", for_ms=4200)
    told = " ".join(lab.text().split())
    assert "At their largest value, so that they cannot move: symbol_error (h3 mlx5_0:1)." in told
    assert "Not watched: h1: link counters were not read for 4200 ms (22:13:22.000)." in told


def test_counters_read_once_do_not_pass_for_movement():
    told = Lab().ib("h0", "link_downed", [3]).text()
    assert "which of them moved in the run is not told" in told
    assert re.search(r"link_downed +h0 mlx5_0:1 3", told)
    assert "went down" not in told


# Connections


def test_connections_by_direction():
    lab = Lab().count("h0", "TCPTimeouts", [0] * 7)
    lab.count("h0", "retrans_total", [0, 0, 30, 60, 60, 2, 2], kind="peer", device="10.0.0.2")  # one of them ended
    lab.count("h0", "backoff", [0, 0, 1, 4, 2, 0, 0], kind="peer", device="10.0.0.2")
    lab.count("h0", "rtt_us", [200, 200, 60_000, 60_000, 200, 200, 200], kind="peer", device="10.0.0.2")
    lab.count("h0", "retrans_total", [0] * 7, kind="peer", device="10.0.0.9")
    steps = stepped(lab.trace(), Cover([Window(ns(1), ns(3), is_stuck=False)]))
    bad, good = peers(lab.trace(), steps).to_dicts()
    assert (bad["host"], bad["peer"], bad["moved"], bad["inside"]) == ("h0", "h2", 60, 60.0)
    assert (bad["backoff"], bad["rtt_us"], bad["rtt_inside_us"]) == (4, 200.0, 60_000.0)
    assert (good["peer"], good["moved"]) == ("10.0.0.9", 0)


def test_a_bad_direction_has_a_line_and_good_ones_are_counted():
    lab = Lab().moving(3)
    lab.count("h0", "retrans_total", [0, 300], kind="peer", device="10.0.0.2")
    lab.count("h2", "retrans_total", [0, 3], kind="peer", device="10.0.0.0")
    lab.count("h2", "rtt_us", [400, None], kind="peer", device="10.0.0.0")
    told = lab.text().splitlines()
    assert re.search(r"^  h0 +h2 +300 \(300/s\)", told[told.index(lab.line("h0 ", "h2 ", "300"))])
    assert "  1 direction without trouble (at most 3 segments sent again in each)" in told
    assert not any("Not to be read" in line for line in told)


@pytest.mark.parametrize(("timeouts", "is_bad"), [([0, 0], False), ([0, 2], True)])
def test_segments_sent_again_without_loss_are_no_trouble(timeouts, is_bad):
    lab = Lab().moving(3).count("h0", "TCPTimeouts", timeouts)
    lab.count("h0", "retrans_total", [0, 300], kind="peer", device="10.0.0.2")
    assert ("TCP between hosts, as its sender saw it" in lab.text()) is is_bad


# Rounds


def test_the_times_of_stuck_rounds_last_until_the_end_of_the_recording():
    lab = Lab().hung().moving(40)
    links, report = lab.seen()
    assert report.status == "stuck"
    (window,) = links.windows
    assert window.is_stuck
    assert window.begin_ns == pytest.approx(ns(2.0), abs=S // 100)
    assert window.end_ns == max(links.end_ns, ns(lab.job.clock + 60))


def test_the_times_of_slow_rounds_are_those_that_took_long():
    lab = Lab().moving(9)
    lab.job.rounds(40, lasts=0.01)
    at = lab.job.clock
    lab.job.round(lasts=3.0)
    lab.job.rounds(40, lasts=0.01)
    lab.carrier("h2", at + 0.1, up=False).carrier("h2", at + 1.1, up=True)
    lab.job.clean(0, 1, 2, 3, at=lab.job.clock)
    links, report = lab.seen(ended=lab.job.clock + 0.1, exit_code=0)
    assert report.verdicts[0].structure == "SLOW_TRANSFER"
    (window,) = links.windows
    assert not window.is_stuck
    assert (window.begin_ns, window.end_ns) == pytest.approx((ns(at), ns(at + 3.0)), abs=S // 100)


def test_the_times_that_a_straggler_held_others_up_are_its_rounds():
    lab = Lab().moving(9)
    for number in range(40):
        lab.job.round(late={3: 0.5} if number % 2 else {})
    lab.job.clean(0, 1, 2, 3, at=lab.job.clock)
    links, report = lab.seen(ended=lab.job.clock + 0.1, exit_code=0)
    assert report.verdicts[0].structure == "STRAGGLER"
    assert len(links.windows) == len(report.verdicts[0].occurrences)
    assert {round((one.end_ns - one.begin_ns) / S, 1) for one in links.windows} == {0.5}


def test_a_healthy_run_has_none():
    lab = Lab().moving(3)
    lab.job.rounds(20).clean(0, 1, 2, 3, at=lab.job.clock)
    links, _ = lab.seen(ended=lab.job.clock + 0.1, exit_code=0)
    assert links.windows == ()
    assert "No round was slow or stuck." in text.render(*lab.seen(ended=lab.job.clock + 0.1, exit_code=0))


# All of it


def large(hosts=64):
    """Many hosts that do the same, and one with a port that flaps."""
    lab = Lab(hosts, device="mlx5_0", kind="ib", port=1).hung()
    for number, host in enumerate(lab.hosts):
        for counter in ("port_xmit_data", "port_rcv_data"):
            lab.ib(host, counter, [0, 10**9, 2 * 10**9, *[2 * 10**9 + number] * 7])
        lab.ib(host, "link_downed", [2] * 10).ib(host, "symbol_error", [0] * 10)
        lab.count(host, "RetransSegs", [number * second for second in range(10)])
    lab.ib("h17", "port_rcv_errors", [0, 0, 40, 80, 80])
    for at, state, is_up in ((1.9, "1: DOWN", False), (4.4, "4: ACTIVE", True)):
        lab.fact("ib_port_event", "h17", at, "x", device="mlx5_0", port=1, state=state, is_up=is_up)
    return lab


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("hosts", [4, 64])
def test_it_fits_a_screen_and_says_which_host_is_another(hosts, width):
    lab = large(max(hosts, 18)) if hosts == 64 else Lab(hosts).hung().moving(9).carrier("h1", 2.2, up=False)
    told = lab.text(width)
    assert max(len(line) for line in told.splitlines()) <= width
    assert len(told.splitlines()) <= 50
    assert ("h17" if hosts == 64 else "h1") in told.split("Link events")[1].split("\n\n")[0]
    if hosts == 64:
        assert "56 more ports" in told
        assert re.search(r"port_rcv_errors +h17 mlx5_0:1 +80", told)


def test_json_has_every_counter_with_its_rates():
    lab = Lab(device="mlx5_0", kind="ib", port=1).hung().ib("h0", "port_xmit_data", [0, 1000, *[2000] * 6])
    lab.ib("h0", "rx_errors", [None])
    told = json.loads(linksjson.render(*lab.seen()))
    assert (told["schema"], told["status"], told["structure"]) == (1, "stuck", "ALL_ENTERED_NONE_COMPLETED")
    (row,) = told["counters"]
    assert (row["moved"], row["per_s"], row["bytes_per_s"]) == (2000, 2000 / 7, 8000 / 7)
    assert row["bytes_inside_per_s"] == 0
    assert [one["counter"] for one in told["unreadable"]] == ["rx_errors"]


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_a_picture_is_drawn(tmp_path, ending):
    picture = tmp_path / f"links.{ending}"
    draw(*Lab().hung().moving(9).carrier("h1", 2.2, up=False).seen(), picture)
    assert picture.stat().st_size > 4_000


@pytest.mark.parametrize("name", ["links", ".links", "links."])
def test_a_picture_without_an_ending_is_a_png_of_that_name(tmp_path, name):
    draw(*Lab().hung().moving(9).seen(), tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_names_with_line_breaks_and_without_end_stay_in_their_row():
    lab = Lab()
    for device in ("nl\nname", "tab\tname", "x" * 250):
        lab.eth("h0", "rx_bytes", [0, MB, 2 * MB], device=device)
    lines = lab.text(100).splitlines()
    [head] = [line for line in lines if line.strip().startswith("host")]
    rows = [line for line in lines if "nl\\nname" in line or "tab\\tname" in line or "xxx..." in line]
    assert len(rows) == 3
    assert {len(row) for row in rows} == {len(head)}
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("downs", "told"),
    [
        ([(1.0, 1.5)], "went down until"),
        ([(1.0, 1.514), (3.0, 3.514)], "went down 2 times until 22:13:23.000, 514 ms each"),
        ([(1.0, 1.1), (3.0, 3.514)], "went down 2 times until 22:13:23.000, 100 ms to 514 ms each"),
    ],
)
def test_events_of_a_port_in_one_line_say_nothing_twice(downs, told):
    lab = Lab().hung()
    for down, up in downs:
        lab.carrier("h0", down, up=False).carrier("h0", up, up=True)
    found = by_port(lab.seen()[0].events)
    [group] = [group for key, group in found.items() if key[0] == "h0"]
    extra = [replace(group[0], kind="change", what="mtu 1500 became 1400")] if len(downs) == 1 else []
    _, said = text._folded([*group, *extra])
    assert said.startswith(told)
    assert " 1 times" not in said


def test_a_picture_of_many_hosts_has_lanes_for_few(tmp_path):
    links, report = large().seen()
    shown = chart(links)
    assert len(shown.lanes) == 8
    assert len(shown.others) == 56
    assert "h17" in {lane.port.host for lane in shown.lanes}
    # All sent 4 GB in two seconds; the chart's sums over the steps of time say the same.
    lane = next(lane for lane in shown.lanes if lane.port.host == "h17")
    seconds = (shown.edges[1:] - shown.edges[:-1]) / S
    assert np.nansum(lane.out * seconds) == pytest.approx(8e9, rel=0.01)
    draw(links, report, tmp_path / "links.png")


def test_without_two_readings_there_is_nothing_to_draw(tmp_path):
    with pytest.raises(RoundkError, match="nothing to draw"):
        draw(*Lab().eth("h0", "rx_bytes", [5]).seen(), tmp_path / "links.png")


def test_where_there_are_no_counters_it_says_how_to_record_them():
    lab = Lab()
    lab.facts, lab.job = [], Job().rounds(3)
    with pytest.raises(RoundkError, match="`roundk run` records them by default"):
        lab.seen()


def test_a_run_without_links_is_an_error_of_usage():
    done = CliRunner().invoke(command, [str(SAMPLES / "never_entered")])
    assert isinstance(done.exception, RoundkError)  # the command line makes exit code 2 of it
    assert "no counters and no events of links" in str(done.exception)


def test_files_of_tools_are_enough(tmp_path):
    for at, downed, sent in (("T10-00-00", 3, 0), ("T10-00-10", 4, 10**9)):
        port = tmp_path / f"node-a_2026-01-02{at}Z" / "class" / "infiniband" / "mlx5_0" / "ports" / "1" / "counters"
        port.mkdir(parents=True)
        (port / "link_downed").write_text(f"{downed}\n")
        (port / "port_xmit_data").write_text(f"{sent}\n")
    done = CliRunner().invoke(command, [str(tmp_path)])
    assert done.exit_code == 0
    assert "link_downed went up by 1" in done.output
    assert "No calls were read" in done.output


def test_it_is_among_the_commands():
    assert "links" in CliRunner().invoke(group, ["--help"]).output


@pytest.mark.parametrize(
    ("at", "inside"), [(0.5, 0), (1, 0), (1.5, 0.5), (2, 1), (2.5, 1), (3, 1), (3.25, 1.25), (4, 2), (9, 2)]
)
def test_time_within_windows(at, inside):
    cover = Cover([Window(ns(1), ns(2), is_stuck=False), Window(ns(3), ns(4), is_stuck=True)])
    assert cover.until(np.array([ns(at)])).tolist() == [inside * S]


def test_no_windows_cover_nothing():
    case = build(Trace(root=pathlib.Path()), now_ns=ns(1), stall_ns=S)
    assert windows(case, diagnose.report(case)) == ()


@pytest.mark.parametrize("run", sorted({file.parents[1] for file in SAMPLES.glob("*/*/links-*.jsonl")}) or [None])
def test_a_recorded_run(run):
    if run is None:
        pytest.skip("no sample trace has links yet")
    done = CliRunner().invoke(command, [str(run), "--format", "json"])
    assert done.exit_code == 0, done.exception
    told = json.loads(done.output)
    assert {one["counter"] for one in told["counters"]} >= {"rx_bytes", "TCPTimeouts"}
    assert {port["use"] for port in told["ports"]} <= {"used", "unused", "unknown", "other"}
