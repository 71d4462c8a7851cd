"""`roundk ras` against real TCP servers that speak the protocol, or what else may listen there."""

from __future__ import annotations

import re
import socketserver
import subprocess
import sys
import threading
import time

import pytest
from click.testing import CliRunner
from ras_answers import as_json, as_text, comm, missing, rank

from roundk.analyze import sources
from roundk.analyze.commands.ras import command
from roundk.analyze.sources.ras import client as ras_client
from roundk.analyze.sources.ras.client import RasError, address


class Handler(socketserver.StreamRequestHandler):
    """One client: commands by line, as `rasClientEventLoop` reads them."""

    def handle(self):
        server = self.server
        while line := self.rfile.readline():
            told = line.decode().strip()
            server.said.append(told)
            if server.hangs_at and told.startswith(server.hangs_at):
                server.release.wait(30)
                return
            if server.closes_at and told.startswith(server.closes_at):
                server.closes_at = server.closes_always
                return
            if told.startswith("CLIENT PROTOCOL"):
                self.wfile.write(server.greeting)
            elif told.startswith("TIMEOUT ") or (told == "SET FORMAT json" and server.knows_json):
                self.wfile.write(b"OK\n")
            elif told == "VERBOSE STATUS":
                answer = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
                for start in range(0, len(answer), 1000):
                    self.wfile.write(answer[start : start + 1000].encode())
                return
            else:
                self.wfile.write(f"ERROR: Unknown command {told}\n".encode())


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    greeting = b"SERVER PROTOCOL 2\n"
    knows_json = True
    hangs_at = closes_at = closes_always = ""

    def handle_error(self, request, client_address):
        """A client that hangs up in the middle of an answer is what some of the tests are about."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@pytest.fixture
def serve():
    running = []

    def start(*answers, **behaviour):
        server = Server(("127.0.0.1", 0), Handler)
        server.answers, server.said, server.release = list(answers), [], threading.Event()
        for name, value in behaviour.items():
            setattr(server, name, value)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        running.append(server)
        return server

    yield start
    for server in running:
        server.release.set()
        server.shutdown()
        server.server_close()


def ask(server, *options):
    port = server.server_address[1]
    return CliRunner().invoke(command, [f"127.0.0.1:{port}", "--interval-s", "0.01", "--timeout-s", "2", *options])


def level(count, number=8):
    return as_json([comm([rank(r, counts={"AllReduce": count}) for r in range(number)])])


def lagging(low, high, *, behind=(3,), version="2.29.2", gone=()):
    ranks = [rank(r, counts={"AllReduce": low if r in behind else high}) for r in range(8) if r not in gone]
    return as_json([comm(ranks, [missing(r) for r in gone], size=8)], version=version)


def test_a_rank_that_stays_behind_while_nobody_moves_is_named(serve):
    server = serve(lagging(9, 10))
    result = ask(server)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0] == "WRONG"
    text = " ".join(lines)
    assert "Rank 3 launched 9 AllReduce, the 7 others 10" in text
    assert "nobody moved" in text
    assert server.said[:4] == ["CLIENT PROTOCOL 2", "TIMEOUT 1", "SET FORMAT json", "VERBOSE STATUS"]


def test_counts_that_rise_are_nothing_wrong(serve):
    result = ask(serve(level(4), level(5)))
    assert result.exit_code == 0
    assert result.stdout.startswith("NOTHING WRONG SEEN")
    assert "launched more in 1 communicator" in result.stdout


def test_a_mismatch_that_goes_on_is_normal(serve):
    result = ask(serve(lagging(9, 10), lagging(19, 20)))
    assert result.exit_code == 0
    assert "it goes on" in " ".join(result.stdout.split())


def test_a_mismatch_in_the_last_answer_only_is_unclear_and_tells_who_moved(serve):
    result = ask(serve(level(9), lagging(9, 10)))
    assert result.exit_code == 3
    text = " ".join(result.stdout.split())
    assert "ranks 0-2, 4-7 launched more since, rank 3 did not" in text
    assert "the last time only" in text


def test_level_counts_that_do_not_move_are_not_called_healthy(serve):
    result = ask(serve(level(9)))
    assert result.exit_code == 3
    assert "all its ranks hang in the same collective" in " ".join(result.stdout.split())


def test_a_process_that_answers_neither_time_and_one_that_is_dead(serve):
    result = ask(serve(lagging(9, 9, version="2.28.9", gone=(5,))))
    assert result.exit_code == 1
    assert "Rank 5 (process 1005 on 10.0.0.2, GPU 1) answered neither time" in " ".join(result.stdout.split())
    assert "comma" not in result.output
    ranks = [rank(r, counts={"AllReduce": 1}) for r in range(3)]
    result = ask(serve(as_json([comm(ranks, [missing(3, dead=True)])])))
    assert result.exit_code == 1
    assert "Rank 3 (process 1003 on 10.0.0.1, GPU 3) is dead" in " ".join(result.stdout.split())


def test_a_process_that_answers_one_time_of_two_is_unclear(serve):
    assert ask(serve(level(9), lagging(10, 10, gone=(5,)))).exit_code == 3


def test_an_error_that_a_rank_reports(serve):
    answer = as_json([comm([rank(0, counts={"Reduce": 1}), rank(1, error=6, counts={"Reduce": 1})])])
    result = ask(serve(answer))
    assert result.exit_code == 1
    assert "asynchronous: Remote process error" in " ".join(result.stdout.split())


MISMATCH = """#0-0 (fa93daea854b060b) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 10
  Rank 3 has launched up to operation 9 -- GPU 3 managed by process 1003 on node 10.0.0.1

