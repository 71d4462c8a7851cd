"""InfiniBand links that flap, go down or count errors, beside a hang or slow rounds: what the verdict says of them.

Synthetic: no InfiniBand port was at hand. The trees of /sys are invented (`ib_hosts`), and change while the real
sampler reads them; the rest is what a user has, a run directory and its analysis. What is right follows from what was
done to the ports: the truth is in each test's name.
"""

from __future__ import annotations

import functools
import json

import pytest
from click.testing import CliRunner
from ib_hosts import Fabric

from roundk.analyze.commands.links import command

HANG_S, END_S = 5, 40
"""When the ranks hang, and until when the hosts are sampled: longer than `analyze` waits until it says `stuck`."""
USED, OTHER = "mlx5_0", "mlx5_1"
STUCK = ("ALL_ENTERED_NONE_COMPLETED", "PARTIAL_COMPLETION")


@pytest.fixture
def fabric(tmp_path, monkeypatch):
    return functools.partial(Fabric, tmp_path, monkeypatch)


def hung(made, **options):
    """A job that hangs at `HANG_S`, recorded and judged."""
    return made.rounds(HANG_S).hang(**options).record(END_S).verdict()


def slow(made, *, begin=5, end=12):
    """A job whose transfers take long for some seconds, and which ends in order."""
    made.rounds(begin).rounds(end, lasts=0.4).rounds(end + 3).record(end + 4)
    return made.verdict()


def stalled(made):
    """A job with one transfer that takes three seconds instead of 20 ms."""
    made.rounds(HANG_S)
    made.rounds(made.clock_s + 0.01, lasts=3.0).rounds(12).record(13)
    return made.verdict()


def links(verdict):
    return [(one.host, one.device, one.port) for one in verdict.culprit_links]


def said(verdict):
    return " ".join(piece.what for piece in verdict.evidence)


def nobody(verdict):
    return not (verdict.culprit_ranks or verdict.culprit_hosts or verdict.culprit_links)


# Links that go down


def test_link_downed_of_the_used_port_just_before_a_hang(fabric):
    """So short that no look at the port's state found it down."""
    made = fabric()
    made[2].set(HANG_S - 0.3, USED, link_downed=1)
    verdict = hung(made)
    assert verdict.structure in STUCK
    assert (verdict.cause, links(verdict)) == ("LINK_FLAP", [("node-2", USED, 1)])
    assert "link_downed of mlx5_0:1 went up by 1" in said(verdict)
    assert "node-2, mlx5_0:1" in verdict.next_steps[0]


def test_an_earlier_flap_does_not_hide_the_one_before_the_hang(fabric):
    made = fabric()
    made[2].flap(1, USED, for_s=0.4).set(HANG_S - 0.1, USED, link_downed=2)
    verdict = hung(made)
    assert (verdict.cause, links(verdict)) == ("LINK_FLAP", [("node-2", USED, 1)])


@pytest.mark.parametrize("link_downed", [1, 0], ids=["InfiniBand", "RoCE, where link_downed stays 0"])
def test_a_port_that_is_down_for_a_part_of_a_stalled_transfer(fabric, link_downed):
    made = fabric()
    made[1].flap(HANG_S + 0.3, USED, for_s=1.5).set(HANG_S + 0.3, USED, link_downed=link_downed)
    verdict = stalled(made)
    assert (verdict.structure, verdict.cause, links(verdict)) == ("SLOW_TRANSFER", "LINK_FLAP", [("node-1", USED, 1)])
    assert "came back after 1.5 s" in verdict.summary


def test_a_port_that_stays_down(fabric):
    made = fabric()
    made[3].flap(HANG_S + 0.05, USED, for_s=None)
    verdict = hung(made)
    assert verdict.structure in STUCK
    assert (verdict.cause, links(verdict)) == ("LINK_DOWN", [("node-3", USED, 1)])
    assert verdict.cause_confidence == "high"


@pytest.mark.parametrize(
    ("hca", "hcas", "device", "port"),
    [("=mlx5_0:1", ((USED, 1), (OTHER, 1)), OTHER, 1), ("=mlx5_0:1", ((USED, 1), (USED, 2)), USED, 2)],
    ids=["another device", "the other port of the device"],
)
def test_a_port_that_the_job_does_not_use_convicts_nobody(fabric, hca, hcas, device, port):
    made = fabric(hca=hca, hcas=hcas)
    made[2].flap(HANG_S - 0.3, device, port)
    verdict = hung(made)
    assert verdict.structure in STUCK
    assert verdict.cause == "UNDETERMINED"
    assert nobody(verdict)
    assert f"port {port} of {device} became 1: DOWN" in said(verdict)
    assert "does not use that port" in said(verdict)


