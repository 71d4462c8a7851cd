"""What jobs without our recorder leave: counters of two frontiers, and log lines where there is no call to line up."""

from __future__ import annotations

import json
import pathlib
from dataclasses import replace

import polars as pl
import pytest
from jobs import T0, Job, S, ns, outline, table

from roundk.analyze.diagnose import diagnose
from roundk.analyze.trace import Trace
from roundk.tracer import schema


def counters(rows, counts="collectives"):
    """(rank, group, enqueued, completed)."""
    return table(
        [
            {
                "rank": rank,
                "group": group,
                "enqueued": enqueued,
                "completed": completed,
                "is_start_told": False,
                "counts": counts,
                "source": f"dump_{rank}",
            }
            for rank, group, enqueued, completed in rows
        ],
        schema.PROGRESS,
    )


def hang(*, backend="nccl", second=True):
    """Dumps of the calls in flight of four ranks, all of them in round 4 of a group; two of them have another group."""
    job = Job(4)
    job.groups[0] = ("0", "default_pg", backend, [0, 1, 2, 3])
    job.group([0, 1], "tp0", backend)
    job.rounds(3).hang(gave_up=40.0)
    if second:
        job.round(only=[0, 1], group=1)
    trace = job.trace()
    in_flight = trace.calls.filter(pl.col("outcome").cast(pl.String) != "completed")
    return replace(trace, calls=in_flight, is_post_mortem=True)


def judged(trace):
    return diagnose(trace, now_ns=T0 + 3600 * S, stall_ns=30 * S)


LAG = [(0, 0, 4, 3), (1, 0, 4, 1), (2, 0, 4, 3), (3, 0, 4, 3)]


def test_who_completed_less_than_its_peers_in_two_groups_has_a_stuck_device():
    report = judged(replace(hang(), progress=counters([*LAG, (0, 1, 2, 2), (1, 1, 2, 1)])))
    assert outline(report) == ("DEVICE_STUCK", None, "UNDETERMINED", (1,), 2, 1)
    assert report.verdicts[0].waiting_ranks == (0, 2, 3)


def test_a_lag_in_one_group_alone_is_a_tick_of_a_watchdog():
    report = judged(replace(hang(), progress=counters([*LAG, (0, 1, 2, 2), (1, 1, 2, 2)])))
    assert report.verdicts[0].structure == "ALL_ENTERED_NONE_COMPLETED"


def test_a_lag_in_groups_with_p2p_says_nothing():
    lag = counters([*LAG, (0, 1, 2, 2), (1, 1, 2, 1)], counts="calls")
    assert judged(replace(hang(), progress=lag)).verdicts[0].structure == "ALL_ENTERED_NONE_COMPLETED"


def test_a_cpu_backend_has_no_device_to_be_stuck():
    report = judged(replace(hang(backend="gloo"), progress=counters([*LAG, (0, 1, 2, 2), (1, 1, 2, 1)])))
    assert report.verdicts[0].structure == "ALL_ENTERED_NONE_COMPLETED"


def said(*facts):
    """A trace of log lines alone: (kind, host, seconds or None, fields, and a rank)."""
    rows = [
        {
            "time_ns": None if at is None else ns(at),
            "host": host,
            "rank": rank[0] if rank else None,
            "kind": kind,
            "text": kind.replace("_", " "),
            "fields": json.dumps(fields),
            "source": f"job.log:{line}",
        }
        for line, (kind, host, at, fields, *rank) in enumerate(facts, 1)
    ]
    return Trace(root=pathlib.Path(), facts=table(rows, schema.FACTS), is_post_mortem=True)


PORT_ERROR = {"event": "port error", "plugin": "NET/IB"}
LOST_A = {"status": 12, "peer_host": "a"}


def test_the_host_whose_port_failed_is_named_and_not_the_one_that_says_so():
    report = judged(said(("net_completion_error", "b", 1, LOST_A), ("net_async_event", "a", 2, PORT_ERROR)))
    assert outline(report) == ("ERROR_REPORTED", None, "LINK_DOWN", (), None, 1)
    assert report.verdicts[0].culprit_hosts == ("a",)
    assert report.verdicts[0].victims.hosts == ("b",)
    assert report.verdicts[0].cause_confidence == "high"


