"""Fuzzes the reader of Flight Recorder pickles: `python tests/fuzz/fuzz_pickle.py --executions 1000000`.

Whatever the bytes, there are rows or a `PickleProblem`. Of every eighth input the entries are read one by one as well
and must be the same; with every 256th the whole way to the tables is gone.
"""

from __future__ import annotations

import io
import pathlib
import pickle
import sys
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "unit" / "analyze"))

import driver

with driver.instrumented("roundk.analyze.sources.flight_recorder"):
    from roundk.analyze.sources import flight_recorder
    from roundk.analyze.sources.flight_recorder import reader as readers
    from roundk.analyze.sources.flight_recorder.bulk import Bulk
    from roundk.analyze.sources.flight_recorder.entries import AT, NONE, Vocabulary
    from roundk.analyze.sources.flight_recorder.pickled import PickleProblem
    from roundk.analyze.sources.flight_recorder.reader import Reader
    from roundk.analyze.sources.inputs import Hints, Input

import dumps

readers.LEAST_BYTES = 0  # what the fuzzer makes is short
COMPARED = 8
LOADED = 256


class NoBulk(Bulk):
    """Leaves all entries to the machine."""

    def take(self, machine, depth, parts):
        return 0


def read(data, bulk):
    words = Vocabulary()
    reader = Reader(data, words, bulk(words))
    problem = None
    try:
        reader.run()
    except PickleProblem as found:
        problem = found
    reader.head()
    return problem, [row for part in reader.parts() for row in part.tolist() if row[AT["op"]] != NONE], words


def told(rows, words):
    """Rows with what their codes stand for."""
    tables = list(words.names), list(words.ops), list(words.sizes), [*words.sites, None]
    return [(*row[:9], *(of[code] for of, code in zip(tables, row[9:13], strict=True)), *row[13:]) for row in rows]


def target(data):
    """Fuzz the reader of Flight Recorder pickles."""
    problem, rows, words = read(data, Bulk)
    lot = zlib.crc32(data)
    if lot % COMPARED == 0:
        other_problem, *other = read(data, NoBulk)
        assert (problem is None) == (other_problem is None), (problem, other_problem)
        other_rows = told(*other)
        assert told(rows, words) == (other_rows if problem is None else other_rows[: len(rows)])
    if lot % LOADED == 0:
        items = [Input(f"dump_{rank}", pathlib.Path("x"), lambda _: io.BytesIO(data)) for rank in (0, 1)]
        if flight_recorder.recognises(items[0]):
            part = flight_recorder.load(items, Hints())
            assert part.calls.columns
            assert len(part.read) + len(part.unreadable) + len(part.ignored) == len(items)


def seeds():
    entries = [dumps.entry(number) for number in range(4)]
    entries += [dumps.scheduled(number, "nccl:send 0->1", is_p2p=True) for number in range(4, 7)]
    entries += [dumps.scheduled(7, "nccl:coalesced", is_p2p=True), dumps.entry(8, "gloo:barrier", duration_ms=1.5)]
    frames = [{"name": "f", "filename": "/home/u/train.py", "line": 7}, {"name": "g", "filename": "/t.py", "line": 300}]
    with_frames = [{"frames": frames, **dumps.entry(number)} for number in range(4)]
    old = [{"pg_id": 0, "seq_id": 1, "profiling_name": "nccl:all_reduce", "time_created_us": 5, "state": "scheduled"}]
    yield dumps.pickled(dumps.dump(entries))
    yield dumps.pickled(dumps.dump(with_frames, groups={"1": dumps.group("1", [0], "tp")}))
    yield dumps.pickled(dumps.dump([], nccl_comm_state={"ab": {"rank": "0", "nRanks": "2"}}))
    yield dumps.pickled(old)
    for protocol in range(6):
        yield pickle.dumps(dumps.dump(entries[:2]), protocol)
    yield b"\x80\x02cposix\nsystem\nX\x02\x00\x00\x00id\x85R."
    yield b"\x80\x02]q\x00(h\x00h\x00e."


if __name__ == "__main__":
    driver.main(target, seeds(), longest=1536)
