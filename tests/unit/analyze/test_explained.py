"""Which facts become the cause of a structure: on its path, in time, and not alike on hosts that are healthy."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from jobs import T0, Job, S, ns, table

from roundk.analyze.diagnose import diagnose
from roundk.tracer import schema

BEGAN = 10.0
"""When the hang begins."""


def fact(kind, host, at, rank=None, **fields):
    return {
        "time_ns": None if at is None else ns(at),
        "host": host,
        "rank": rank,
        "kind": kind,
        "text": kind.replace("_", " "),
        "fields": json.dumps(fields),
        "source": f"kern.log:{kind}",
    }


def sample(host, device, counter, at, value, *, kind="ib", port=1):
    return {
        "time_ns": None if at is None else ns(at),
        "host": host,
        "kind": kind,
        "device": device,
        "port": port,
        "counter": counter,
        "value": value,
        "is_read": True,
        "source": "counters.txt",
    }


def port_lost(host, at, **fields):
    return fact("net_async_event", host, at, event="port error", **fields)


def lost_to(host, by, at, status=12):
    return fact("net_completion_error", by, at, status=status, peer_host=host)


def hosts_of(world, per_host):
    return [f"h{rank // per_host}" for rank in range(world)]


class Hang:
    """Ranks over hosts, a few good rounds, then a round that hangs from `BEGAN` on; without some ranks, if said."""

    def __init__(self, world=4, per_host=1, *, without=(), only=None):
        self.job = Job(world)
        self.job.groups[0] = ("0", "default_pg", "nccl", list(range(world)))
        self.job.rounds(3)
        group = 0 if only is None else self.job.group(only, "tp", "nccl")
        if only is not None:
            self.job.round(group=group)
        self.job.hang(without=without, enter=BEGAN, group=group)
        for rank, host in enumerate(hosts_of(world, per_host)):
            self.job.rank(rank, host=host, last_alive_ns=BEGAN + 5)

    def rank(self, rank, **columns):
        self.job.rank(rank, **columns)
        return self

    def judged(self, *facts, **tables):
        trace = replace(self.job.trace(), is_post_mortem=True, facts=table(list(facts), schema.FACTS), **tables)
        return diagnose(trace, now_ns=T0 + 7200 * S, stall_ns=30 * S).verdicts[0]


def device_stuck(world=4, culprit=1, **job):
    """One rank completed less than its peers in two groups."""
    made = Hang(world, **job)
    pair = [culprit - culprit % 2, culprit - culprit % 2 + 1]
    made.job.group(pair, "tp0", "nccl")
    for call in made.job.calls:
        if call["rank"] == culprit and call["seq"] > 1:
            call |= {"end_ns": None, "outcome": "open"}
    rows = [(r, 0, 4, 1 if r == culprit else 3) for r in range(world)]
    rows += [(r, 1, 2, 1 if r == culprit else 2) for r in pair]
    progress = [
        {"rank": r, "group": g, "enqueued": e, "completed": c, "is_start_told": False, "counts": "collectives",
         "source": f"dump_{r}"}
        for r, g, e, c in rows
    ]  # fmt: skip
    return made, {"progress": table(progress, schema.PROGRESS)}


def killed(rank=2):
    return Hang(without=[rank]).rank(rank, exit_signal=9, exit_ns=BEGAN + 2, last_alive_ns=BEGAN + 1)


def test_a_rank_that_the_kernel_killed_for_memory():
    verdict = killed().judged(fact("oom_kill", "h2", BEGAN + 1.2, pid=102, name="python"))
    assert (verdict.structure, verdict.detail, verdict.culprit_ranks) == ("RANK_NOT_ENTERED", "DEAD", (2,))
    assert (verdict.cause, verdict.cause_confidence) == ("OOM_KILLED", verdict.structure_confidence)
    assert any("kern.log" in one.source for one in verdict.evidence)
    assert "memory ran out" in verdict.summary


def test_a_process_killed_on_another_host_or_long_before_explains_no_end():
    assert killed().judged(fact("oom_kill", "h1", BEGAN + 1.2, pid=102)).cause == "PROCESS_KILLED"
    assert killed().judged(fact("oom_kill", "h2", BEGAN - 300, pid=102)).cause == "PROCESS_KILLED"


def test_a_silent_rank_whose_process_was_killed_for_memory_is_dead():
    silent = Hang(without=[2]).rank(2, last_alive_ns=BEGAN - 3)
    assert silent.judged().detail == "SILENT"
    verdict = silent.judged(fact("oom_kill", "h2", BEGAN - 3, pid=102))
    assert (verdict.detail, verdict.cause) == ("DEAD", "OOM_KILLED")
    assert silent.judged(fact("oom_kill", "h2", BEGAN - 3, pid=999)).detail == "SILENT"


def test_a_device_that_stopped_on_a_host_whose_gpu_reported_a_fault():
    made, progress = device_stuck()
    verdict = made.judged(fact("xid", "h1", BEGAN - 1, xid=79), **progress)
    assert (verdict.structure, verdict.culprit_ranks, verdict.cause) == ("DEVICE_STUCK", (1,), "GPU_FAULT")
    assert verdict.cause_confidence == "high"
    assert verdict.contradictions == ()


@pytest.mark.parametrize(("xid", "cause"), [(74, "NVLINK_FAULT"), (145, "NVLINK_FAULT"), (119, "GPU_FAULT")])
def test_an_xid_tells_what_it_is(xid, cause):
    made, progress = device_stuck()
    assert made.judged(fact("xid", "h1", BEGAN, xid=xid), **progress).cause == cause


@pytest.mark.parametrize("xid", [13, 31, 43, 45])
def test_xids_of_programs_and_of_their_ends_are_echoes(xid):
    made, progress = device_stuck()
    assert made.judged(fact("xid", "h1", BEGAN, xid=xid), **progress).cause == "UNDETERMINED"


@pytest.mark.parametrize("at", [BEGAN - 1200, BEGAN + 600])
def test_a_fault_long_before_or_after_the_onset_is_no_cause(at):
    made, progress = device_stuck()
    assert made.judged(fact("xid", "h1", at, xid=79), **progress).cause == "UNDETERMINED"


def test_a_fault_without_a_time_is_sure_to_medium_at_most():
    made, progress = device_stuck()
    verdict = made.judged(fact("xid", "h1", None, xid=79, device="GPU 3"), **progress)
    assert (verdict.cause, verdict.cause_confidence) == ("GPU_FAULT", "medium")


def test_a_fault_that_healthy_hosts_report_alike_convicts_nobody():
    made, progress = device_stuck()
    everywhere = [fact("xid", host, BEGAN - 1, xid=79) for host in ("h0", "h1", "h2", "h3")]
    assert made.judged(*everywhere, **progress).cause == "UNDETERMINED"


def test_a_fault_that_one_healthy_host_of_many_reports_too_counts_against_it():
    made, progress = device_stuck(world=8)
    two = [fact("xid", host, BEGAN - 1, xid=79) for host in ("h1", "h6")]
    verdict = made.judged(*two, **progress)
    assert (verdict.cause, verdict.cause_confidence) == ("GPU_FAULT", "medium")
    assert any("h6" in text for text in verdict.contradictions)
    assert verdict.structure_confidence == "high"


def test_the_fault_of_another_ranks_gpu_on_the_same_host_is_not_this_ranks():
    made, progress = device_stuck(per_host=2)
    assert made.judged(fact("xid", "h0", BEGAN, rank=0, xid=79), **progress).cause == "UNDETERMINED"


def test_a_port_that_failed_under_a_round_that_everybody_entered():
    verdict = Hang().judged(port_lost("h2", BEGAN - 2, device="mlx5_0", port=1), lost_to("h2", "h1", BEGAN + 32))
    assert (verdict.structure, verdict.cause) == ("ALL_ENTERED_NONE_COMPLETED", "LINK_DOWN")
    assert verdict.culprit_ranks == ()
    assert verdict.culprit_hosts == ("h2",)
    assert [(link.host, link.device, link.port) for link in verdict.culprit_links] == [("h2", "mlx5_0", 1)]
    assert "h1" in verdict.victims.hosts


def test_a_port_that_came_back_flapped():
    back = fact("net_async_event", "h2", BEGAN + 9, event="port active(9)", device="mlx5_0")
    verdict = Hang().judged(port_lost("h2", BEGAN - 2, device="mlx5_0"), back)
    assert (verdict.cause, verdict.culprit_hosts) == ("LINK_FLAP", ("h2",))


def used(host, device, rank):
    return {"host": host, "rank": rank, "comm_rank": rank, "channel": 0, "shape": "ring", "direction": "send",
            "peer": 0, "transport": "NET/IB", "device": device, "source": "nccl.log:1"}  # fmt: skip


def test_a_port_that_the_group_uses_is_sure_and_one_that_it_does_not_use_is_no_cause():
    channels = table([used("h2", "mlx5_0", 2)], schema.CHANNELS)
    sure = Hang().judged(port_lost("h2", BEGAN - 2, device="mlx5_0"), channels=channels)
    assert (sure.cause, sure.cause_confidence) == ("LINK_DOWN", sure.structure_confidence)
    other = Hang().judged(port_lost("h2", BEGAN - 2, device="mlx5_7"), channels=channels)
    assert (other.cause, other.culprit_hosts, other.culprit_links) == ("UNDETERMINED", (), ())
    assert any("mlx5_7" in piece.what and "does not use" in piece.what for piece in other.evidence)


def test_a_port_does_not_explain_a_group_that_stays_on_one_host():
    verdict = Hang(world=8, per_host=4, only=[4, 5, 6, 7]).judged(port_lost("h1", BEGAN - 2, device="mlx5_0"))
    assert (verdict.structure, verdict.cause) == ("ALL_ENTERED_NONE_COMPLETED", "UNDETERMINED")


def test_a_port_does_not_explain_that_a_rank_never_came():
    verdict = Hang(without=[2]).judged(port_lost("h2", BEGAN - 2, device="mlx5_0"))
    assert (verdict.structure, verdict.cause) == ("RANK_NOT_ENTERED", "UNDETERMINED")


def test_a_port_may_fail_until_the_retries_are_used_up():
    late = port_lost("h2", BEGAN + 100, device="mlx5_0")
    assert Hang().judged(late).cause == "UNDETERMINED"  # NCCL 2.23 on: 4.096 us x 2^20 x 8 = 34 s
    assert Hang().judged(port_lost("h2", BEGAN + 30, device="mlx5_0")).cause == "LINK_DOWN"
    longer = fact("nccl_setting", "h2", None, name="NCCL_IB_TIMEOUT", value="22")  # 137 s
    assert Hang().judged(late, longer).cause == "LINK_DOWN"
    old = fact("nccl_version", None, None, version="2.18.3+cuda12.1")  # 2^18: 8.6 s
    assert Hang().judged(port_lost("h2", BEGAN + 30, device="mlx5_0"), old).cause == "UNDETERMINED"


def test_two_ports_that_fail_together_name_no_host():
    verdict = Hang().judged(port_lost("h1", BEGAN - 2), port_lost("h2", BEGAN - 1.9))
    assert (verdict.cause, verdict.cause_confidence, verdict.culprit_hosts) == ("LINK_DOWN", "low", ())


def test_the_peer_that_a_completion_error_names_is_the_suspect_of_a_round():
    verdict = Hang().judged(lost_to("h2", "h1", BEGAN + 34), lost_to("h2", "h3", BEGAN + 34.2))
    assert (verdict.cause, verdict.culprit_ranks, verdict.culprit_hosts) == ("TRANSPORT_ERROR", (), ("h2",))
    assert verdict.cause_confidence in ("medium", "low")
    assert set(verdict.victims.hosts) >= {"h1", "h3"}


@pytest.mark.parametrize(
    "echo",
    [
        lost_to("h2", "h1", BEGAN + 34, status=5),
        fact("net_closed", "h1", BEGAN + 3, peer="192.0.2.1", peer_host="h2"),
        fact("watchdog_abort", "h1", BEGAN + 600, rank=1),
        fact("nccl_returned", "h1", BEGAN + 3, code=6),
        fact("remote_error", "h1", BEGAN + 3, rank=1, origin_rank=2),
    ],
)
def test_echoes_explain_nothing(echo):
    verdict = Hang().judged(echo)
    assert (verdict.cause, verdict.culprit_hosts, verdict.culprit_ranks) == ("UNDETERMINED", (), ())


def test_completion_errors_that_name_another_host_speak_against_a_port():
    verdict = Hang().judged(port_lost("h2", BEGAN - 2, device="mlx5_0"), lost_to("h3", "h0", BEGAN + 34))
    assert verdict.cause == "LINK_DOWN"
    assert any("h3" in text for text in verdict.contradictions)
    assert verdict.cause_confidence == "low"


def test_a_counter_that_moved_between_two_far_samples_is_sure_to_medium_at_most():
    counters = [sample("h2", "mlx5_0", "link_downed", at, value) for at, value in ((-3000, 4), (BEGAN + 20, 5))]
    quiet = [sample(h, "mlx5_0", "link_downed", at, 0) for h in ("h0", "h1", "h3") for at in (-3000, BEGAN + 20)]
    channels = table([used("h2", "mlx5_0", 2)], schema.CHANNELS)
    verdict = Hang().judged(counters=table([*counters, *quiet], schema.COUNTERS), channels=channels)
    assert (verdict.cause, verdict.cause_confidence) == ("LINK_FLAP", "medium")
    assert verdict.culprit_hosts == ("h2",)


def test_a_counter_that_moved_on_healthy_hosts_alike_convicts_nobody():
    made = Hang(world=8, only=[0, 1, 2, 3])
    for rank in range(4, 8):
        made.job.rank(rank, last_alive_ns=BEGAN + 1)
    moved = [
        sample(f"h{n}", "mlx5_0", "link_downed", at, value) for n in range(2, 8) for at, value in ((0, 0), (BEGAN, 1))
    ]
    verdict = made.judged(counters=table(moved, schema.COUNTERS))
    assert (verdict.cause, verdict.culprit_hosts) == ("UNDETERMINED", ())


def test_a_link_that_was_down_all_along_is_no_cause():
    down = fact("link_down", "h2", None, device="mlx5_3", state="down")
    still = [sample("h2", "mlx5_3", "link_downed", at, 1) for at in (0, BEGAN + 20)]
    assert Hang().judged(down, counters=table(still, schema.COUNTERS)).cause == "UNDETERMINED"


def test_an_exception_of_cuda_with_an_xid_behind_it_is_the_gpus():
    made = Hang(without=[2])
    made.job.raises(2, at=BEGAN + 1, kind="RuntimeError", message="CUDA error: unspecified launch failure")
    assert made.judged(fact("xid", "h2", BEGAN + 0.9, xid=79)).cause == "GPU_FAULT"
    assert made.judged().cause == "EXCEPTION"


def test_an_exception_of_the_programs_own_stays_one():
    made = Hang(without=[2])
    made.job.raises(2, at=BEGAN + 1)
    assert made.judged(fact("xid", "h2", BEGAN + 0.9, xid=79)).cause == "EXCEPTION"


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("CUDA error: uncorrectable ECC error encountered", "GPU_FAULT"),
        ("CUDA error: uncorrectable NVLink error detected during the execution", "NVLINK_FAULT"),
        ("CUDA error: an illegal memory access was encountered", "EXCEPTION"),
    ],
)
def test_an_exception_whose_words_tell_of_broken_hardware(message, cause):
    made = Hang(without=[2])
    made.job.raises(2, at=BEGAN + 1, kind="torch.AcceleratorError", message=message)
    assert made.judged().cause == cause


def test_diverging_code_is_not_explained_by_a_broken_machine():
    made = Hang()
    made.job.calls[-1]["op"] = "all_gather"
    verdict = made.judged(fact("xid", "h3", BEGAN - 1, xid=79))
    assert (verdict.structure, verdict.cause) == ("SIGNATURE_MISMATCH", "CODE_DIVERGENCE")


def test_a_process_killed_on_a_host_of_an_open_round_may_be_anybodys():
    verdict = Hang().judged(fact("oom_kill", "h2", BEGAN - 1, pid=999, name="sshd"))
    assert (verdict.cause, verdict.cause_confidence, verdict.culprit_hosts) == ("OOM_KILLED", "low", ())


def test_a_gpu_of_a_host_with_ranks_outside_the_group_may_be_theirs():
    both = Hang(world=8, per_host=2, only=[0, 2, 4, 6]).judged(fact("xid", "h1", BEGAN - 1, xid=79))
    assert (both.cause, both.cause_confidence) == ("GPU_FAULT", "medium")
    assert any("which rank" in text for text in both.contradictions)


def test_the_rank_whose_gpu_failed_under_a_round_is_named():
    verdict = Hang(per_host=2).judged(fact("xid", "h1", BEGAN - 1, rank=3, xid=79))
    assert (verdict.structure, verdict.cause, verdict.culprit_ranks) == (
        "ALL_ENTERED_NONE_COMPLETED",
        "GPU_FAULT",
        (3,),
    )


def test_the_first_of_two_faults_is_the_cause():
    xid, port = fact("xid", "h1", BEGAN - 20, xid=79), port_lost("h2", BEGAN - 5, device="mlx5_0")
    assert Hang().judged(xid, port).culprit_hosts == ("h1",)
    assert Hang().judged(fact("xid", "h1", BEGAN + 10, xid=79), port).culprit_hosts == ("h2",)


def test_what_was_taken_for_alive_and_was_killed_is_told_as_killed():
    alive = Hang(without=[2])
    verdict = alive.judged(fact("oom_kill", "h2", BEGAN + 1, pid=102))
    assert alive.judged().detail == "IDLE"
    assert (verdict.detail, verdict.cause) == ("DEAD", "OOM_KILLED")
    assert "alive" not in verdict.summary
