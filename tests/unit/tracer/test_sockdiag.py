"""The kernel's answers about TCP connections, made by hand: newer and older kernels, both families, and broken ones."""

from __future__ import annotations

import ctypes
import errno
import socket
import struct

import pytest

from roundk.tracer import sockdiag

ESTABLISHED, TIME_WAIT, CLOSE_WAIT = 1, 6, 8
ENDED = struct.pack("=IHHIIi", 20, 3, 2, 1, 0, 0)
BYTES_UNTIL = {"4.0": 104 + 16, "4.9": 168, "4.18": 224}
"""Sizes of `struct tcp_info` in the field: before byte counts, with the delivery rate, with reordering."""


LAYOUT = """
8 state ca_state retransmits probes backoff options wscale flags
32 rto ato snd_mss rcv_mss unacked sacked lost retrans fackets last_data_sent last_ack_sent last_data_recv last_ack_recv
32 pmtu rcv_ssthresh rtt rttvar snd_ssthresh snd_cwnd advmss reordering rcv_rtt rcv_space total_retrans
64 pacing_rate max_pacing_rate bytes_acked bytes_received
32 segs_out segs_in notsent_bytes min_rtt data_segs_in data_segs_out
64 delivery_rate busy_time rwnd_limited sndbuf_limited
32 delivered delivered_ce
64 bytes_sent bytes_retrans
32 dsack_dups reord_seen rcv_ooopack snd_wnd
"""
"""`struct tcp_info` as the kernel's header declares it: bits, and names after `tcpi_`."""


class TcpInfo(ctypes.Structure):
    """Its offsets are the compiler's, not ours."""

    _fields_ = [
        (name, {"8": ctypes.c_uint8, "32": ctypes.c_uint32, "64": ctypes.c_uint64}[bits])
        for bits, *names in map(str.split, LAYOUT.split("\n")[1:-1])
        for name in names
    ]


TOLD = {
    "backoff": ("backoff", 3),
    "rto": ("rto_us", 1_632_000),
    "unacked": ("unacked", 106),
    "lost": ("lost", 105),
    "last_data_sent": ("last_data_sent_ms", 1_500),
    "last_ack_recv": ("last_ack_recv_ms", 3_001),
    "pmtu": ("pmtu", 9_000),
    "rtt": ("rtt_us", 41_400),
    "total_retrans": ("retrans_total", 45),
    "bytes_acked": ("bytes_acked", 2**40 + 1),
    "bytes_received": ("bytes_received", 2**41 + 1),
    "notsent_bytes": ("notsent_bytes", 749_240),
    "min_rtt": ("min_rtt_us", 40_001),
    "delivery_rate": ("delivery_rate", 10_750_000_000),
    "busy_time": ("busy_us", 2**33),
    "rwnd_limited": ("rwnd_limited_us", 2**34),
    "sndbuf_limited": ("sndbuf_limited_us", 2**35),
    "bytes_retrans": ("bytes_retrans", 2**36),
    "reord_seen": ("reord_seen", 17),
}


def info(**values):
    """A `tcp_info` in which every byte that we do not read is 0xee."""
    filled = TcpInfo.from_buffer_copy(b"\xee" * ctypes.sizeof(TcpInfo))
    for name, value in ({name: value for name, (_, value) in TOLD.items()} | values).items():
        setattr(filled, name, value)
    return bytes(filled)


def attribute(kind, payload):
    return struct.pack("=HH", 4 + len(payload), kind) + payload + bytes(-len(payload) % 4)


def message(body, kind=20):
    return struct.pack("=IHHII", 16 + len(body), kind, 2, 1, 0) + body + bytes(-len(body) % 4)


def tcp(
    local="10.77.0.10",
    peer="10.77.0.12",
    *,
    ports=(29_500, 40_001),
    state=ESTABLISHED,
    timer=1,
    queues=(7, 9),
    told=None,
):
    """One socket's message. `told`: its `tcp_info`; empty: none."""
    family = socket.AF_INET6 if ":" in local else socket.AF_INET
    told = info() if told is None else told
    return message(
        struct.pack("=BBBB", family, state, timer, 3)
        + struct.pack("!HH", *ports)
        + socket.inet_pton(family, local).ljust(16, b"\0")
        + socket.inet_pton(family, peer).ljust(16, b"\0")
        + b"\xee" * 16
        + struct.pack("=II", *queues)
        + b"\xee" * 8
        + attribute(8, b"\0")
        + attribute(21, b"\xee" * 8)
        + (attribute(2, told) if told else b"")
    )


@pytest.fixture
def kernel(monkeypatch):
    """A `SockDiag` whose kernel answers the two dumps with the datagrams given, and what it was asked."""
    opened = []

    def open_pair():
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        ours.settimeout(0.2)
        opened.extend((ours, theirs))
        return ours

    monkeypatch.setattr(sockdiag, "_opened", open_pair)
    # The two questions at opening: both families are there.
    real_dump = sockdiag.SockDiag._dump
    monkeypatch.setattr(sockdiag.SockDiag, "_dump", lambda *_: [])
    diag = sockdiag.SockDiag()
    monkeypatch.setattr(sockdiag.SockDiag, "_dump", real_dump)

    def answer(*datagrams):
        for datagram in datagrams:
            opened[-1].send(datagram)
        return diag

    answer.opened = opened
    yield answer
    for each in opened:
        each.close()


