"""The fast way through a pickle against the slow one: the same rows, whatever the entries."""

from __future__ import annotations

import copy
import pickle

import pytest
from dumps import dump, entry, pickled, scheduled
from hypothesis import given, settings
from hypothesis import strategies as st

from roundk.analyze.sources.flight_recorder.bulk import Bulk
from roundk.analyze.sources.flight_recorder.entries import Vocabulary, matrix
from roundk.analyze.sources.flight_recorder.pickled import PickleProblem
from roundk.analyze.sources.flight_recorder.reader import Reader


@pytest.fixture(autouse=True, scope="module")
def _few_entries_are_many():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("roundk.analyze.sources.flight_recorder.reader.LEAST_BYTES", 0)
        yield


FRAMES = [
    [{"name": "f", "filename": "/home/u/train.py", "line": line}, {"name": "<module>", "filename": "/t.py", "line": 1}]
    for line in range(3)
]
numbers = st.one_of(st.integers(0, 300), st.integers(0, 70_000), st.integers(0, 2**40), st.integers(-5, -1))
times = st.one_of(st.none(), st.integers(10**18, 2 * 10**18), st.just(0))
sizes = st.lists(st.lists(st.integers(0, 2**33), max_size=3), max_size=2)


@st.composite
def entries(draw):
    made = entry(
        draw(numbers),
        draw(st.sampled_from(["nccl:all_reduce", "nccl:send 0->1", "nccl:_all_gather_base"])),
        draw(numbers),
        pg_id=draw(st.integers(0, 3)),
        process_group=draw(st.sampled_from([("0", "default_pg"), ("1", "tp"), ("2", "undefined")])),
        p2p_seq_id=draw(numbers),
        time_created_ns=draw(times),
        time_discovered_started_ns=draw(times),
        time_discovered_completed_ns=draw(times),
        input_sizes=draw(sizes),
        output_sizes=draw(sizes),
        input_dtypes=draw(st.sampled_from([["Float"], ["Float", "Half"], []])),
        state=draw(st.sampled_from(["scheduled", "started", "completed"])),
        retired=draw(st.booleans()),
        is_p2p=draw(st.booleans()),
    )
    if draw(st.booleans()):
        made = {"frames": copy.deepcopy(draw(st.sampled_from(FRAMES))), **made}
    if draw(st.integers(0, 9)) == 0:
        made["duration_ms"] = draw(st.sampled_from([1.5, 0.0, float("nan"), -1.0, 1e300]))
    if draw(st.integers(0, 19)) == 0:
        made["something_new"] = draw(st.sampled_from([7, "text", [1, [2]], None]))
    return made


def slow(listed):
    words = Vocabulary()
    return words, matrix([words.row(one) for one in listed])


def fast(data, words=None, bulk=None):
    words = Vocabulary() if words is None else words
    reader = Reader(data, words, Bulk(words) if bulk is None else bulk)
    reader.run()
    reader.head()
    return words, [row for part in reader.parts() for row in part.tolist()]


def told(words, rows):
    """Rows with the words behind the codes: codes depend on the order in which things come up."""
    names, ops, sizes = list(words.names), list(words.ops), list(words.sizes)
    sites = [*words.sites, None]
    return [(*row[:9], names[row[9]], ops[row[10]], sizes[row[11]], sites[row[12]], *row[13:]) for row in rows]


@settings(deadline=None)
@given(st.lists(entries(), max_size=6), st.integers(1, 8))
def test_repeated_entries_are_read_as_one_by_one(some, times):
    listed = [copy.deepcopy(one) for _ in range(times) for one in some]
    for number, one in enumerate(listed):
        one["record_id"] = number
    words, rows = slow(listed)
    for data in (pickled(dump(listed)), pickled(listed), pickle.dumps(dump(listed), 4), pickle.dumps(listed, 2)):
        assert told(*fast(data)) == told(words, rows.tolist())


def test_layouts_of_one_dump_are_not_believed_of_another_with_other_keys():
    plain = [entry(number) for number in range(50)]
    turned = [dict(reversed(list(one.items()))) for one in plain]
    words = Vocabulary()
    bulk = Bulk(words)
    for listed in (plain, turned, plain):
        assert told(*fast(pickled(dump(listed)), words, bulk)) == told(*slow(listed)[:1], slow(listed)[1].tolist())


def test_most_entries_are_not_read_one_by_one(monkeypatch):
    listed = [entry(number) if number % 3 else scheduled(number, "nccl:barrier") for number in range(3000)]
    read = []
    monkeypatch.setattr(Vocabulary, "row", lambda self, one, row=Vocabulary.row: read.append(one) or row(self, one))
    fast(pickled(dump(listed)))
    assert len(read) < 100


