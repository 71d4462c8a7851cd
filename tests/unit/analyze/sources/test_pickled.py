from __future__ import annotations

import contextlib
import os
import pickle
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roundk.analyze.sources.flight_recorder import pickled
from roundk.analyze.sources.flight_recorder.pickled import Cut, Machine, Malformed, PickleProblem, Refused

keys = st.one_of(st.text(max_size=5), st.integers(-(2**70), 2**70), st.none(), st.booleans())
leaves = st.one_of(keys, st.floats(allow_nan=False), st.binary(max_size=5))
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5), st.dictionaries(keys, inner, max_size=5), st.lists(inner, max_size=5).map(tuple)
    ),
    max_leaves=30,
)


@given(values, st.integers(3, 5))
def test_plain_values_are_read_as_python_reads_them(value, protocol):
    assert Machine(pickle.dumps(value, protocol)).value() == value


@given(values.filter(lambda value: "b'" not in repr(value) and 'b"' not in repr(value)), st.integers(0, 2))
def test_and_in_the_old_protocols(value, protocol):
    assert Machine(pickle.dumps(value, protocol)).value() == value


def test_shared_values_stay_shared():
    part = [1]
    read = Machine(pickle.dumps([part, part], 2)).value()
    assert read[0] is read[1]


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(6))
def test_a_payload_is_refused_by_name_and_does_not_run(tmp_path, protocol):
    data = pickle.dumps({"version": "2.10", "entries": [Payload(tmp_path / "ran")]}, protocol)
    with pytest.raises(Refused, match=r"would run `(posix|nt)\.mkdir` when loaded"):
        Machine(data).value()
    assert not (tmp_path / "ran").exists()
    pickle.loads(data)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x80\x02cposix\nsystem\n.", "would run `posix.system`"),
        (b"\x80\x04\x8c\x05posix\x8c\x06system\x93.", "would run `posix.system`"),
        (b"(S'id'\niposix\nsystem\n.", "would run `posix.system`"),
        (b"\x80\x02K\x01)R.", "would call an object when loaded (REDUCE at byte 5)"),
        (b"\x80\x02K\x01)\x81.", "would call an object when loaded (NEWOBJ at byte 5)"),
        (b"\x80\x04K\x01)}\x92.", "would call an object when loaded (NEWOBJ_EX at byte 6)"),
        (b"\x80\x02(K\x01o.", "would call an object when loaded (OBJ at byte 5)"),
        (b"\x80\x02}}b.", "would call an object when loaded (BUILD at byte 4)"),
        (b"\x80\x02\x82\x05.", "registry of extensions when loaded (EXT1 at byte 2)"),
        (b"\x80\x02\x83\x05\x00.", "(EXT2 at byte 2)"),
        (b"\x80\x02\x84\x05\x00\x00\x00.", "(EXT4 at byte 2)"),
        (b"Pabc\n.", "by a persistent id when loaded (PERSID at byte 0)"),
        (b"\x80\x02K\x01Q.", "by a persistent id when loaded (BINPERSID at byte 4)"),
        (b"\x80\x04\x8f.", "no dump holds when loaded (EMPTY_SET at byte 2)"),
        (b"\x80\x05\x96\x01\x00\x00\x00\x00\x00\x00\x00a.", "no dump holds when loaded (BYTEARRAY8 at byte 2)"),
    ],
)
def test_everything_that_is_no_plain_value_is_refused(data, why):
    with pytest.raises(Refused) as refused:
        Machine(data).value()
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x80\x02\xff.", "has 0xff at byte 2, which is no opcode"),
        (b"\x80\x02h\x05.", "takes from its memo at byte 2"),
        (b"\x80\x02e.", "takes more from the stack"),
        (b"\x80\x02.", "ends without a value"),
        (b"\x80\x02K\x01\x86.", "takes more from the stack"),
        (b"\x80\x02K\x01(K\x02e.", "what cannot be done"),
        (b"\x80\x02}(]K\x01u.", "what cannot be done"),
        (b"\x80\x02}(K\x01u.", "what cannot be done"),
        (b"\x80\x02\x8a\x20" + b"a" * 32 + b".", "a number of 32 bytes"),
        (b"I" + b"9" * 10_000 + b"\n.", "a number of 10000 digits"),
        (b"Ix\n.", "what cannot be done"),
        (b"(" * 100 + b".", "nested more than 64 levels deep"),
    ],
)
def test_nonsense_is_told(data, why):
    with pytest.raises(Malformed) as told:
        Machine(data).value()
    assert why in str(told.value)


@given(values, st.data())
def test_a_cut_pickle_says_that_it_is_cut(value, data):
    whole = pickle.dumps(value, 4)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(Cut):
        Machine(cut).value()


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=200))
def test_any_bytes_give_a_value_or_a_problem(data):
    for whole in (data, b"\x80\x02" + data):
        with contextlib.suppress(PickleProblem):
            Machine(whole).value()


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02Kar\x00\xe1\xf5\x05.",  # stores at place 100,000,000
        b"\x80\x02Kap100000000\n.",
        b"\x80\x02X\xff\xff\xff\xffa.",
        b"\x80\x02\x8d\xff\xff\xff\xff\xff\xff\xff\x7fa.",
        b"\x80\x02\x8b\xff\xff\xff\x7fa.",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7fK\x01.",
    ],
)
def test_a_few_bytes_take_a_few_bytes(data):
    tracemalloc.start()
    with contextlib.suppress(PickleProblem):
        Machine(data).value()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("filler", [b"]", b"}", b")", b"\x94", b"](", b"N", b"\x88"])
def test_many_empty_things_take_no_more_than_a_bound(monkeypatch, filler):
    monkeypatch.setattr(pickled, "MOST_BYTES", 1 << 14)
    data = b"\x80\x04]" + filler * (1 << 18)
    tracemalloc.start()
    with pytest.raises(Malformed):
        Machine(data).value()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 << 20


def test_half_a_character_in_an_old_pickle_is_replaced():
    assert Machine(b"V\\ud800 \\ud83d\\ude00\n.").value() == "\ufffd \U0001f600"