def flows(kernel, *messages):
    return kernel(*messages, ENDED, ENDED).flows()


def test_every_field_is_where_the_header_has_it(kernel):
    (flow,) = flows(kernel, tcp())
    assert flow._asdict() == {
        "local_address": "10.77.0.10",
        "local_port": 29_500,
        "peer_address": "10.77.0.12",
        "peer_port": 40_001,
        "state": "established",
        "is_probing": False,
        "recv_queue": 7,
        "send_queue": 9,
        **dict(TOLD.values()),
    }


def test_each_family_is_asked_for_tcp_with_its_figures(kernel):
    flows(kernel)
    asked = [kernel.opened[1].recv(4096) for _ in range(2)]
    for request, family in zip(asked, (socket.AF_INET, socket.AF_INET6), strict=True):
        length, kind, flags, _, _ = struct.unpack_from("=IHHII", request)
        assert (length, kind, flags) == (len(request), 20, 0x301) == (16 + 56, 20, 0x301)
        assert struct.unpack_from("=BBB", request, 16) == (family, socket.IPPROTO_TCP, 1 << 1)
        (states,) = struct.unpack_from("=I", request, 20)
        assert states & 1 << ESTABLISHED
        assert states & 1 << CLOSE_WAIT
        assert not states & (1 << TIME_WAIT | 1 << 10)


@pytest.mark.parametrize("version", BYTES_UNTIL)
def test_what_an_older_kernel_does_not_tell_is_none(kernel, version):
    size = BYTES_UNTIL[version]
    (flow,) = flows(kernel, tcp(told=info()[:size]))
    for name, (ours, value) in TOLD.items():
        place = getattr(TcpInfo, name)
        assert getattr(flow, ours) == (value if place.offset + place.size <= size else None), name


def test_a_newer_kernels_longer_answer_is_read_too(kernel):
    assert flows(kernel, tcp(told=info() + b"\xee" * 64)) == flows(kernel, tcp())


def test_what_was_never_measured_is_none(kernel):
    (flow,) = flows(kernel, tcp(told=info(rtt=0, min_rtt=0xFFFF_FFFF, delivery_rate=0)))
    assert (flow.rtt_us, flow.min_rtt_us, flow.delivery_rate) == (None, None, None)


def test_addresses_of_both_families(kernel):
    found = flows(kernel, tcp("fd00::1", "fd00::2"), tcp("::ffff:10.0.0.1", "::ffff:10.0.0.2", state=CLOSE_WAIT))
    assert [(flow.local_address, flow.peer_address, flow.state) for flow in found] == [
        ("fd00::1", "fd00::2", "established"),
        ("10.0.0.1", "10.0.0.2", "close-wait"),
    ]


def test_an_answer_in_many_parts(kernel):
    first = tcp(ports=(1, 2)) + tcp(ports=(3, 4))
    diag = kernel(first, tcp(ports=(5, 6)) + ENDED, tcp("fd00::1", "fd00::2", ports=(7, 8)), ENDED)
    assert [flow.local_port for flow in diag.flows()] == [1, 3, 5, 7]
    assert not diag.is_cut


def test_connections_within_the_host_are_left_out(kernel):
    found = flows(
        kernel,
        tcp("127.0.0.1", "127.0.1.1"),  # the other end is only a memory
        tcp("::1", "::1"),
        tcp("10.0.0.1", "10.0.0.1"),
        tcp("10.0.0.1", "192.168.0.1", ports=(5, 6)),
        tcp("192.168.0.1", "10.0.0.1", ports=(6, 5)),
        tcp("10.0.0.1", "10.0.0.2"),
    )
    assert [flow.peer_address for flow in found] == ["10.0.0.2"]


def test_the_memory_of_a_connection_is_none(kernel):
    assert flows(kernel, tcp(state=5, told=b"")) == []


def test_no_more_sockets_than_planned_are_looked_at(kernel, monkeypatch):
    monkeypatch.setattr(sockdiag, "MOST_SOCKETS", 2)
    diag = kernel(tcp(ports=(1, 1)), tcp(ports=(2, 2)) + tcp(ports=(3, 3)), tcp(ports=(4, 4)))
    monkeypatch.setattr(diag, "_families", [socket.AF_INET])
    assert [flow.local_port for flow in diag.flows()] == [1, 2]
    assert diag.is_cut
    # The rest of that answer is not taken for the next one.
    assert [flow.local_port for flow in kernel(tcp(ports=(5, 5)), ENDED).flows()] == [5]
    assert not diag.is_cut