def test_the_same_delta_on_all_hosts_convicts_none_of_them(fabric):
    made = fabric()
    for number in range(4):
        made[number].set(HANG_S - 0.3, USED, link_downed=1)
    verdict = hung(made)
    assert nobody(verdict)
    assert verdict.cause_confidence != "high"
    assert "switch that they share" in verdict.next_steps[0]


def test_a_flap_on_one_host_while_the_rank_of_another_is_stopped(fabric):
    made = fabric()
    made[2].flap(HANG_S - 0.2, USED)
    made.stop(1, HANG_S - 0.1)
    verdict = hung(made, without=[1])
    assert (verdict.structure, verdict.detail, verdict.cause) == ("RANK_NOT_ENTERED", "STOPPED", "PROCESS_STOPPED")
    assert (verdict.culprit_ranks, links(verdict)) == ((1,), [])


def test_noise_of_the_ports_does_not_explain_a_rank_that_did_not_come(fabric):
    made = fabric()
    made[1].grow(3, 30, USED, symbol_error=200, port_rcv_errors=40).flap(HANG_S + 1, USED)
    verdict = hung(made, without=[1])
    assert (verdict.structure, verdict.culprit_ranks, links(verdict)) == ("RANK_NOT_ENTERED", (1,), [])
    assert not str(verdict.cause).startswith("LINK_")


# Counters that wrap, and that begin anew


def test_link_downed_that_wraps_at_32_bits_went_up_by_a_few(fabric):
    made = fabric()
    made[0].set(0, USED, link_downed=2**32 - 1).set(HANG_S - 0.3, USED, link_downed=1)
    verdict = hung(made)
    assert (verdict.cause, links(verdict)) == ("LINK_FLAP", [("node-0", USED, 1)])
    assert "went up by 2" in said(verdict)


def test_symbol_errors_that_wrap_at_32_bits_are_few(fabric):
    made = fabric()
    made[0].set(0, USED, symbol_error=2**32 - 3).grow(6, 11, USED, start=2**32 - 3, symbol_error=1)
    verdict = slow(made)
    assert (verdict.structure, verdict.cause) == ("SLOW_TRANSFER", "UNDETERMINED")
    assert nobody(verdict)


def test_symbol_errors_that_wrap_at_32_bits_and_are_many(fabric):
    made = fabric()
    made[0].set(0, USED, symbol_error=2**32 - 300).grow(5, 12, USED, start=2**32 - 300, symbol_error=100)
    verdict = slow(made)
    assert (verdict.cause, links(verdict)) == ("LINK_DEGRADED", [("node-0", USED, 1)])
    assert "symbol_error of mlx5_0:1 went up by 700, that is 100 a second" in said(verdict)


def test_a_device_that_is_made_anew_is_no_event(fabric):
    """Its counters begin at 0, `symbol_error` is below what it was, and nothing of that is an error."""
    made = fabric()
    made[2].set(0, USED, link_downed=7, symbol_error=90_000, port_rcv_errors=5_000)
    made[2].set(HANG_S - 0.3, USED, link_downed=0, symbol_error=0, port_rcv_errors=0)
    verdict = hung(made)
    assert verdict.structure in STUCK
    assert verdict.cause == "UNDETERMINED"
    assert nobody(verdict)


# Links that work badly


def test_symbol_errors_on_one_used_port_while_transfers_are_slow(fabric):
    made = fabric()
    made[2].grow(5, 12, USED, symbol_error=150)
    verdict = slow(made)
    assert (verdict.structure, verdict.cause, links(verdict)) == (
        "SLOW_TRANSFER",
        "LINK_DEGRADED",
        [("node-2", USED, 1)],
    )
    assert "node-2: symbol_error of mlx5_0:1 went up by" in said(verdict)
    assert "node-2, mlx5_0:1" in verdict.next_steps[0]
    assert verdict.cause_confidence == "medium"


def test_symbol_errors_beside_a_hang_are_a_weak_reason(fabric):
    made = fabric()
    made[2].grow(HANG_S, 12, USED, symbol_error=150)
    verdict = hung(made)
    assert verdict.structure in STUCK
    assert (verdict.cause, verdict.cause_confidence, links(verdict)) == ("LINK_DEGRADED", "low", [("node-2", USED, 1)])


