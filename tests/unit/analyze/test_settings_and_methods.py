"""Settings that explain a job, alone and beside rounds; other methods that name the same ranks, or others."""

from __future__ import annotations

import pathlib
from dataclasses import replace

import pytest
from jobs import T0, Job, S, table
from test_explained import BEGAN, Hang, fact

from roundk.analyze.case import build
from roundk.analyze.diagnose import diagnose
from roundk.analyze.structure import methods
from roundk.analyze.trace import Trace
from roundk.tracer import schema


def alone(*facts):
    """A trace of log lines alone."""
    trace = Trace(root=pathlib.Path(), facts=table(list(facts), schema.FACTS), is_post_mortem=True)
    return diagnose(trace, now_ns=T0 + 3600 * S, stall_ns=30 * S)


def connect(host, error, peer="172.17.0.2", at=1):
    return fact("net_call_failed", host, at, call="connect", peer=peer, error=error)


def setting(host, name, value):
    return fact("nccl_setting", host, None, name=name, value=value)


def network(host, name):
    return fact("nccl_network", host, None, network=name)


TWICE = fact("nccl_duplicate_gpu", "a", 1, comm_ranks=[0, 1], bus_id="1b000")
FALLBACK = (network("a", "Socket"), fact("nccl_no_device", "a", None, plugin="NET/IB"))


@pytest.mark.parametrize(
    ("facts", "cause", "sure"),
    [
        ([TWICE], "DUPLICATE_GPU", "high"),
        ([fact("nccl_version_mismatch", "a", 1, sides=[[1, "2.27.5"], [0, "2.27.3"]])], "NETWORK_CONFIG", "high"),
        ([fact("nccl_no_interface", "a", 1, by="Bootstrap")], "NETWORK_CONFIG", "high"),
        ([connect("b", "Software caused connection abort"), connect("c", "timed out")], "NETWORK_CONFIG", "high"),
        ([connect("b", "Connection refused"), connect("c", "Connection refused")], "NETWORK_CONFIG", "medium"),
        ([connect("b", "No route to host", peer="10.0.0.7")], "NETWORK_CONFIG", "medium"),
        ([network("a", "IB"), network("b", "IB"), network("c", "Socket")], "NETWORK_CONFIG", "high"),
        ([setting("a", "NCCL_PROTO", "LL"), setting("b", "NCCL_PROTO", "Simple")], "NETWORK_CONFIG", "medium"),
        ([setting("a", "NCCL_ALGO", "Ring"), setting("b", "NCCL_DEBUG", "INFO")], "NETWORK_CONFIG", "low"),
        (list(FALLBACK), "TRANSPORT_FALLBACK", "high"),
    ],
)
def test_settings_that_explain_a_job(facts, cause, sure):
    verdict = alone(*facts).verdicts[0]
    assert (verdict.structure, verdict.cause, verdict.cause_confidence) == ("CONFIG_FINDING", cause, sure)
    assert verdict.culprit_ranks == ()
    assert verdict.next_steps


@pytest.mark.parametrize(
    "facts",
    [
        [connect("b", "Connection refused", peer="10.0.0.7")],  # a peer that ended
        [connect("b", "Connection refused", peer="127.0.0.1")],  # the same on the job's only host
        [network("a", "IB"), network("b", "IB")],
        [setting("a", "NCCL_SOCKET_IFNAME", "eth0"), setting("b", "NCCL_SOCKET_IFNAME", "ens3")],
        [setting("a", "NCCL_PROTO", "LL"), setting("b", "NCCL_PROTO", "LL")],
    ],
)
def test_settings_that_explain_nothing(facts):
    assert alone(*facts).verdicts[0].structure == "INSUFFICIENT_EVIDENCE"


def test_queue_pairs_that_cannot_be_connected():
    failed = {"call": "ibv_modify_qp", "next_state": "RTR", "error": "Connection timed out", "device": "mlx5_0"}
    empty = alone(fact("net_call_failed", "a", 1, **failed, gid_index=3, local_gid="::"))
    assert (empty.verdicts[0].cause, empty.verdicts[0].cause_confidence) == ("NETWORK_CONFIG", "high")
    told = alone(fact("net_call_failed", "a", 1, **failed, gid_index=3, local_gid="::ffff:10.0.0.1"))
    assert told.verdicts[0].cause_confidence == "medium"
    assert "GID index 3" in told.verdicts[0].summary


def test_a_setting_that_keeps_a_job_from_running_is_no_slow_job():
    assert alone(TWICE).status == "stuck"
    assert alone(TWICE, fact("elastic_failed", "a", 2, exit_code=1)).status == "failed"
    assert alone(*FALLBACK).status == "slow"


def report(job, *facts):
    trace = replace(job.trace(), is_post_mortem=True, facts=table(list(facts), schema.FACTS))
    return diagnose(trace, now_ns=T0 + 7200 * S, stall_ns=30 * S)


def test_a_setting_is_the_root_of_what_hangs_in_the_first_round():
    job = Job(4)
    job.groups[0] = ("0", "default_pg", "nccl", [0, 1, 2, 3])
    found = report(job.hang(enter=BEGAN), TWICE)
    assert [v.cause for v in found.verdicts] == ["DUPLICATE_GPU"]