@pytest.mark.parametrize("kind", [2, 3], ids=["error", "end of the dump"])
def test_the_kernels_error_is_raised(kernel, kind):
    diag = kernel(message(struct.pack("=i", -errno.ENOENT) + bytes(16), kind))
    with pytest.raises(OSError, match="TCP connections") as caught:
        diag.flows()
    assert caught.value.errno == errno.ENOENT


def test_no_answer_is_an_error_and_the_next_question_is_answered(kernel):
    diag = kernel(tcp())
    with pytest.raises(TimeoutError):
        diag.flows()
    assert len(kernel(tcp(), ENDED, ENDED).flows()) == 1


@pytest.mark.parametrize(
    "datagram",
    [
        tcp()[:-8],
        struct.pack("=IHHII", 8, 20, 2, 1, 0),
        message(bytes(40)),
        message(bytes(72) + struct.pack("=HH", 0, 2)),
        message(bytes(72) + struct.pack("=HH", 200, 2) + bytes(8)),
        tcp(told=info()[:100]),
    ],
    ids=["cut", "short message", "short socket", "empty attribute", "long attribute", "short tcp_info"],
)
def test_a_broken_answer_is_an_error(kernel, datagram):
    with pytest.raises(OSError, match="holds a") as caught:
        flows(kernel, datagram)
    assert caught.value.errno == errno.EPROTO


def test_an_answer_cut_anywhere_is_an_error_or_told_as_unfinished():
    whole = tcp()
    for cut in range(len(whole)):
        found = []
        if cut < 16:  # not even a header
            assert not sockdiag._read(whole[:cut], found)
        else:
            with pytest.raises(OSError, match="bytes where"):
                sockdiag._read(whole[:cut], found)
        assert found == []


REFUSED = message(struct.pack("=i", -errno.ENOENT) + bytes(16), 2)


@pytest.fixture
def first_answers(monkeypatch):
    """Sockets of ours, each with the kernel's first answer waiting on it."""
    opened, theirs = [], []

    def first(*answers):
        waiting = list(answers)

        def open_next():
            ours, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            opened.append(ours)
            theirs.append(other)
            for answer in waiting.pop(0) if waiting else ():
                other.send(answer)
            return ours

        monkeypatch.setattr(sockdiag, "_opened", open_next)
        return opened

    yield first
    for each in opened + theirs:
        each.close()


def test_a_kernel_that_tells_nothing_of_tcp(first_answers):
    opened = first_answers([REFUSED])
    with pytest.raises(FileNotFoundError, match="TCP connections"):
        sockdiag.SockDiag()
    assert {each.fileno() for each in opened} == {-1}


def test_a_kernel_without_ipv6(first_answers):
    first_answers([ENDED, REFUSED], [tcp(), ENDED])
    assert len(sockdiag.SockDiag().flows()) == 1


def flow(kernel, peer="10.0.0.2", **told):
    (found,) = flows(kernel, tcp("10.0.0.1", peer, told=info(**told)))
    return found


def test_a_peers_flows_together(kernel):
    one = flow(kernel, rtt=100, min_rtt=50, backoff=0, pmtu=9000, bytes_acked=10, delivery_rate=5, last_ack_recv=9)
    two = flow(kernel, rtt=300, min_rtt=40, backoff=2, pmtu=1500, bytes_acked=20, delivery_rate=7, last_ack_recv=8)
    other = flow(kernel, "10.0.0.3", backoff=0)
    peers = sockdiag.by_peer([one, other, two])
    assert {address: peer.flows for address, peer in peers.items()} == {"10.0.0.2": 2, "10.0.0.3": 1}
    assert peers["10.0.0.2"].counters == {
        "backoff": 2,
        "probe_backoff": 0,
        "rtt_us": 300,
        "rto_us": 1_632_000,
        "delivery_rate": 7,
        "min_rtt_us": 40,
        "pmtu": 1500,
        "last_ack_recv_ms": 8,
        "last_data_sent_ms": 1_500,
        "bytes_acked": 30,
        "bytes_received": 2 * (2**41 + 1),
        "bytes_retrans": 2**37,
        "busy_us": 2**34,
        "rwnd_limited_us": 2**35,
        "sndbuf_limited_us": 2**36,
        "reord_seen": 34,
        "retrans_total": 90,
        "send_queue": 18,
        "recv_queue": 14,
        "notsent_bytes": 2 * 749_240,
        "unacked": 212,
        "lost": 210,
    }
    assert sockdiag.by_peer([]) == {}


def test_a_counter_that_no_flow_tells_is_absent(kernel):
    (old,) = flows(kernel, tcp(told=info()[:104]))
    (peer,) = sockdiag.by_peer([old]).values()
    missing = {ours for name, (ours, _) in TOLD.items() if getattr(TcpInfo, name).offset >= 104}
    assert set(sockdiag.Flow._fields[6:]) - set(peer.counters) == missing


def test_asking_a_closed_window_is_not_lost_data(kernel):
    (probing,) = flows(kernel, tcp(timer=4, told=info(backoff=5)))
    (peer,) = sockdiag.by_peer([probing]).values()
    assert (peer.counters["backoff"], peer.counters["probe_backoff"]) == (0, 5)