def test_that_the_job_uses_a_port_which_nothing_tells_of_is_a_doubt(fabric):
    made = fabric(hca="")
    made[2].grow(5, 12, USED, symbol_error=150)
    verdict = slow(made)
    assert (verdict.cause, verdict.cause_confidence, links(verdict)) == ("LINK_DEGRADED", "low", [("node-2", USED, 1)])
    assert any("goes over that port is not told" in text for text in verdict.contradictions)


@pytest.mark.parametrize("begin_s", [5, 0], ids=["in the slow time", "all along"])
def test_symbol_errors_on_all_hosts_alike(fabric, begin_s):
    made = fabric()
    for number in range(4):
        made[number].grow(begin_s, 12, USED, symbol_error=140 + 10 * number)
    verdict = slow(made)
    assert verdict.structure == "SLOW_TRANSFER"
    assert verdict.cause != "LINK_DEGRADED"
    assert nobody(verdict)


def test_symbol_errors_that_a_port_counted_all_along(fabric):
    made = fabric()
    made[1].grow(0, 12, USED, symbol_error=150)
    verdict = slow(made)
    assert verdict.cause == "UNDETERMINED"
    assert nobody(verdict)


def test_symbol_errors_on_a_port_that_the_job_does_not_use(fabric):
    made = fabric()
    made[1].grow(5, 12, OTHER, symbol_error=150)
    assert nobody(slow(made))


def test_errors_below_the_rate_that_counts(fabric):
    made = fabric()
    made[1].grow(5, 12, USED, symbol_error=5, port_rcv_errors=5)
    assert nobody(slow(made))


def test_a_port_that_lost_lanes(fabric):
    made = fabric()
    made[3].set(5, USED, rate="100 Gb/sec (1X NDR)")
    verdict = slow(made)
    assert (verdict.cause, links(verdict)) == ("LINK_DEGRADED", [("node-3", USED, 1)])
    assert "100 Gb/sec (1X NDR)" in said(verdict)


def test_a_healthy_job_on_ports_that_count_errors_is_healthy(fabric):
    made = fabric()
    made[2].grow(5, 12, USED, symbol_error=150, port_xmit_wait=50_000)
    made.rounds(12).record(13)
    assert made.verdict().structure == "HEALTHY"


# Congestion


@pytest.mark.parametrize(
    "per_s",
    [
        {"port_xmit_wait": 60_000},
        {"np_cnp_sent": 500, "rp_cnp_handled": 400},
        {"out_of_sequence": 900, "packet_seq_err": 40},
    ],
    ids=["waits", "marks", "order and loss"],
)
def test_data_that_wait_or_are_marked_across_hosts_is_congestion_and_no_ports_fault(fabric, per_s):
    made = fabric()
    for number in (0, 1, 3):
        made[number].grow(5, 12, USED, **per_s)
    verdict = slow(made)
    assert (verdict.structure, verdict.cause) == ("SLOW_TRANSFER", "CONGESTION")
    assert nobody(verdict)
    assert next(iter(per_s)) in said(verdict)


def test_a_bad_port_that_makes_its_neighbours_wait_is_the_cause(fabric):
    made = fabric()
    made[2].grow(5, 12, USED, symbol_error=300)
    for number in (0, 1, 3):
        made[number].grow(5, 12, USED, port_xmit_wait=60_000)
    verdict = slow(made)
    assert (verdict.cause, links(verdict)) == ("LINK_DEGRADED", [("node-2", USED, 1)])


def test_another_order_alone_is_adaptive_routing(fabric):
    made = fabric()
    for number in range(4):
        made[number].grow(5, 12, USED, out_of_sequence=900)
    verdict = slow(made)
    assert verdict.cause == "UNDETERMINED"
    assert nobody(verdict)


def test_who_has_to_send_again_is_not_at_fault(fabric):
    made = fabric()
    made[0].grow(5, 12, USED, local_ack_timeout_err=20)
    verdict = slow(made)
    assert (verdict.cause, verdict.cause_confidence) == ("LINK_DEGRADED", "low")
    assert nobody(verdict)


def test_port_data_are_words_of_four_bytes(fabric):
    made = fabric(hosts=2)
    made[0].grow(0, 13, USED, start=2**20, port_xmit_data=1_000_000)
    made.rounds(12).record(13)
    shown = json.loads(CliRunner().invoke(command, [str(made.run), "--format", "json"]).output)
    [one] = [
        row
        for row in shown["counters"]
        if (row["host"], row["device"], row["counter"]) == ("node-0", USED, "port_xmit_data")
    ]
    assert one["bytes_per_s"] == pytest.approx(4_000_000, rel=0.02)