def test_a_setting_beside_a_hang_after_good_rounds_is_a_matter_of_its_own():
    found = report(Hang(without=[2]).job, TWICE)
    assert [v.structure for v in found.verdicts] == ["RANK_NOT_ENTERED", "CONFIG_FINDING"]
    slow = report(Hang(without=[2]).job, *FALLBACK)
    assert [v.structure for v in slow.verdicts] == ["RANK_NOT_ENTERED", "CONFIG_FINDING"]


def test_a_fallback_is_what_is_wrong_with_a_job_that_went_well():
    found = report(Job(4).rounds(5).clean(0, 1, 2, 3, at=1.0), *FALLBACK)
    assert [(v.structure, v.cause) for v in found.verdicts] == [("CONFIG_FINDING", "TRANSPORT_FALLBACK")]
    assert found.status == "slow"


def lagging(*ranks, did="not_joined"):
    return fact("desync_lagging", "h0", BEGAN + 600, ranks=list(ranks), did=did, seq=4)


def test_a_report_that_names_the_same_rank_is_evidence():
    found = report(Hang(without=[2]).job, lagging(2))
    assert (found.verdicts[0].structure, found.verdicts[0].culprit_ranks) == ("RANK_NOT_ENTERED", (2,))
    assert any("desync report names rank 2 too" in one.what for one in found.verdicts[0].evidence)


@pytest.mark.parametrize(
    "other",
    [
        lagging(7),
        fact("monitored_barrier", "h0", BEGAN + 30, ranks=[7], reporter=0),
        fact("ras_dead", "h7", BEGAN + 30, rank=7),
    ],
)
def test_another_method_that_names_a_rank_that_does_not_wait_disagrees(other):
    stuck = Hang(world=8, only=[0, 1, 2, 3], without=[2])
    found = report(stuck.job, other)
    first = found.verdicts[0]
    assert (first.structure, first.culprit_ranks, found.status, found.exit_code) == (
        "METHODS_DISAGREE",
        (),
        "undetermined",
        3,
    )
    assert "rank 2" in first.summary
    assert "rank 7" in first.summary


@pytest.mark.parametrize("other", [lagging(1), lagging(1, 3), lagging(7, did="not_finished"), lagging(1 << 20)])
def test_a_method_that_names_a_victim_or_nobody_does_not_disagree(other):
    found = report(Hang(world=8, only=[0, 1, 2, 3], without=[2]).job, other)
    assert (found.verdicts[0].structure, found.verdicts[0].culprit_ranks) == ("RANK_NOT_ENTERED", (2,))


def test_no_rank_named_by_the_rounds_is_no_disagreement():
    trace = replace(Hang().job.trace(), is_post_mortem=True, facts=table([lagging(2)], schema.FACTS))
    case = build(trace, now_ns=T0 + 7200 * S, stall_ns=30 * S)
    assert methods.disagreement(case, []) is None
    assert report(Hang().job, lagging(2)).verdicts[0].structure == "ALL_ENTERED_NONE_COMPLETED"


@pytest.mark.parametrize("kind", ["watchdog_abort", "elastic_failure", "slurm_time_limit", "terminate"])
def test_a_line_that_takes_the_job_down_tells_that_it_ended(kind):
    job = Hang(without=[2]).job
    assert report(job).status == "stuck"
    assert report(job, fact(kind, "h1", BEGAN + 600, rank=1)).status == "failed"


@pytest.mark.parametrize(("gave_up", "detail"), [(BEGAN + 60, "DEAD"), (BEGAN + 10, "SILENT")])
def test_a_signal_counts_where_nobody_gave_up_before_it(gave_up, detail):
    """torchrun kills what does not heed its SIGTERM, so a SIGKILL may be the end of a victim."""
    made = Hang(without=[2])
    for rank in range(4):
        made.rank(rank, last_alive_ns=BEGAN)
    made.rank(2, last_alive_ns=None, exit_signal=9, exit_ns=BEGAN + 40, exit_source="agent")
    waited = fact("collective_timeout", "h1", gave_up, rank=1, ran_for_ms=9000)
    assert made.judged(waited).detail == detail


def test_rounds_that_went_well_refute_what_would_have_kept_them_from_running():
    ended = Job(4).rounds(5).clean(0, 1, 2, 3, at=1.0)
    assert report(ended, network("a", "IB"), network("b", "Socket")).verdicts[0].structure == "HEALTHY"
    assert report(ended, TWICE).verdicts[0].structure == "HEALTHY"


def test_an_address_that_is_not_reached_after_a_port_failed_is_its_echo():
    lost = fact("net_async_event", "c", 1, event="port error", device="mlx5_0")
    late = alone(lost, connect("b", "No route to host", peer="10.0.0.7", at=40))
    assert (late.verdicts[0].cause, late.verdicts[0].culprit_hosts) == ("LINK_DOWN", ("c",))
    first = alone(
        fact("net_async_event", "c", 90, event="port error"), connect("b", "No route to host", "10.0.0.7", 40)
    )
    assert first.verdicts[0].cause == "NETWORK_CONFIG"


def test_a_setting_that_differs_does_not_outrank_an_error():
    differ = (setting("a", "NCCL_PROTO", "LL"), setting("b", "NCCL_PROTO", "Simple"))
    assert alone(*differ, fact("xid", "c", 5, xid=79)).verdicts[0].cause == "GPU_FAULT"