def test_entry_beginnings_inside_numbers_and_texts_mislead_nobody():
    """The bytes in front of an entry, `}(h` and a number, stand in times and names as well."""
    trap = int.from_bytes(b"}(h\x0c}(h\x0c", "little")
    listed = [entry(number, time_created_ns=trap if number % 5 == 0 else 10**18) for number in range(200)]
    listed[77]["profiling_name"] = "nccl:}(h\x0c}(h\x0d"
    words, rows = slow(listed)
    assert told(*fast(pickled(dump(listed)))) == told(words, rows.tolist())


def test_windows_join(monkeypatch):
    monkeypatch.setattr("roundk.analyze.sources.flight_recorder.bulk.WINDOW", 5000)
    listed = [entry(number) for number in range(500)]
    words, rows = slow(listed)
    assert told(*fast(pickled(dump(listed)))) == told(words, rows.tolist())


@settings(deadline=None)
@given(st.lists(entries(), min_size=1, max_size=3), st.data())
def test_changed_bytes_are_read_or_told(some, data):
    """The slow way and the fast one agree on a damaged pickle: both give rows, or both say what is wrong."""
    whole = bytearray(pickled(dump([copy.deepcopy(one) for _ in range(20) for one in some])))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    outcomes = []
    for is_fast in (True, False):
        words = Vocabulary()
        bulk = Bulk(words)
        if not is_fast:
            bulk.take = lambda *_: 0
        reader = Reader(bytes(whole), words, bulk)
        try:
            reader.run()
            problem = None
        except PickleProblem as told_problem:
            problem = type(told_problem)
        reader.head()
        outcomes.append(
            (problem, told(words, [row for part in reader.parts() for row in part.tolist() if row[10] >= 0]))
        )
    (fast_problem, fast_rows), (slow_problem, slow_rows) = outcomes
    assert (fast_problem is None) == (slow_problem is None)
    if fast_problem is None:
        assert fast_rows == slow_rows
    else:
        assert fast_rows == slow_rows[: len(fast_rows)]


@pytest.mark.parametrize("length", [0, 1, 100, 2000, 5000, 8000])
def test_a_cut_file_gives_the_entries_before_the_cut(length):
    listed = [entry(number) for number in range(60)]
    whole = pickled(dump(listed))
    words = Vocabulary()
    reader = Reader(whole[:length], words, Bulk(words))
    with pytest.raises(PickleProblem):
        reader.run()
    reader.head()
    found = [row for part in reader.parts() for row in part.tolist()]
    assert found == slow(listed)[1].tolist()[: len(found)]
    behind = len(b"eu") + len(b"q\x00.")  # what comes after the last entry
    ends = [len(pickled(dump(listed[:count]))) - behind for count in range(1, 61)]
    assert len(found) == sum(end <= length for end in ends)


def test_other_things_between_calls_are_passed_over():
    calls = [entry(number) for number in range(60)]
    mixed = [one for number, call in enumerate(calls) for one in ((call, 7, "x", {}) if number % 9 == 0 else (call,))]
    _, rows = slow(calls)
    found = [row for row in fast(pickled(dump(mixed)))[1] if row[10] >= 0]
    assert [row[0] for row in found] == [row[0] for row in rows.tolist()]


@pytest.mark.parametrize("opcodes", [b"e", b"e(", b"0", b"(", b"}", b"e](", b"1("])
def test_the_two_ways_agree_on_opcodes_in_the_wrong_place(opcodes):
    whole = pickled(dump([entry(number) for number in range(30)]))
    places = [at for at in range(len(whole)) if whole.startswith(b"u}(h", at)]
    for place in places[5:25:5]:
        for data in (
            whole[: place + 1] + opcodes + whole[place + 1 :],
            whole[: place + 3] + opcodes + whole[place + 3 :],
        ):
            outcomes = []
            for is_fast in (True, False):
                words = Vocabulary()
                bulk = Bulk(words)
                if not is_fast:
                    bulk.take = lambda *_: 0
                reader = Reader(data, words, bulk)
                problem = None
                try:
                    reader.run()
                except PickleProblem as found:
                    problem = type(found)
                reader.head()
                outcomes.append((problem, [row[0] for part in reader.parts() for row in part.tolist() if row[10] >= 0]))
            assert outcomes[0] == outcomes[1]


def test_long_texts_of_several_dumps_are_one_and_never_another():
    listed = [", ".join(map(str, range(start, 800))) for start in (0, 0, 1)]
    listed.append(listed[0][:-3] + "998")  # begins alike and is as long
    words = Vocabulary()
    bulk = Bulk(words)
    found = []
    for ranks in [*listed, listed[0]]:
        reader = Reader(pickled(dump([entry(1)], extra=ranks)), words, bulk)
        reader.run()
        found.append(reader.head()["extra"])
    assert found == [*listed, listed[0]]
    assert found[0] is found[1] is found[4]


def test_long_text_that_is_cut_is_told():
    whole = pickled(dump([entry(1)], extra="7" * 5000))
    words = Vocabulary()
    bulk = Bulk(words)
    Reader(whole, words, bulk).run()
    with pytest.raises(PickleProblem):
        Reader(whole[:3000], words, bulk).run()
