"""Slow transfers and hangs between hosts: which link, and when it is no link but a process that stood still."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from jobs import T0, Job, S, ns, table

from roundk.analyze.diagnose import diagnose
from roundk.tracer import schema

BEGAN = 2.0
"""When the trouble begins; rounds before that are good."""


class Lab:
    """A rank on each of four hosts whose groups use eth0 of each; the times of all of them are on one clock."""

    def __init__(self, hosts=4):
        self.hosts = hosts
        self.job = Job(hosts)
        self.facts, self.counters = [], []
        for rank in range(hosts):
            self.job.rank(rank, host=f"h{rank}")
            self.fact("port_used", f"h{rank}", 0, device="eth0", kind="netdev", by="GLOO_SOCKET_IFNAME")
            self.fact("host_address", f"h{rank}", 0, address=f"10.0.0.{rank}")
        while self.job.clock < BEGAN:
            self.job.round(lasts=0.01)
            self.job.clock += 0.05

    def slow(self, lasts, count=1):
        for _ in range(count):
            self.job.round(lasts=lasts)
        return self

    def good(self, count=10):
        self.job.rounds(count)
        return self

    def hang(self, without=()):
        self.job.hang(without=without)
        return self

    def of_nccl(self):
        self.job.groups[0] = ("0", "default_pg", "nccl", list(range(self.hosts)))
        return self

    def fact(self, kind, host, at, /, rank=None, text=None, **fields):
        self.facts.append(
            {"time_ns": ns(at), "host": host, "rank": rank, "kind": kind, "text": text or kind,
             "fields": json.dumps(fields), "source": f"{host}/links-1.jsonl:1"}
        )  # fmt: skip
        return self

    def event(self, host, at, *, up, device="eth0"):
        return self.fact("netdev_event", host, at, device=device, is_up=up, is_admin_up=True, text=f"{device} {up}")

    def stopped(self, rank, at, until=None):
        self.fact("state", f"h{rank}", at, rank=rank, text=f"process {100 + rank} is T")
        if until is not None:
            self.fact("state", f"h{rank}", until, rank=rank, text=f"process {100 + rank} is alive")
        else:
            self.job.rank(rank, process_state="T", process_state_ns=at)
        return self

    def count(self, host, counter, *values, kind="tcp", device="", every=0.5):
        """Samples of a counter from the beginning on."""
        for number, value in enumerate(values):
            self.counters.append(
                {"time_ns": ns(number * every), "host": host, "kind": kind, "device": device, "counter": counter,
                 "value": value, "is_read": True, "source": f"{host}/links-1.jsonl"}
            )  # fmt: skip
        return self

    def edge(self, sender, peer, counter, *values):
        return self.count(f"h{sender}", counter, *values, kind="peer", device=f"10.0.0.{peer}")

    def quiet(self):
        """What TCP counts in a run without loss, whatever the load: segments sent again, and no timeout."""
        for host in range(self.hosts):
            self.count(f"h{host}", "TCPTimeouts", *[0] * 20)
            self.count(f"h{host}", "RetransSegs", *range(0, 400, 20))
        return self

    def report(self, *, now=600.0, ended=True, **extra):
        if ended:
            self.job.clean(*range(self.hosts), at=self.job.clock)
        at = {"ended": self.job.clock + 0.1, "exit_code": 0} if ended else {"alive": self.job.clock + 60}
        self.job.facts, facts = [], [*self.job.facts, *self.facts]
        trace = replace(
            self.job.trace(**at),
            facts=table(facts, schema.FACTS),
            counters=table(self.counters, schema.COUNTERS),
            **extra,
        )
        return diagnose(trace, now_ns=T0 + round(now * S) if ended else ns(self.job.clock + 60), stall_ns=30 * S)

    def first(self, **extra):
        return self.report(**extra).verdicts[0]


def said(verdict):
    links = [(link.host, link.device) for link in verdict.culprit_links]
    return verdict.structure, verdict.cause, verdict.culprit_ranks, links


def test_a_flap_that_the_job_survives_is_a_slow_transfer():
    verdict = Lab().slow(3.0).good().event("h2", BEGAN + 0.2, up=False).event("h2", BEGAN + 1.2, up=True).first()
    assert said(verdict) == ("SLOW_TRANSFER", "LINK_FLAP", (), [("h2", "eth0")])
    assert "came back after 1.0 s" in verdict.summary
    assert "h2, eth0" in verdict.next_steps[0]


def test_a_flap_of_a_port_that_the_job_does_not_use_convicts_nobody():
    lab = Lab().slow(3.0).good()
    verdict = (
        lab.event("h2", BEGAN + 0.2, up=False, device="eth1").event("h2", BEGAN + 1.2, up=True, device="eth1").first()
    )
    assert said(verdict) == ("SLOW_TRANSFER", "UNDETERMINED", (), [])
    assert any("does not use that port" in piece.what for piece in verdict.evidence)


def test_a_flap_that_every_host_had_is_of_none_of_them():
    lab = Lab(8).slow(3.0).good()
    for host in range(8):
        lab.event(f"h{host}", BEGAN + 0.2, up=False).event(f"h{host}", BEGAN + 0.3, up=True)
    verdict = lab.first()
    assert verdict.cause_confidence != "high"
    assert verdict.culprit_links == ()


def test_a_flap_in_a_healthy_run_is_listed_and_the_run_healthy():
    verdict = Lab().good(20).event("h2", BEGAN + 0.2, up=False).event("h2", BEGAN + 0.25, up=True).first()
    assert said(verdict) == ("HEALTHY", None, (), [])
    assert any("eth0" in piece.what for piece in verdict.evidence)


def test_a_flap_before_rounds_that_completed_does_not_explain_a_hang_after_them():
    lab = Lab().event("h2", 0.5, up=False).event("h2", 0.8, up=True).quiet()
    verdict = lab.good(40).hang().report(ended=False).verdicts[0]
    assert verdict.structure == "ALL_ENTERED_NONE_COMPLETED"
    assert verdict.cause == "UNDETERMINED"


def test_a_port_that_stays_down_explains_a_hang():
    verdict = Lab().event("h1", BEGAN + 0.01, up=False).hang().report(ended=False).verdicts[0]
    assert said(verdict) == ("ALL_ENTERED_NONE_COMPLETED", "LINK_DOWN", (), [("h1", "eth0")])


def test_a_process_that_was_stopped_inside_a_call_is_a_straggler():
    verdict = Lab().slow(3.0).good().stopped(1, BEGAN + 0.2, BEGAN + 3.1).quiet().first()
    assert said(verdict) == ("STRAGGLER", "PROCESS_STOPPED", (1,), [])


def test_a_process_that_was_stopped_between_calls_is_a_straggler():
    lab = Lab()
    lab.job.round(late={1: 3.0})
    assert said(lab.good().stopped(1, BEGAN + 0.3, BEGAN + 3.0).first()) == ("STRAGGLER", "PROCESS_STOPPED", (1,), [])


def test_a_stop_elsewhere_does_not_explain_a_transfer_that_took_longer_than_it():
    verdict = Lab().slow(3.0).good().stopped(1, BEGAN + 0.2, BEGAN + 0.5).first()
    assert verdict.culprit_ranks == ()


def test_a_flap_of_one_host_and_a_process_that_is_stopped_on_another():
    lab = Lab().slow(2.0).event("h2", BEGAN + 0.1, up=False).event("h2", BEGAN + 1.0, up=True).good().hang()
    report = lab.stopped(3, lab.job.clock + 0.1).report(ended=False)
    first = report.verdicts[0]
    assert (first.cause, first.culprit_ranks, first.culprit_links) == ("PROCESS_STOPPED", (3,), ())
    assert [said(verdict) for verdict in report.verdicts[1:]] == [("SLOW_TRANSFER", "LINK_FLAP", (), [("h2", "eth0")])]


def test_a_rank_that_sleeps_and_comes_back():
    lab = Lab()
    lab.job.round(late={1: 3.0})
    verdict = lab.good().quiet().first()
    assert said(verdict) == ("STRAGGLER", "HOST_STALL", (1,), [])
    assert verdict.cause_confidence == "medium"


def test_a_slow_rank_and_a_slow_link_are_two_verdicts():
    lab = Lab()
    for _ in range(8):
        lab.job.round(late={3: 0.4}, lasts=0.01)
        lab.job.round(lasts=0.9)
    lab.count("h0", "TCPTimeouts", 0, 0, 0, 0, 1, 3, 5, 8).edge(0, 1, "backoff", 0, 0, 0, 0, 1, 2, 0, 1)
    lab.edge(1, 0, "backoff", 0, 0, 0, 0, 0, 1, 0, 0).edge(1, 2, "backoff", 0, 0, 0, 0, 1, 1, 1, 1)
    found = [said(verdict)[:3] for verdict in lab.report().verdicts]
    assert ("STRAGGLER", "HOST_STALL", (3,)) in found
    assert ("SLOW_TRANSFER", "LINK_DEGRADED", ()) in found


def test_transfers_of_a_busy_machine_that_take_several_times_their_usual_time_are_no_verdict():
    lab = Lab().quiet()
    for _ in range(6):
        lab.good(10).slow(0.15)
    assert said(lab.first()) == ("HEALTHY", None, (), [])


@pytest.mark.parametrize("sender", [1, 3])
def test_edges_whose_data_are_not_acknowledged_lead_to_the_host_that_they_share(sender):
    """h2 is cut off behind its port: its neighbours in the ring send into it, and it has nothing to send."""
    lab = Lab().hang()
    lab.count("h1", "TCPTimeouts", 0, 0, 0, 0, 2, 4).count("h3", "TCPTimeouts", 0, 0, 0, 0, 2, 4)
    lab.edge(sender, 2, "backoff", 0, 0, 0, 0, 2, 4).edge(4 - sender, 2, "backoff", 0, 0, 0, 0, 1, 3)
    verdict = lab.edge(0, 1, "backoff", 0, 0, 0, 0, 0, 0).report(ended=False).verdicts[0]
    assert said(verdict) == ("ALL_ENTERED_NONE_COMPLETED", "LINK_DEGRADED", (), [("h2", "eth0")])
    assert verdict.cause_confidence == "medium"


def test_of_a_single_edge_either_end_may_be_at_fault():
    lab = Lab().hang().count("h3", "TCPTimeouts", 0, 0, 0, 0, 2, 4).edge(3, 2, "backoff", 0, 0, 0, 0, 2, 4)
    verdict = lab.report(ended=False).verdicts[0]
    assert verdict.cause == "LINK_DEGRADED"
    assert {link.host for link in verdict.culprit_links} <= {"h2", "h3"}
    assert verdict.cause_confidence == "low"
    assert any("other end" in text for text in verdict.contradictions)


def test_edges_without_a_common_end_are_congestion_and_of_no_host():
    lab = Lab().slow(1.0, 6).count("h0", "TCPTimeouts", 0, 0, 0, 0, 2, 4).count("h2", "TCPTimeouts", 0, 0, 0, 0, 2, 4)
    for sender, peer in ((0, 1), (2, 3), (1, 2)):
        lab.edge(sender, peer, "backoff", 0, 0, 0, 0, 1, 2)
    assert said(lab.first()) == ("SLOW_TRANSFER", "CONGESTION", (), [])


def test_without_the_state_of_connections_nobody_is_named_by_a_count_of_timeouts():
    lab = Lab().slow(1.0, 6).count("h0", "TCPTimeouts", 0, 0, 0, 0, 2, 4).count("h2", "TCPTimeouts", 0, 0, 0, 0, 2, 4)
    verdict = lab.first()
    assert said(verdict) == ("SLOW_TRANSFER", "LINK_DEGRADED", (), [])
    assert verdict.cause_confidence == "low"


def test_round_trips_that_became_longer_lead_to_the_host_that_they_share():
    lab = Lab().slow(0.5, 12).quiet()
    usual, slow = [300] * 5, [41_000] * 16
    for sender, peer in ((2, 1), (3, 2)):
        lab.edge(sender, peer, "rtt_us", *usual, *slow)
    for sender, peer in ((0, 3), (1, 0)):
        lab.edge(sender, peer, "rtt_us", *usual, *[900] * 16)
    verdict = lab.first()
    assert said(verdict) == ("SLOW_TRANSFER", "CONGESTION", (), [("h2", "eth0")])
    assert "41" in " ".join(piece.what for piece in verdict.evidence)


def test_loss_between_ports_that_the_job_does_not_use_is_not_of_the_one_that_it_does():
    lab = Lab().slow(1.0, 6).quiet()
    for host in range(4):
        lab.fact("host_address", f"h{host}", 0, address=f"10.0.0.{host}", is_used=True)
        lab.fact("host_address", f"h{host}", 0, address=f"10.1.0.{host}", is_used=False)
    for peer in (0, 1, 3):
        lab.edge(2, peer, "retrans_total", *[0] * 20)
        lab.count("h2", "retrans_total", *range(0, 2_000, 100), kind="peer", device=f"10.1.0.{peer}")
        lab.count("h2", "backoff", *[0] * 5, *[2] * 15, kind="peer", device=f"10.1.0.{peer}")
    verdict = lab.first()
    assert verdict.culprit_links == ()
    assert verdict.cause == "UNDETERMINED"


def test_segments_sent_again_alone_alarm_nobody():
    lab = Lab().good(30).quiet().edge(0, 1, "retrans_total", *range(0, 500, 25))
    assert said(lab.first()) == ("HEALTHY", None, (), [])


def test_a_flap_long_before_a_hang_that_rounds_have_gone_over_since_convicts_nobody():
    """Whether or not its end is told: rounds that began after it went over that port."""
    for ends in (True, False):
        lab = Lab().event("h2", 0.3, up=False)
        if ends:
            lab.event("h2", 0.6, up=True)
        verdict = lab.good(400).hang().report(ended=False).verdicts[0]
        assert said(verdict) == ("ALL_ENTERED_NONE_COMPLETED", "UNDETERMINED", (), [])
        assert any("not taken as the cause" in piece.what for piece in verdict.evidence)


def test_of_two_flaps_the_one_that_no_round_has_gone_over_is_the_cause():
    lab = Lab().good(400)
    lab.event("h1", 0.3, up=False).event("h2", lab.job.clock - 0.01, up=False).event("h2", lab.job.clock + 1, up=True)
    verdict = lab.hang().report(ended=False).verdicts[0]
    assert said(verdict) == ("ALL_ENTERED_NONE_COMPLETED", "LINK_FLAP", (), [("h2", "eth0")])


@pytest.mark.parametrize("after", [3, 10, 30])
def test_a_port_that_goes_down_long_after_the_data_should_have_been_through_convicts_nobody(after):
    lab = Lab()
    began = lab.job.clock
    lab.hang().event("h3", began + after, up=False).event("h3", began + after + 1, up=True)
    verdict = lab.report(ended=False).verdicts[0]
    assert said(verdict) == ("ALL_ENTERED_NONE_COMPLETED", "UNDETERMINED", (), [])


def test_of_nccl_which_enqueues_ahead_a_later_flap_is_a_suspicion_and_no_more():
    lab = Lab().of_nccl()
    began = lab.job.clock
    lab.hang().event("h3", began + 10, up=False).event("h3", began + 11, up=True)
    verdict = lab.report(ended=False).verdicts[0]
    assert verdict.cause != "LINK_FLAP" or verdict.cause_confidence in ("medium", "low")


def test_nccl_meets_over_a_network_device_and_sends_over_hcas():
    lab = Lab().of_nccl()
    for host in range(4):
        lab.fact("port_used", f"h{host}", 0, device="mlx5_0", port=1, kind="ib", by="NCCL_IB_HCA")
    began = lab.job.clock
    lab.hang().event("h2", began - 0.01, up=False).event("h2", began + 0.7, up=True)
    verdict = lab.report(ended=False).verdicts[0]
    assert verdict.culprit_links == ()
    assert verdict.cause_confidence in ("low", "none")


def test_ports_of_all_hosts_that_flap_one_after_another_are_of_what_they_share():
    lab = Lab(8)
    began = lab.job.clock
    lab.hang()
    for host in range(8):
        lab.event(f"h{host}", began + 1.5 * host - 0.01, up=False).event(f"h{host}", began + 1.5 * host + 1, up=True)
    verdict = lab.report(ended=False).verdicts[0]
    assert verdict.culprit_links == ()
    assert verdict.cause_confidence == "low"


def test_a_device_that_is_gone_is_a_link_that_is_down_though_its_counters_never_moved():
    lab = Lab().quiet()
    began = lab.job.clock
    for host in range(4):
        lab.count(f"h{host}", "carrier_down_count", *[0] * 20, kind="netdev", device="eth0")
    lab.hang().fact("netdev_event", "h2", began, device="eth0", is_up=False, is_admin_up=False, is_gone=True)
    verdict = lab.report(ended=False).verdicts[0]
    assert said(verdict) == ("ALL_ENTERED_NONE_COMPLETED", "LINK_DOWN", (), [("h2", "eth0")])
    assert "eth0 of h2 is gone" in verdict.summary


@pytest.mark.parametrize("is_down", [True, False])
def test_drops_are_a_hop_for_large_packets_only_of_a_port_that_is_up_and_alone_with_them(is_down):
    lab = Lab().hang()
    for host in range(4):
        drops = range(0, 60, 2) if not is_down or host == 2 else [0] * 30
        lab.count(f"h{host}", "carrier", *[0 if is_down else 1] * 30, kind="netdev", device="eth0")
        lab.count(f"h{host}", "rx_dropped", *drops, kind="netdev", device="eth0")
    lab.count("h0", "TCPTimeouts", 0, 0, 0, 0, 0, 1)
    verdict = lab.report(ended=False).verdicts[0]
    assert verdict.cause != "MTU_MISMATCH"
    assert verdict.culprit_links == ()


def test_hosts_whose_ports_have_different_mtus():
    lab = Lab().hang().count("h3", "TCPTimeouts", 0, 0, 0, 0, 2, 4)
    for host in range(4):
        sizes = [9000] * 4 + [1500 if host == 1 else 9000] * 2
        lab.count(f"h{host}", "mtu", *sizes, kind="netdev", device="eth0")
    verdict = lab.report(ended=False).verdicts[0]
    assert said(verdict) == ("ALL_ENTERED_NONE_COMPLETED", "MTU_MISMATCH", (), [("h1", "eth0")])


def test_different_mtus_of_a_job_whose_packets_arrive_explain_no_hang():
    lab = Lab().hang().quiet()
    for host in range(4):
        lab.count(f"h{host}", "mtu", *[1500 if host == 1 else 9000] * 6, kind="netdev", device="eth0")
    assert lab.report(ended=False).verdicts[0].cause == "UNDETERMINED"


def test_a_missing_rank_is_never_explained_by_a_link():
    lab = Lab().event("h1", BEGAN + 0.01, up=False).event("h1", BEGAN + 0.5, up=True).hang(without=[1])
    verdict = lab.report(ended=False).verdicts[0]
    assert (verdict.structure, verdict.culprit_ranks, verdict.culprit_links) == ("RANK_NOT_ENTERED", (1,), ())
    assert verdict.cause != "LINK_FLAP"


def test_all_ranks_that_become_slow_together_have_no_culprit():
    lab = Lab()
    for number in range(60):
        lab.job.round()
        lab.job.clock += 0.05 if number < 30 else 0.4
    verdict = lab.quiet().first()
    assert said(verdict) == ("SHARED_SLOWDOWN", "UNDETERMINED", (), [])
    assert lab.report().status == "slow"


def test_a_counter_of_32_bits_that_wraps_went_up():
    """link_downed of InfiniBand is small; of symbol errors 32 bits may be full."""
    lab = Lab().slow(2.0).good()
    lab.count(
        "h2", "link_downed", (1 << 32) - 1, (1 << 32) - 1, (1 << 32) - 1, (1 << 32) - 1, 0, 0, kind="ib", device="eth0"
    )
    verdict = lab.first()
    assert said(verdict) == ("SLOW_TRANSFER", "LINK_FLAP", (), [("h2", "eth0")])


def test_a_counter_that_a_new_device_begins_anew_did_not_move():
    lab = Lab().slow(2.0).good()
    verdict = lab.count("h2", "link_downed", 7, 7, 7, 7, 0, 0, kind="ib", device="eth0").first()
    assert said(verdict) == ("SLOW_TRANSFER", "UNDETERMINED", (), [])


def test_what_is_missing_without_link_counters_is_told():
    verdict = Lab().slow(3.0).good().first()
    assert said(verdict) == ("SLOW_TRANSFER", "UNDETERMINED", (), [])
    assert any("link counters" in text for text in verdict.not_checked)


def test_a_busy_rank_beside_a_slow_link_from_which_the_others_come_one_by_one():
    """The others leave each round up to 0.25 s apart, so the busy one is but little later than the last but one."""
    lab = Lab()
    leaves = {0: 0.25, 1: 0.15, 2: 0.2, 3: 0.0}
    at = {rank: lab.job.clock + leaves[rank] for rank in range(4)}
    for _ in range(10):
        enters = {rank: at[rank] + (0.3 if rank == 3 else 0.02) for rank in range(4)}
        end = max(enters.values()) + 0.6
        for rank in range(4):
            lab.job.call(rank, enters[rank], end + leaves[rank])
        at = {rank: end + leaves[rank] for rank in range(4)}
    lab.job.clock = end + 1
    found = [said(verdict)[:3] for verdict in lab.report().verdicts]
    assert found == [("STRAGGLER", "HOST_STALL", (3,)), ("SLOW_TRANSFER", "UNDETERMINED", ())]


def test_a_long_transfer_that_stands_alone_does_not_begin_a_slow_time():
    lab = Lab().slow(0.4).good(40)
    begin = lab.job.clock
    lab.slow(0.5, 20)
    verdict = lab.first()
    assert verdict.structure == "SLOW_TRANSFER"
    assert verdict.onset_ns >= ns(begin)


def test_transfers_that_all_take_twice_as_long_count_where_the_link_tells_why():
    lab = Lab()
    lab.good(30)
    began = lab.job.clock
    lab.slow(0.03, 30)
    assert said(lab.first()) == ("HEALTHY", None, (), [])
    before = round(began / 0.5) + 1
    again = [0] * before + [2_000 * number for number in range(1, 6)]
    lab.edge(1, 0, "retrans_total", *again).edge(0, 3, "retrans_total", *again)
    for sender, peer in ((1, 0), (0, 3)):
        lab.edge(sender, peer, "reord_seen", *[value // 100 for value in again])
    for host in range(4):
        lab.count(f"h{host}", "OutSegs", *range(0, 20_000 * len(again), 20_000))
    assert said(lab.first()) == ("SLOW_TRANSFER", "CONGESTION", (), [("h0", "eth0")])


def test_segments_sent_again_that_are_few_of_all_do_not_make_a_link_bad():
    lab = Lab().slow(1.0, 6).quiet()
    lab.edge(1, 0, "retrans_total", *range(0, 400, 40))
    for host in range(4):
        lab.count(f"h{host}", "OutSegs", *range(0, 1_000_000, 100_000))
    assert said(lab.first()) == ("SLOW_TRANSFER", "UNDETERMINED", (), [])


def test_many_short_stops_inside_transfers_are_one_straggler():
    """A process that is stopped and continued in turns: no single transfer is long, and all stops are of one rank."""
    lab = Lab().good(20)
    for _ in range(7):
        begin = lab.job.clock
        lab.slow(0.33).stopped(2, begin + 0.02, begin + 0.3).good(3)
        lab.job.clock += 0.4
    assert said(lab.quiet().first()) == ("STRAGGLER", "PROCESS_STOPPED", (2,), [])


def test_a_port_that_drops_packets_while_it_is_up():
    lab = Lab().hang().count("h3", "TCPTimeouts", 0, 0, 0, 0, 2, 9).count("h0", "TCPTimeouts", 0, 0, 0, 0, 1, 4)
    lab.count("h3", "tx_dropped", 0, 0, 0, 0, 20, 56, kind="netdev", device="eth0")
    verdict = lab.report(ended=False).verdicts[0]
    assert said(verdict) == ("ALL_ENTERED_NONE_COMPLETED", "MTU_MISMATCH", (), [("h3", "eth0")])


def test_the_first_large_message_hangs_after_small_ones_that_passed():
    lab = Lab()
    lab.job.hang(numel=1 << 20)
    lab.count("h3", "TCPTimeouts", 0, 0, 0, 0, 2, 9)
    lab.edge(3, 2, "backoff", 0, 0, 0, 0, 1, 4).edge(2, 1, "backoff", 0, 0, 0, 0, 1, 4)
    verdict = lab.report(ended=False).verdicts[0]
    assert said(verdict) == ("ALL_ENTERED_NONE_COMPLETED", "MTU_MISMATCH", (), [("h2", "eth0")])
    assert "first large" in verdict.summary


def test_segments_sent_again_now_and_then_do_not_weigh_beside_round_trips():
    """Figures of a link held to 78 Mbit/s at h1, in the fault lab: the queue there is seen from both sides."""
    lab = Lab().slow(0.6, 10).quiet()
    for sender, peer, usual, slow, lost in (
        (0, 1, 5_207, 21_964, 3), (1, 0, 394, 20_444, 61), (1, 2, 868, 15_179, 1), (2, 1, 885, 17_246, 29),
        (2, 0, 2_003, 11_137, 0), (3, 2, 672, 335, 6), (3, 0, 725, 3_486, 2),
    ):  # fmt: skip
        lab.edge(sender, peer, "rtt_us", *[usual] * 4, *[slow] * 14)
        lab.edge(sender, peer, "retrans_total", *[0] * 4, *[lost] * 14)
    assert said(lab.first()) == ("SLOW_TRANSFER", "CONGESTION", (), [("h1", "eth0")])


@pytest.mark.parametrize(
    ("queueing", "slower", "narrow"),
    [
        # Held at h1 to what it sends: acknowledgements of what it receives from h2 wait behind its own data.
        ((1, 0), ((2, 1, 567, 9_849), (0, 3, 2_961, 5_692)), 1),
        # Held at h3 to what it receives: acknowledgements of what it sends to h2 do.
        ((0, 3), ((3, 2, 401, 9_425), (1, 0, 624, 1_357)), 3),
    ],
)
def test_data_that_wait_at_their_sender_lead_to_the_end_whose_other_traffic_is_slower(queueing, slower, narrow):
    """Figures of links held to 115 Mbit/s in the fault lab, of a ring 0 3 2 1; what is idle has the longest trips."""
    lab = Lab().slow(0.45, 14).quiet()
    for sender, peer in ((0, 3), (3, 2), (2, 1), (1, 0)):
        lab.edge(sender, peer, "bytes_acked", *[1 << 30] * 18)
        lab.edge(sender, peer, "notsent_bytes", *[0] * 4, *[160_000 if (sender, peer) == queueing else 0] * 14)
    for sender, peer, usual, now in slower:
        lab.edge(sender, peer, "rtt_us", *[usual] * 4, *[now] * 14)
    for sender, peer, usual, now in ((3, 0, 1_029, 17_856), (3, 1, 4_003, 14_261), (2, 3, 601, 4_772)):
        lab.edge(sender, peer, "bytes_acked", *[4_800] * 18)
        lab.edge(sender, peer, "rtt_us", *[usual] * 4, *[now] * 14)
    verdict = lab.first()
    assert said(verdict) == ("SLOW_TRANSFER", "CONGESTION", (), [(f"h{narrow}", "eth0")])
    assert verdict.cause_confidence == "medium"
    assert any("KiB wait to be sent where 0 KiB is usual" in piece.what for piece in verdict.evidence)


def test_data_that_wait_at_their_sender_as_before_say_nothing():
    lab = Lab().slow(0.45, 14).quiet()
    lab.edge(1, 0, "bytes_acked", *[1 << 30] * 18).edge(1, 0, "notsent_bytes", *[150_000] * 4, *[160_000] * 14)
    assert said(lab.first()) == ("SLOW_TRANSFER", "UNDETERMINED", (), [])


def test_transfers_that_all_take_much_longer_from_a_time_on_count_whatever_explains_it():
    """Figures of packets out of order, in the fault lab: 30 ms became 120 ms, of a tenth of the time the half."""
    lab = Lab().good(60)
    lab.slow(0.055, 60)
    verdict = lab.first()
    assert (verdict.structure, verdict.cause) == ("SLOW_TRANSFER", "UNDETERMINED")
    assert verdict.structure_confidence == "medium"


def test_calls_that_wait_in_the_queue_of_their_device_are_no_slow_transfers():
    """A host that runs ahead: the calls of a step are entered at once, and each ends after those before it."""
    lab = Lab()
    for _ in range(10):
        begin = lab.job.clock
        for number in range(8):
            for rank in range(4):
                lab.job.call(rank, begin + 0.001 * number + 0.0001 * rank, begin + 0.1 * (number + 1))
        lab.job.clock = begin + 1
    assert said(lab.first()) == ("HEALTHY", None, (), [])
