"""Logs of jobs: what is put together from several lines, whose it is, when it was; and whatever stands in them."""

from __future__ import annotations

import dataclasses
import gzip
import pathlib
import re
import sys
from datetime import UTC, datetime

import log_lines
import logs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundk.analyze import sources
from roundk.analyze.sources import joblog
from roundk.analyze.sources.inputs import Hints, Input

REPORTS = pathlib.Path(__file__).parents[5] / "shared" / "cases" / "reports"


def report(name):
    folder = REPORTS / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is not here")
    return joblog.load([Input("input.log", folder / "input.log")], Hints())


def rows(table):
    return list(table.iter_rows(named=True))


class TestReports:
    def test_rank_that_skipped_a_sample(self):
        found = report("01-skip-sample-not-entered")
        assert [(c["rank"], c["seq"], c["op"], c["numel"], c["outcome"]) for c in rows(found.calls)] == [
            (rank, 21937, "all_gather_into_tensor", 176556032, "open") for rank in (0, 2, 3)
        ]
        assert [(p["rank"], p["enqueued"], p["completed"]) for p in rows(found.progress)] == [
            (0, 21937, 21936),
            (1, 21936, 21936),
            (2, 21937, 21936),
            (3, 21937, 21936),
        ]
        assert rows(found.groups) == [
            {"group": 0, "name": "0", "desc": "default_pg", "backend": "nccl", "ranks": [0, 1, 2, 3]}
        ]
        signal = logs.fact(found, "dump_signal")
        assert (signal["rank"], signal["fields"]["origin_rank"], signal["source"]) == (1, 0, "input.log:10")
        assert (
            found.calls["enter_ns"][0] == signal["time_ns"] - 103_188_869 - 600_031_000_000
        )  # 17.204411870 - 17.101223001

    def test_rank_that_raised(self):
        found = report("05-exception-rank-has-no-dump")
        raised = next(row for row in rows(found.ranks) if row["rank"] == 2)
        assert raised["exception_type"] == "ValueError"
        assert raised["exception_message"] == "could not decode sample 183220"
        assert raised["exception_site"] == "/app/train.py:52"
        assert raised["source"] == "input.log:1"
        assert raised["data"] == "missing"
        assert found.groups["ranks"][0].to_list() == [0, 1, 2, 3]
        assert logs.fact(found, "dump_not_finished")["fields"]["waited_ms"] == 60000

    def test_port_errors_then_status_12(self):
        found = report("06-ib-port-error-then-status12")
        events = logs.facts(found, "net_async_event")
        assert {(row["host"], row["fields"]["event"]) for row in events} == {("node-a", "port error")}
        assert sorted(row["fields"]["pid"] for row in events) == list(range(34050, 34058))
        error = logs.fact(found, "net_completion_error")
        assert (error["host"], error["fields"]["status"], error["fields"]["peer_host"]) == ("node-b", 12, "node-a")
        assert logs.fact(found, "nccl_returned")["fields"]["count"] == 3

    def test_fallback_to_sockets(self):
        found = report("08-fallback-to-socket")
        networks = logs.facts(found, "nccl_network")
        assert [(row["host"], row["fields"]["network"]) for row in networks] == [
            ("node-a", "Socket"),
            ("node-b", "Socket"),
        ]
        assert [row["fields"]["address"] for row in logs.facts(found, "nccl_address")] == ["192.0.2.21", "192.0.2.22"]
        assert len(logs.facts(found, "nccl_no_device")) == 2

    def test_gloo_names_no_rank(self):
        found = report("13-gloo-recv-timeout-no-rank")
        timeout, closed = logs.fact(found, "gloo_timeout"), logs.fact(found, "gloo_closed")
        assert (timeout["host"], timeout["rank"], timeout["fields"]["local_rank"]) == ("trainer22", None, 6)
        assert (closed["host"], closed["rank"], closed["fields"]["peer"]) == ("trainer09", None, "192.0.2.22")
        assert found.ranks.is_empty()


RAISED = """\
{p}Traceback (most recent call last):
{p}  File "/app/train.py", line 91, in <module>
{p}    main()
{p}    ^^^^^^
{p}  File "/app/train.py", line {line}, in main
{p}    dist.all_reduce(x)
{p}  File "/usr/lib/python3/site-packages/torch/distributed/distributed_c10d.py", line 3252, in all_reduce
{p}    work.wait()
{p}RuntimeError: it is {line}
"""


def raised(prefix, line):
    return RAISED.format(p=prefix, line=line).splitlines()