@pytest.mark.parametrize("back", [("net_async_event", {"event": "port active(9)"}), ("link_up", {"device": "mlx5_0"})])
def test_a_port_that_came_back_flapped(back):
    kind, fields = back
    report = judged(
        said(("net_async_event", "a", 2, PORT_ERROR), (kind, "a", 5, fields), ("net_completion_error", "b", 3, LOST_A))
    )
    assert report.verdicts[0].cause == "LINK_FLAP"
    assert report.verdicts[0].culprit_hosts == ("a",)


def test_the_peer_that_a_completion_error_names_is_the_suspect():
    report = judged(said(("net_completion_error", "b", 1, LOST_A), ("net_closed", "c", 2, {"peer": "192.0.2.1"})))
    assert outline(report) == ("ERROR_REPORTED", None, "TRANSPORT_ERROR", (), None, 1)
    assert report.verdicts[0].culprit_hosts == ("a",)
    assert report.verdicts[0].structure_confidence != "high"


def test_a_flush_is_an_echo_and_names_nobody():
    report = judged(said(("net_completion_error", "b", 1, {"status": 5, "peer_host": "a"})))
    assert report.exit_code == 3
    assert report.verdicts[0].culprit_hosts == ()


def test_of_two_errors_the_earlier_is_the_root():
    errors = [("net_completion_error", "b", 7, LOST_A), ("xid", "c", 3, {"xid": 79}, 5)]
    report = judged(said(*errors))
    assert outline(report) == ("ERROR_REPORTED", None, "GPU_FAULT", (5,), None, 1)
    later = [errors[0], ("xid", "c", 9, {"xid": 79}, 5)]
    assert judged(said(*later)).verdicts[0].cause == "TRANSPORT_ERROR"


def test_a_gpu_fault_of_the_kernel_is_more_than_the_error_that_cuda_makes_of_it():
    report = judged(said(("nccl_cuda_failure", "b", 1, {"code": 719}, 4), ("sxid", "c", 3, {"xid": 12028}, 5)))
    assert report.verdicts[0].culprit_ranks == (5,)
    alone = judged(said(("nccl_cuda_failure", "b", 1, {"code": 719}, 4)))
    assert alone.verdicts[0].cause_confidence == "low"


def test_a_programs_own_xid_is_no_broken_gpu():
    assert judged(said(("xid", "c", 3, {"xid": 31}, 5))).verdicts[0].structure == "INSUFFICIENT_EVIDENCE"


def test_a_process_that_the_kernel_killed_for_memory_is_named():
    report = judged(said(("oom_kill", "c", 3, {"name": "python"}, 2), ("gloo_closed", "b", 4, {})))
    assert outline(report) == ("ERROR_REPORTED", None, "OOM_KILLED", (2,), None, 1)


def test_sockets_without_a_device_found_are_a_fallback_and_nobodys_fault():
    missing = ("nccl_no_device", "a", None, {"plugin": "NET/IB"})
    report = judged(said(missing, ("nccl_network", "a", None, {"network": "Socket"})))
    assert outline(report) == ("CONFIG_FINDING", None, "TRANSPORT_FALLBACK", (), None, 1)
    assert report.status == "slow"
    chosen = judged(said(("nccl_network", "a", None, {"network": "Socket"})))
    assert chosen.verdicts[0].structure == "INSUFFICIENT_EVIDENCE"


def test_who_gave_up_first_is_told_and_not_blamed():
    waited = ("gloo_timeout", "b", 60, {"timeout_ms": 50_000, "local_rank": 6})
    report = judged(said(waited, ("gloo_closed", "c", 61, {"local_rank": 2})))
    assert outline(report) == ("INSUFFICIENT_EVIDENCE", None, "UNDETERMINED", (), None, 3)
    assert "ocal rank 6 on b" in report.verdicts[0].summary
    assert report.verdicts[0].onset_ns == ns(10)
    assert report.verdicts[0].culprit_hosts == ()