"""


@pytest.mark.parametrize("behaviour", [{"knows_json": False}, {"closes_at": "SET FORMAT"}])
def test_a_server_that_does_not_know_json_is_read_as_text(serve, behaviour):
    result = ask(serve(as_text(size=8, word="MISMATCH", warnings=MISMATCH), **behaviour))
    assert result.exit_code == 1
    assert "Rank 3 launched 9 AllReduce, the 7 others 10" in " ".join(result.stdout.split())
    assert "two answers as text" in " ".join(result.stdout.split())


def test_text_without_counts_says_that_it_cannot_tell(serve):
    result = ask(serve(as_text(size=8), knows_json=False))
    assert result.exit_code == 0
    assert "Whether the job moves is not told" in " ".join(result.stdout.split())


def test_the_report_fits_one_screen_of_80_columns(serve):
    ranks = [rank(r, counts={"AllReduce": r, "AllGather": 2 * r}, error=r % 2 * 6) for r in range(64)]
    answer = as_json([comm(ranks, [missing(64 + r) for r in range(9)], number=n) for n in range(1, 9)])
    lines = ask(serve(answer)).stdout.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80


def test_answers_are_kept_and_read_back(serve, tmp_path):
    out = tmp_path / "new" / "answers"
    before = time.time_ns()
    assert ask(serve(level(4), level(5)), "--out", str(out)).exit_code == 0
    names = sorted(path.name for path in out.iterdir())
    assert len(names) == 2
    assert all(re.fullmatch(r"ncclras_[\dT.-]+Z\.json", name) for name in names)
    trace, (part,) = sources.load([str(out)])
    assert part.kind == "ras"
    times = trace.progress["time_ns"].unique().sort().to_list()
    assert len(times) == 2
    assert before - 10**6 < times[0] < times[1] < time.time_ns()
    assert sorted(trace.progress["enqueued"].unique()) == [4, 5]


def test_answers_that_cannot_be_kept(serve, tmp_path):
    (tmp_path / "file").write_text("")
    result = ask(serve(level(4)), "--out", str(tmp_path / "file" / "below"))
    assert isinstance(result.exception, RasError)
    assert "cannot be kept" in str(result.exception)


def test_a_second_answer_that_does_not_come(serve):
    server = serve(level(4), closes_always="CLIENT")
    server.answers = [level(4)]
    original = ras_client.fetch

    def once(*args):
        data = original(*args)
        server.closes_at = "CLIENT"
        return data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ras_client, "fetch", once)
        result = ask(server)
    assert result.exit_code == 3
    assert "the second answer did not come" in result.stderr
    assert "RAS answered once only" in result.stdout


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ({"hangs_at": "CLIENT"}, "did not come within 0.3 s"),
        ({"hangs_at": "VERBOSE"}, "its answer did not come within 0.3 s"),
        ({"closes_at": "CLIENT", "closes_always": "CLIENT"}, "was closed after 'CLIENT PROTOCOL 2'"),
        ({"closes_at": "VERBOSE", "closes_always": "VERBOSE"}, "closed the connection before its answer"),
        ({"greeting": b"SSH-2.0-OpenSSH_9.6\r\n"}, "not NCCL RAS: it answered 'SSH-2.0-OpenSSH_9.6'"),
        ({"greeting": b"x" * 20_000}, "not NCCL RAS"),
        ({"greeting": b"\xff\xfe\n"}, "not NCCL RAS"),
    ],
)
def test_what_is_not_ras_or_does_not_answer_is_told(serve, behaviour, said):
    server = serve("", **behaviour)
    with pytest.raises(RasError, match=re.escape(said)):
        ras_client.fetch("127.0.0.1", server.server_address[1], 0.3)


def test_an_answer_that_drips_for_ever_is_given_up(serve, monkeypatch):
    monkeypatch.setattr(ras_client, "MOST_BYTES", 10_000)
    server = serve("{" + "x" * 100_000)
    with pytest.raises(RasError, match="does not end"):
        ras_client.fetch("127.0.0.1", server.server_address[1], 2)


def test_an_answer_that_is_not_understood(serve):
    result = ask(serve("Cats and dogs\n"))
    assert isinstance(result.exception, RasError)
    assert "not understood: 'Cats and dogs" in str(result.exception)


def test_an_answer_cut_short_is_used_and_told(serve):
    whole = lagging(9, 10)
    result = ask(serve(whole[: whole.index('"rank": 6')]))
    assert result.exit_code == 1
    assert "cut" in result.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node7", ("node7", 28028)),
        ("node7:1234", ("node7", 1234)),
        (":1234", ("localhost", 1234)),
        ("[::1]:1234", ("::1", 1234)),
        ("[fe80::1]", ("fe80::1", 28028)),
        ("fe80::1", ("fe80::1", 28028)),
    ],
)
def test_addresses(text, expected):
    assert address(text) == expected


@pytest.mark.parametrize("text", ["node7:x", "node7:0", "node7:99999"])
def test_ports_that_are_none(text):
    with pytest.raises(RasError, match="is no port"):
        address(text)


def test_nothing_listens_there(serve):
    server = serve("")
    port = server.server_address[1]
    server.shutdown()
    server.server_close()
    done = subprocess.run(
        [sys.executable, "-m", "roundk", "ras", f"127.0.0.1:{port}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "nothing listens there" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_host_that_is_not_known():
    with pytest.raises(RasError, match="not known here"):
        ras_client.fetch("no-such-host.invalid", 28028, 5)