class TestTracebacks:
    @given(order=st.randoms(use_true_random=False))
    @settings(max_examples=15, deadline=None)
    def test_ranks_that_raise_at_once_are_put_apart(self, order):
        streams = [raised(f"[rank{rank}]: ", 50 + rank) for rank in range(4)]
        mixed = []
        while any(streams):
            mixed.append(order.choice([stream for stream in streams if stream]).pop(0))
            mixed += ["2026-01-01 10:00:00 iteration 7"] * order.randrange(2)
        found = logs.part("\n".join(mixed))
        assert [(r["rank"], r["exception_site"], r["exception_message"]) for r in rows(found.ranks)] == [
            (rank, f"/app/train.py:{50 + rank}", f"it is {50 + rank}") for rank in range(4)
        ]

    @pytest.mark.parametrize(
        "prefix", ["", "[default3]:", "[1,3]<stderr>:", "3: ", "(W pid=9) ", "2026-01-01T10:00:00Z stderr F "]
    )
    def test_prefixes_leave_the_indentation(self, prefix):
        fact = logs.fact(logs.part("\n".join(raised(prefix, 7))), "exception")
        assert (fact["fields"]["type"], fact["fields"]["site"], fact["fields"]["frames"]) == (
            "RuntimeError",
            "/app/train.py:7",
            3,
        )
        assert "is_uncaught" not in fact["fields"]

    def test_chain_is_one_exception(self):
        for link in (
            "During handling of the above exception, another exception occurred:",
            "The above exception was the direct cause of the following exception:",
        ):
            first = [
                "Traceback (most recent call last):",
                '  File "/app/a.py", line 3, in f',
                "    1 / 0",
                "ZeroDivisionError: first",
            ]
            lines = [*first, "", link, "", *raised("", 9)]
            fact = logs.fact(logs.part("\n".join("[rank1]: " + line for line in lines)), "exception")
            assert fact["fields"]["message"] == "it is 9"
            assert fact["fields"]["before"] == [
                {"type": "ZeroDivisionError", "message": "first", "site": "/app/a.py:3"}
            ]
            assert fact["source"] == "job.log:8"

    def test_two_exceptions_are_two_without_a_link(self):
        found = logs.part("\n".join([*raised("[rank1]: ", 3), *raised("[rank1]: ", 4)]))
        assert [row["fields"]["message"] for row in logs.facts(found, "exception")] == ["it is 3", "it is 4"]

    def test_process_that_dies_in_the_middle_leaves_nothing_open(self):
        lines = raised("[rank1]: ", 3)[:4] + ["noise"] * 5000 + raised("[rank1]: ", 4)
        assert logs.fact(logs.part("\n".join(lines)), "exception")["fields"]["message"] == "it is 4"

    def test_of_a_thousand_ranks_line_by_line_each_is_read(self):
        streams = [raised(f"[rank{rank}]: ", rank) for rank in range(1024)]
        found = logs.part("\n".join(line for turn in zip(*streams, strict=True) for line in turn))
        assert [(r["rank"], r["exception_message"]) for r in rows(found.ranks)] == [
            (rank, f"it is {rank}") for rank in range(1024)
        ]
        assert not found.notes

    def test_of_more_than_can_be_followed_the_oldest_are_given_up_and_it_is_said(self, monkeypatch):
        monkeypatch.setattr("roundk.analyze.sources.joblog.reading.MOST_OPEN", 8)
        streams = [raised(f"[rank{rank}]: ", rank) for rank in range(11)]
        found = logs.part("\n".join(line for turn in zip(*streams, strict=True) for line in turn))
        assert [row["rank"] for row in logs.facts(found, "exception")] == list(range(3, 11))
        assert [note for note in found.notes if note.startswith("logs: 3 messages of several lines are left out")]

    def test_cost_of_a_line_does_not_grow_with_what_is_open(self):
        def looked_at(count):
            calls = 0

            def count_calls(_frame, event, _argument):
                nonlocal calls
                calls += event in {"call", "c_call"}

            lines = [f"[rank{rank}]: Traceback (most recent call last):" for rank in range(count)]
            text = "\n".join(lines + ["noise"] * 100)
            sys.setprofile(count_calls)
            try:
                logs.part(text)
            finally:
                sys.setprofile(None)
            return calls

        few, more, many = (looked_at(count) for count in (200, 400, 800))
        assert many - more < 2.5 * (more - few)

    def test_words_alone_on_a_line_do_not_end_it(self):
        lines = raised("", 3)
        lines[3:3] = ["Epoch: 5", "done", "100%|####| 3/3"]
        assert logs.fact(logs.part("\n".join(lines)), "exception")["fields"]["message"] == "it is 3"

    def test_agents_traceback_is_no_ranks(self):
        lines = [
            line.replace("RuntimeError", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError")
            for line in raised("1: ", 3)
        ]
        fact = logs.fact(logs.part("\n".join(lines)), "agent_exception")
        assert fact["rank"] is None

    def test_exception_group(self):
        lines = [
            "  + Exception Group Traceback (most recent call last):",
            '  |   File "/app/a.py", line 3, in f',
            "  |     g()",
            "  | ExceptionGroup: two (2 sub-exceptions)",
        ]
        assert logs.fact(logs.part("\n".join(lines)), "exception")["fields"]["type"] == "ExceptionGroup"


class TestElastic:
    def test_summary_tells_how_ranks_ended(self):
        found = logs.part(log_lines.SUMMARY)
        ended = {row["rank"]: row for row in rows(found.ranks)}
        assert sorted(ended) == [8, 9]
        assert (ended[9]["exit_signal"], ended[9]["exit_code"], ended[9]["exit_source"]) == (15, None, "agent")
        assert (ended[8]["exit_signal"], ended[8]["exit_code"], ended[8]["pid"], ended[8]["host"]) == (
            None,
            3,
            24318,
            "node-a",
        )
        assert ended[8]["exit_ns"] == logs.ns("2026-11-29T17:48:28")
        assert {row["rank"]: row["fields"]["is_first_observed"] for row in logs.facts(found, "elastic_failure")} == {
            8: True,
            9: False,
        }

    def test_traceback_in_the_summary_is_its_ranks(self):
        fact = logs.fact(logs.part(log_lines.SUMMARY), "exception")
        assert (fact["rank"], fact["fields"]["type"], fact["fields"]["site"]) == (8, "ValueError", "/app/train.py:12")

    def test_summary_of_1_9(self):
        text = """\
Root Cause:
[0]:
  time: 2021-05-10_12:00:00
  rank: 3 (local_rank: 1)
  exitcode: 1 (pid: 77)
  error_file: <N/A>
  msg: "Process failed with exitcode 1"
===========
Other Failures:
  <NO_OTHER_FAILURES>
***********
"""
        (row,) = rows(logs.part(text).ranks)
        assert (row["rank"], row["exit_code"], row["pid"]) == (3, 1, 77)

    def test_summary_behind_prefixes_of_another_kind(self):
        found = logs.part("".join(f"2026-11-29T17:48:30Z stderr F {line}\n" for line in log_lines.SUMMARY.splitlines()))
        assert sorted(found.ranks["rank"]) == [8, 9]

    def test_agents_lines_are_of_the_process_they_name(self):
        line = log_lines.line("torchrun: closing 2.13")
        (fact,) = logs.facts(logs.part(f"{log_lines.SUMMARY}{line}\n"), "elastic_closing")
        assert (fact["rank"], fact["fields"]["pid"]) == (9, 24319)


TIMED_OUT = (
    "WorkNCCL(SeqNum=21937, OpType=_ALLGATHER_BASE, NumelIn=176, NumelOut=704, Timeout(ms)=600000) ran for 600031 "
    "milliseconds before timing out."
)
FAILED = (
    " failure detected by watchdog at work sequence id: 21937 PG status: last enqueued work: 21937, last completed "
    "work: 21936"
)


class TestReportsOfManyLines:
    def test_desync_report(self):
        found = logs.part(log_lines.DESYNC)
        lagging = [
            (row["fields"]["did"], row["fields"]["ranks"], row["fields"]["seq"])
            for row in logs.facts(found, "desync_lagging")
        ]
        assert lagging == [("not_finished", [1, 3], 315), ("not_joined", [2], 315)]
        states = [
            tuple(row["fields"][name] for name in ("seq", "state", "op", "ranks"))
            for row in logs.facts(found, "desync_state")
        ]
        assert states == [(315, "started", "all_reduce", [0, 1, 3]), (314, "finished", "broadcast", [2])]
        assert logs.fact(found, "desync_timeout")["fields"]["seq"] == 315

    def test_ranks_that_never_joined(self):
        line = (
            "\t - To our best knowledge, ranks [2, 5] are the lagging ranks that caused this timeout. They "
            "never joined any collectives"
        )
        fields = logs.fact(logs.part(line), "desync_lagging")["fields"]
        assert (fields["did"], fields["ranks"]) == ("never_joined", [2, 5])

    def test_stack_of_the_failed_collective(self):
        head = "[rank3]:[E626 10:42:17.1 ProcessGroupNCCL.cpp:"
        lines = [
            f"{head}632] [Rank 3] Watchdog caught collective operation timeout: {TIMED_OUT}",
            f"{head}2271] [PG ID 0 PG GUID 0(default_pg) Rank 3] {FAILED}",
            f"{head}670] Stack trace of the failed collective: ",
            "#0 all_gather_into_tensor from /usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py:2696",
            "#1 gather_parameters from /app/model.py:77",
            "#2 main from /app/train.py:12",
            "",
        ]
        found = logs.part("\n".join(lines))
        (site,) = rows(found.sites)
        assert (site["file"], site["line"], site["function"]) == ("/app/model.py", 77, "gather_parameters")
        assert len(site["stack"]) == 3
        assert found.calls["site"].to_list() == [site["site"]]


class TestWrapped:
    @given(at=st.integers(1, 200), spaces=st.booleans(), prefix=st.sampled_from(["", "3: "]))
    @settings(max_examples=20, deadline=None)
    def test_line_wrapped_anywhere_behind_its_beginning(self, at, spaces, prefix):
        begin = (
            "[rank0]:[E626 10:42:17.1 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation "
            "timeout: WorkNCCL("
        )
        rest = (
            "SeqNum=5, OpType=ALLREDUCE, NumelIn=164000, NumelOut=5164000, Timeout(ms)=600000) ran for 600031 "
            "milliseconds before timing out."
        )
        at = min(at, len(rest) - 4)
        if spaces:  # wrapped at a space, as an editor does: it is gone
            at = rest.rfind(" ", 0, at) + 1 or 1
            if at == 1:
                return
            rest = f"{rest[: at - 1]}\n{prefix}{rest[at:]}"
        else:
            rest = f"{rest[:at]}\n{prefix}{rest[at:]}"
        fact = logs.fact(logs.part(f"{prefix}{begin}{rest}\nfurther\n"), "collective_timeout")
        told = tuple(
            fact["fields"][name] for name in ("seq", "op", "numel_in", "numel_out", "timeout_ms", "ran_for_ms")
        )
        assert told == (5, "all_reduce", 164000, 5164000, 600000, 600031)

    def test_next_ranks_line_is_no_continuation(self):
        lines = [
            "[rank0]:[E626 10:42:17.1 P.cpp:632] [Rank 0] WorkNCCL(SeqNum=5, OpType=ALLRED",
            log_lines.line("torch: 2.6"),
        ]
        assert logs.fact(logs.part("\n".join(lines)), "collective_timeout")["fields"]["seq"] == 21937


class TestTimes:
    def status(self, head):
        return f"[rank0]:{head} [PG ID 0 PG GUID 0(default_pg) Rank 0] First PG on this rank to signal dumping.\n"

    @pytest.mark.parametrize(
        ("written", "glog", "expected"),
        [
            (datetime(2026, 12, 1, tzinfo=UTC), "E626 10:42:17.101223001", "2026-06-26T10:42:17.101223001"),
            (datetime(2026, 3, 1, tzinfo=UTC), "E1231 23:59:59.5", "2025-12-31T23:59:59.5"),
            (datetime(2026, 3, 1, tzinfo=UTC), "E229 01:02:03.000000001", "2024-02-29T01:02:03.000000001"),
            (datetime(2026, 3, 1, 1, tzinfo=UTC), "E301 13:00:00.0", "2026-03-01T13:00:00"),  # a zone ahead of UTC
        ],
    )
    def test_year_is_the_files(self, tmp_path, written, glog, expected):
        log = logs.item(tmp_path, "job.log", self.status(f"[{glog} ProcessGroupNCCL.cpp:1]"), written=written)
        found = joblog.load([log], Hints())
        assert logs.fact(found, "dump_first")["time_ns"] == logs.ns(expected)
        assert any("without a year" in note for note in found.notes)
        assert any("read as UTC" in note for note in found.notes)

    def test_year_is_that_of_other_lines_first(self):
        text = "2021-05-01 10:00:00 start\n" + self.status("[E626 10:42:17.1 ProcessGroupNCCL.cpp:1]")
        assert logs.fact(logs.part(text), "dump_first")["time_ns"] == logs.ns("2021-06-26T10:42:17.1")

    def test_year_is_not_that_of_any_date_in_a_line(self):
        text = "loading the dump of 2019-05-01 10:00:00\n" + self.status("[E626 10:42:17.1 ProcessGroupNCCL.cpp:1]")
        assert logs.fact(logs.part(text), "dump_first")["time_ns"] == logs.ns("2026-06-26T10:42:17.1")

    def test_time_with_a_zone_is_believed(self):
        text = "2026-09-18T19:29:24.5+02:00 stderr F " + self.status("[E918 19:29:24.25 ProcessGroupNCCL.cpp:1]")
        found = logs.part(text)
        assert logs.fact(found, "dump_first")["time_ns"] == logs.ns("2026-09-18T17:29:24.5")
        assert found.notes == ()

    def test_line_without_a_time_has_none_but_what_stands_before(self):
        text = (
            "2026-09-18 19:29:20 a\n2026-09-18 19:29:24 b\nnode-a:1:2 [0] NCCL WARN NET/IB : Got async event : "
            "port error\n"
        )
        fact = logs.fact(logs.part(text), "net_async_event")
        assert fact["time_ns"] is None
        assert fact["fields"]["after_ns"] == logs.ns("2026-09-18T19:29:24")

    @given(digits=st.text("0123456789", min_size=15, max_size=15))
    @settings(max_examples=20, deadline=None)
    def test_no_time_is_not_a_reason_to_fail(self, digits):
        month, clock, fraction = digits[:4], ":".join((digits[4:6], digits[6:8], digits[8:10])), digits[10:]
        found = logs.part(self.status(f"[E{month} {clock}.{fraction} ProcessGroupNCCL.cpp:1]"))
        assert len(logs.facts(found, "dump_first")) == 1


WARN = "node-{host}:{pid}:9 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error"
INIT = (
    "node-{host}:{pid}:9 [0] NCCL INFO comm 0x5{pid} rank {rank} nranks {n} cudaDev 0 nvmlDev 0 busId "
    "1b000 commId 0x{comm} - Init {state}"
)


def init(host, pid, rank, n, comm="abc", state="COMPLETE"):
    return INIT.format(host=host, pid=pid, rank=rank, n=n, comm=comm, state=state) + "\n"


class TestRanks:
    def rank_of(self, *contents, kind="net_async_event", **named):
        return [row["rank"] for row in logs.facts(logs.part(*contents, **named), kind)]

    def test_of_a_process_by_the_worlds_communicator(self):
        text = init("a", 11, 0, 2) + init("b", 22, 1, 2) + WARN.format(host="b", pid=22)
        assert self.rank_of(text) == [1]

    def test_of_a_process_in_two_logs(self):
        assert self.rank_of(init("a", 11, 0, 2), init("b", 22, 1, 2), WARN.format(host="b", pid=22)) == [1]

    def test_ranks_in_a_part_of_the_job_are_not_the_jobs(self):
        text = "".join(
            init(host, pid, rank, 2, comm)
            for host, pid, rank, comm in (("a", 1, 0, "aa"), ("a", 2, 1, "aa"), ("b", 3, 0, "bb"), ("b", 4, 1, "bb"))
        )
        found = logs.part(text + WARN.format(host="b", pid=4))
        assert found.world_size is None
        assert logs.fact(found, "net_async_event")["rank"] is None
        assert any("not taken for the job's" in note for note in found.notes)

    def test_a_rank_beyond_the_communicator_shows_that_it_is_not_the_world(self):
        text = "[rank7]:[E626 10:42:17.1 ProcessGroupNCCL.cpp:1] First PG on this rank to signal dumping.\n"
        found = logs.part(text + init("a", 11, 0, 2) + init("b", 22, 1, 2) + WARN.format(host="b", pid=22))
        assert found.world_size is None
        assert logs.fact(found, "net_async_event")["rank"] is None

    def test_a_line_that_names_another_rank_shows_that_it_is_not_the_world(self):
        text = init("a", 11, 0, 2) + init("b", 22, 1, 2) + "[rank0]: " + WARN.format(host="b", pid=22) + "\n"
        assert logs.part(text).world_size is None

    def test_launchers_number_is_the_rank(self):
        assert self.rank_of("[1,3]<stderr>:" + WARN.format(host="b", pid=22)) == [3]
        assert self.rank_of("3: " + WARN.format(host="b", pid=22)) == [3]

    def test_launchers_number_is_none_where_lines_show_it(self):
        text = (
            "1: [rank12]: ValueError\n1: [rank13]:[E626 10:42:17.1 ProcessGroupNCCL.cpp:1] First PG on this "
            "rank to signal dumping.\n"
        )
        assert self.rank_of(text + "1: " + WARN.format(host="b", pid=22)) == [None]

    def test_launchers_number_is_an_agents(self):
        agents = "".join(f"1: {line}\n" for line in log_lines.family("torchrun"))
        assert self.rank_of(agents + "1: " + WARN.format(host="b", pid=22)) == [None]

    def test_local_rank_is_no_rank_unless_lines_show_it(self):
        line = "[default3]:RuntimeError: CUDA error: an illegal memory access was encountered\n"
        assert self.rank_of(line, kind="cuda_error") == [None]
        assert self.rank_of("[default2]:[rank2]: ProcessGroup\n" + line, kind="cuda_error") == [3]
        assert self.rank_of("[default2]:[rank10]: ProcessGroup\n" + line, kind="cuda_error") == [None]

    def test_of_the_default_group_is_global_and_of_another_is_not(self):
        line = (
            "[E626 10:42:17.1 ProcessGroupNCCL.cpp:1] [PG ID 3 PG GUID {} Rank 5] First PG on this rank to "
            "signal dumping."
        )
        assert self.rank_of(line.format("0(default_pg)"), kind="dump_first") == [5]
        assert self.rank_of(line.format("7(tp)"), kind="dump_first") == [None]
        assert self.rank_of("[rank13]:" + line.format("7(tp)"), kind="dump_first") == [13]

    def test_rank_in_an_unnamed_group_is_global_in_logs_that_name_no_other(self):
        line = (
            "[E ProcessGroupNCCL.cpp:828] [Rank 2] To avoid data inconsistency, we are taking the entire process down."
        )
        assert self.rank_of(line, kind="watchdog_abort") == [2]
        named = (
            "[rank9]:[E626 10:42:17.1 ProcessGroupNCCL.cpp:1] [PG ID 1 PG GUID 7 Rank 2] First PG on this rank "
            "to signal dumping."
        )
        assert self.rank_of(f"{named}\n  what():  {line}", kind="watchdog_abort") == [None]

    def test_of_one_ranks_log_by_its_name(self, tmp_path):
        line = WARN.format(host="b", pid=22)
        names = ["rank_3.log", "logs/rank-12.err", "attempt_0/5/stderr.log", "job.log", "0/6/stderr.log"]
        found = joblog.load([logs.item(tmp_path, name, line) for name in names], Hints())
        ranks = {row["source"].removesuffix(":1"): row["rank"] for row in logs.facts(found)}
        assert ranks == {
            "rank_3.log": 3,
            "logs/rank-12.err": 12,
            "attempt_0/5/stderr.log": 5,
            "job.log": None,
            "0/6/stderr.log": 6,
        }

    @pytest.mark.parametrize("named", ["", "77_x8d2k1qa", "77_x8d2k1qa/attempt_0", "77_x8d2k1qa/attempt_0/5"])
    def test_of_one_ranks_log_whatever_folder_of_torchruns_is_named(self, tmp_path, named):
        log = tmp_path / "77_x8d2k1qa" / "attempt_0" / "5" / "stderr.log"
        log.parent.mkdir(parents=True)
        log.write_text("RuntimeError: CUDA error: an illegal memory access\n")
        trace, _ = sources.load([str(tmp_path / named)])
        assert trace.facts["rank"].to_list() == [5]

    def test_local_ranks_folders_of_two_hosts_are_no_ranks(self, tmp_path):
        names = ["node-a/attempt_0/0/stderr.log", "node-b/attempt_0/0/stderr.log"]
        items = [logs.item(tmp_path, name, "RuntimeError: CUDA error: an illegal memory access") for name in names]
        assert [row["rank"] for row in logs.facts(joblog.load(items, Hints()))] == [None, None]

    def test_pattern_of_the_user_is_followed(self, tmp_path):
        log = logs.item(tmp_path, "out.w5.of.8.txt", "RuntimeError: CUDA error: an illegal memory access")
        found = joblog.load([log], Hints(rank_pattern=re.compile(r"w(\d+)")))
        assert logs.fact(found, "cuda_error")["rank"] == 5

    def test_logs_of_a_run_directory(self, tmp_path):
        named = {
            "node-a/stderr-77.log": "CUDA error: an illegal access",
            "node-b/nccl-node-b-22.log": "NCCL version 2.27.3\n" + log_lines.line("NCCL: 2.8"),
        }
        found = joblog.load([logs.item(tmp_path, name, text) for name, text in named.items()], Hints())
        assert logs.fact(found, "cuda_error")["host"] == "node-a"
        assert logs.fact(found, "net_completion_error")["host"] == "node-b"

    def test_process_that_the_oom_killer_took(self):
        text = (
            init("a", 11, 0, 2)
            + init("b", 22, 1, 2)
            + "Sep 18 19:29:24 node-{} kernel: Out of memory: Killed process 22 (python) total-vm:1kB\n"
        )
        assert self.rank_of(text.format("b"), kind="oom_kill") == [1]
        assert self.rank_of(text.format("c"), kind="oom_kill") == [None]


class TestCommunicators:
    """`log_lines.NCCL_START`: every value here is read off it."""

    @pytest.fixture
    def found(self):
        return logs.part(log_lines.NCCL_START)

    def test_ranks_are_the_worlds(self, found):
        assert found.world_size == 2
        assert [(r["rank"], r["host"], r["pid"]) for r in rows(found.ranks)] == [(0, "node-a", 101), (1, "node-b", 202)]
        assert found.versions == ("NCCL 2.27.3+cuda12.9",)

    def test_channels(self, found):
        names = ("host", "comm_rank", "channel", "shape", "direction", "peer", "transport", "device", "is_gdr")
        assert {tuple(row[name] for name in names) for row in rows(found.channels)} == {
            ("node-a", 0, 0, "ring", "recv", 1, "NET/IB", "mlx5_0", True),
            ("node-a", 0, 0, "ring", "send", 1, "NET/IB", "mlx5_1", True),
            ("node-a", 0, 0, "tree", "child", 1, "NET/IB", "mlx5_0", True),
            ("node-a", 0, 1, "tree", "parent", 1, None, None, None),
            ("node-a", 0, 2, "p2p", "send", 1, "NET/IB", "mlx5_0", False),
            ("node-b", 1, 0, "ring", "send", 0, "NET/Socket", "0", False),
            ("node-b", 1, 1, "ring", "send", 0, "P2P/direct pointer", None, None),
        }
        assert set(found.channels["comm"]) == {"1ad9"}
        assert dict(found.channels.select("host", "rank").unique().iter_rows()) == {"node-a": 0, "node-b": 1}

    def test_calls(self, found):
        names = ("rank", "seq", "op", "source_op", "root", "peer", "numel", "dtype", "reduce_op", "enter_ns", "outcome")
        assert [tuple(row[name] for name in names) for row in rows(found.calls)] == [
            (0, 31, "all_reduce", "AllReduce", None, None, 1024, "float32", "SUM", None, "not_recorded"),
            (0, 33, "send", "Send", None, 1, 12, "bfloat16", None, None, "not_recorded"),
            (
                1,
                32,
                "broadcast",
                "Broadcast",
                1,
                None,
                12,
                "bfloat16",
                None,
                logs.ns("2026-05-04T19:55:27"),
                "not_recorded",
            ),
        ]
        assert [(g["name"], g["ranks"]) for g in rows(found.groups)] == [("1ad9", [0, 1])]

    def test_root_is_a_rank_in_the_communicator_whoever_of_it_is_seen(self):
        world = "".join(init("a", 10 + rank, rank, 4) for rank in range(4))
        part = init("a", 13, 2, 3, comm="ee").replace("0x513", "0x99")  # of rank 3, who is 2 there; nobody else is seen
        call = (
            "node-a:13:1 [0] NCCL INFO Send: opCount 1 sendbuff 0x7 recvbuff 0x7 count 1 datatype 0 op 0 root "
            "{} comm 0x99 x y\n"
        )
        found = logs.part(world + part + call.format(2) + call.format(0))
        assert found.calls["peer"].to_list() == [3, None]

    def test_initialisation_that_did_not_end(self, found):
        fact = logs.fact(found, "nccl_init_open")
        assert (fact["rank"], fact["host"], fact["fields"]["nranks"]) == (1, "node-b", 2)
        told = logs.fact(found, "nccl_communicator")["fields"]
        assert (told["nranks"], told["began"], told["finished"]) == (2, 2, 1)

    def test_peer_is_a_host_by_its_address(self):
        text = log_lines.NCCL_START + log_lines.line("NCCL: 2.23")
        assert logs.fact(logs.part(text), "net_completion_error")["fields"]["peer_host"] == "node-a"

    def test_before_2_18_the_communicator_is_named_in_the_end(self):
        text = "".join(
            f"node-a:{pid}:9 [0] NCCL INFO Channel 00 : {rank}[1b000] -> {1 - rank}[3d000] via P2P/IPC\n"
            f"node-a:{pid}:9 [0] NCCL INFO comm 0x7f rank {rank} nranks 2 cudaDev 0 busId 1b000 - Init COMPLETE\n"
            for pid, rank in ((11, 0), (22, 1))
        )
        found = logs.part(text)
        assert [(c["rank"], c["comm"], c["peer"], c["transport"]) for c in rows(found.channels)] == [
            (0, None, 1, "P2P/IPC"),
            (1, None, 0, "P2P/IPC"),
        ]

    def test_of_many_calls_the_last_are_kept(self, monkeypatch):
        monkeypatch.setattr("roundk.analyze.sources.joblog.coll_lines.MOST_CALLS", 50)
        call = "node-a:101:101 [0] NCCL INFO AllReduce: opCount {:x} sendbuff 0x7 recvbuff 0x7 count 1 datatype 7 op 0 "
        call += "root 0 comm {} [nranks=2] stream 0x66\n"
        text = "".join(call.format(number, comm) for number in range(100) for comm in ("0x55a0", "0x9"))
        found = logs.part(log_lines.NCCL_START, text)
        kept = [row["seq"] for row in rows(found.calls) if row["rank"] == 0]
        assert kept == list(range(100 - len(kept), 100))
        assert 10 < len(kept) <= 50
        assert any("calls in NCCL's COLL lines the last" in note for note in found.notes)
        assert any("are left out" in note for note in found.notes)

    def test_calls_of_no_communicator_that_is_told_are_left_out(self):
        line = log_lines.NCCL_START.splitlines()[-2]
        assert ": opCount " in line
        found = logs.part(init("b", 11, 0, 2), line)
        assert found.calls.is_empty()
        assert [note for note in found.notes if note.startswith("1 calls in NCCL's COLL lines are left out")]

    def test_zone_of_a_calls_time(self):
        line = log_lines.NCCL_START.splitlines()[-2].removeprefix("[2026-05-04 19:55:27] ")
        for prefix, expected in (
            ("2026-05-04T19:55:27.25Z stderr F ", "2026-05-04T19:55:27.25"),
            ("2026-05-04T19:55:27+02:00 ", "2026-05-04T17:55:27"),
            ("2026-05-04 19:55:27,5 -0130 ", "2026-05-04T21:25:27.5"),
        ):
            found = logs.part(log_lines.NCCL_START + prefix + line)
            assert logs.ns(expected) in found.calls["enter_ns"].to_list(), prefix

    def test_a_process_of_two_ranks_cannot_be_told(self):
        text = init("a", 11, 0, 2) + init("a", 11, 1, 2).replace("0x511", "0x512")
        found = logs.part(text + WARN.format(host="a", pid=11))
        assert logs.fact(found, "net_async_event")["rank"] is None


class TestGroups:
    def status(self, rank, group, group_rank, work=5):
        return (
            f"[rank{rank}]:[E626 10:42:17.1 ProcessGroupNCCL.cpp:1] [PG ID 1 PG GUID {group} Rank {group_rank}]  "
            f"failure detected by "
            f"watchdog at work sequence id: {work} PG status: last enqueued work: {work}, last completed work: "
            f"{work - 1}\n"
        )

    def work(self, rank, op="ALLREDUCE", seq=5):
        return (
            f"[rank{rank}]:[E626 10:42:17.1 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective "
            f"operation timeout: WorkNCCL("
            f"SeqNum={seq}, OpType={op}, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600031 milliseconds "
            f"before timing out.\n"
        )

    def test_members_are_those_that_are_seen_in_group_order(self):
        found = logs.part(self.status(12, "5(tp)", 1) + self.status(8, "5(tp)", 0) + self.status(13, "6(tp)", 1))
        assert [(g["name"], g["ranks"]) for g in rows(found.groups)] == [("5", [8, 12]), ("6", [13])]
        assert any("group 6 (tp)" in note for note in found.notes)
        assert not any("group 5 (tp)" in note for note in found.notes)

    def test_one_name_for_several_groups_is_told(self):
        found = logs.part(self.status(0, "5", 0) + self.status(8, "5", 0))
        assert [g["ranks"] for g in rows(found.groups)] == [[0, 8]]
        assert any("several groups" in note for note in found.notes)

    def test_call_is_of_the_group_whose_status_has_its_number(self):
        found = logs.part(self.work(1) + self.status(1, "0(default_pg)", 1, 9) + self.status(1, "7(tp)", 0, 5))
        (call,) = rows(found.calls)
        assert rows(found.groups)[call["group"]]["name"] == "7"
        assert logs.fact(found, "collective_timeout")["fields"]["group"] == "7"

    def test_call_of_no_known_group_is_a_fact_only(self):
        found = logs.part(self.work(1) + self.status(1, "0(default_pg)", 1, 9))
        assert found.calls.is_empty()
        assert logs.fact(found, "collective_timeout")["fields"]["seq"] == 5

    def test_old_logs_name_no_group(self):
        line = (
            "[E ProcessGroupNCCL.cpp:828] [Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={}, "
            "OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800042 milliseconds before timing out.\n"
        )
        found = logs.part(line.format(0, 57) + line.format(2, 57))
        assert [(c["rank"], c["seq"]) for c in rows(found.calls)] == [(0, 57), (2, 57)]
        assert rows(found.groups)[0]["ranks"] == [0, 1, 2]
        assert logs.part(line.format(0, 57) + line.format(0, 58)).calls.is_empty()

    def test_p2p_counters_are_not_to_be_compared(self):
        found = logs.part(self.work(1, "SEND") + self.status(1, "7(pp)", 0) + self.status(0, "0(default_pg)", 0))
        counts = {rows(found.groups)[p["group"]]["name"]: p["counts"] for p in rows(found.progress)}
        assert counts == {"7": "calls", "0": "collectives"}

    def test_garbage_of_early_2_3_is_not_believed(self):
        line = log_lines.line("torch: status 2.3, garbage")
        (progress,) = rows(logs.part(line).progress)
        assert (progress["enqueued"], progress["completed"]) == (8, 6)

    def test_start_is_told_only_where_it_is_timed(self):
        (timed,) = rows(logs.part(log_lines.line("torch: status 2.13")).progress)
        assert (timed["started"], timed["is_start_told"]) == (19, True)
        (untimed,) = rows(logs.part(log_lines.line("torch: status 2.13 without timing")).progress)
        assert (untimed["started"], untimed["is_start_told"], untimed["completed"], untimed["enqueued"]) == (
            None,
            False,
            None,
            1,
        )


class TestBounds:
    def test_equal_lines_are_one(self):
        line = "[2026-05-04 19:55:{:02d}] " + WARN.format(host="a", pid=1) + "\n"
        fact = logs.fact(logs.part("".join(line.format(second) for second in range(50))), "net_async_event")
        assert fact["fields"]["count"] == 50
        assert fact["time_ns"] == logs.ns("2026-05-04T19:55:00")
        assert fact["fields"]["last_ns"] == logs.ns("2026-05-04T19:55:49")

    def test_of_a_kind_no_more_than_a_limit_is_kept_and_it_is_said(self, monkeypatch):
        monkeypatch.setattr("roundk.analyze.sources.joblog.book.MOST_OF_KIND", 10)
        found = logs.part("".join(WARN.format(host="a", pid=pid) + "\n" for pid in range(25)))
        assert len(logs.facts(found)) == 10
        assert "logs: 15 more lines of kind net_async_event are not kept" in found.notes

    def test_line_without_end_is_read_through_windows(self):
        line = log_lines.line("torch: 2.6")
        found = logs.part(b"x" * 3_000_000 + line.encode() + b"y" * 3_000_000 + b"[rank1]:[E" + b"z" * 1_000_000)
        assert logs.fact(found, "collective_timeout")["fields"]["seq"] == 21937

    def test_line_over_the_end_of_a_block(self, monkeypatch):
        text = (
            ("noise " * 7 + "\n") * 40
            + log_lines.line("torch: 2.6")
            + "\n"
            + log_lines.line("torch: dump signal 2.6")
            + "\n"
        )
        whole = logs.part(text)
        for block in (500, 1000, 1721, 5000):
            monkeypatch.setattr("roundk.analyze.sources.joblog.scan.BLOCK", block)
            found = logs.part(text)
            assert found.facts.equals(whole.facts), block
            assert logs.fact(found, "collective_timeout")["source"] == "job.log:41"


class TestRecognition:
    @pytest.mark.parametrize(
        "head",
        [
            b"[rank0]: hello\n",
            b"\x1b[31mred\x1b[0m\n",
            b"\x00" * 5000 + b"text\n",
            "größe 🏖️\n".encode(),
            "größe\n".encode("latin-1"),
            b'{"log":"x\\n","stream":"stderr","time":"2026-09-18T19:29:24Z"}\n',
            b"\r\n\r\nx",
        ],
    )
    def test_text(self, tmp_path, head):
        assert joblog.recognises(logs.item(tmp_path, "f", head))

    @pytest.mark.parametrize(
        "head",
        [
            b"",
            b"\x80\x02}q\x00",
            b'{"entries": []}',
            b"[]",
            b'[{"a": 1}]',
            b"ARROW1\x00\x00",
            b"rank,group,seq,op\n0,0,1,all_reduce\n",
            bytes(range(256)) * 40,
            b"\x7fELF" + bytes(range(64)),
        ],
    )
    def test_anything_else(self, tmp_path, head):
        assert not joblog.recognises(logs.item(tmp_path, "f", head))

    def test_log_in_which_nothing_is_read_is_ignored(self):
        found = logs.part("epoch 1\nepoch 2\nthe configured wall-time limit is 04:00:00\n")
        assert (found.read, found.ignored) == ((), ("job.log",))
        assert found.facts.is_empty()

    @given(data=st.binary(max_size=300))
    @settings(max_examples=20, deadline=None)
    def test_never_raises(self, data):
        joblog.recognises(_Bytes(data))


@dataclasses.dataclass(frozen=True)
class _Bytes:
    head: bytes
    name: str = "f"

    @property
    def start(self):
        return self.head


EVERYTHING = "\n".join(
    [*(line.text for line in log_lines.LINES), log_lines.SUMMARY, log_lines.DESYNC, *raised("[rank1]: ", 3)]
).encode()


class TestDamage:
    @given(cut=st.integers(0, len(EVERYTHING)))
    @settings(max_examples=20, deadline=None)
    def test_log_cut_anywhere_is_read_to_there(self, cut):
        found = logs.part(EVERYTHING[:cut])
        assert found.unreadable == ()
        whole = EVERYTHING[:cut].count(b"\n")
        assert len(logs.facts(found)) >= whole // 4

    @given(at=st.lists(st.tuples(st.integers(0, len(EVERYTHING) - 1), st.integers(0, 255)), max_size=40))
    @settings(max_examples=20, deadline=None)
    def test_flipped_bytes(self, at):
        damaged = bytearray(EVERYTHING)
        for place, value in at:
            damaged[place] = value
        assert len(logs.facts(logs.part(bytes(damaged)))) > 50

    @given(numbers=st.lists(st.integers(0, 10**25), min_size=1, max_size=5))
    @settings(max_examples=20, deadline=None)
    def test_numbers_beyond_reason(self, numbers):
        lines = [
            re.sub(r"\d+", lambda match: str(numbers[match.start() % len(numbers)]), line.text)
            for line in log_lines.LINES
        ]
        found = logs.part("\n".join(lines))
        assert found.unreadable == ()
        assert all(rank < 1 << 24 for rank in found.ranks["rank"])

    def test_compressed_log_that_is_cut_is_used_as_far_as_it_goes(self, tmp_path):
        log = tmp_path / "job.log.gz"
        log.write_bytes(
            gzip.compress(
                (log_lines.line("torch: 2.6") + "\n").encode() + b"".join(b"%d\n" % k for k in range(400_000))
            )[:-20]
        )
        found = joblog.load([Input("job.log.gz", log, gzip.open)], Hints())
        (problem,) = found.unreadable
        assert problem.path == "job.log.gz"
        assert "lines were read" in problem.why
        assert found.read == ("job.log.gz",)
        assert logs.fact(found, "collective_timeout")["fields"]["seq"] == 21937

    def test_log_that_vanished_does_not_stop_the_others(self, tmp_path):
        log = logs.item(tmp_path, "job.log", log_lines.line("torch: 2.6"))
        found = joblog.load([Input("gone.log", tmp_path / "gone.log"), log], Hints())
        assert [problem.path for problem in found.unreadable] == ["gone.log"]
        assert found.read == ("job.log",)
