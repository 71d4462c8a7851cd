"""TCP connections between two network namespaces, as the kernel tells of them and as `ss` shows them."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import polars as pl
import pytest

from roundk.tracer import reader

FAR, ALSO_FAR, NEAR = "10.79.0.2", "10.79.0.3", "10.79.0.1"
FAR_6, NEAR_6 = "fd79::2", "fd79::1"
PORT = 29_500
PATIENCE_S = 20
READER = """
import socket, sys, threading
def read(connection):
    while connection.recv(1 << 20):
        pass
# On IPv6, so that this end of an IPv4 connection has mapped addresses.
server = socket.create_server(("::", int(sys.argv[1])), family=socket.AF_INET6, dualstack_ipv6=True)
print("listens", flush=True)
kept = []
while True:
    kept.append(server.accept()[0])
    if sys.argv[2] == "reads":
        threading.Thread(target=read, args=(kept[-1],), daemon=True).start()
"""
SENDER = """
import socket, sys
kept = [socket.create_connection((address, int(sys.argv[1]))) for address in sys.argv[2:]]
print("connected", flush=True)
for line in sys.stdin:  # how much to send to each
    for connection in kept:
        connection.sendall(bytes(int(line)))
    print("sent", flush=True)
"""
LOOKER = """
import json, sys
from roundk.tracer import sockdiag
diag = sockdiag.SockDiag()
for _ in sys.stdin:
    flows = diag.flows()
    peers = {address: peer.counters for address, peer in sockdiag.by_peer(flows).items()}
    print(json.dumps([[flow._asdict() for flow in flows], peers]), flush=True)
"""


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=PATIENCE_S)


class Hosts:
    """Two hosts joined by a cable: `near` with one address, `far` with two."""

    def __init__(self):
        self.near, self.far = (f"roundk-sockdiag-{os.getpid()}-{end}" for end in ("near", "far"))
        self._started = []

    def make(self):
        ip("netns", "add", self.near)
        ip("netns", "add", self.far)
        ip("-n", self.near, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", self.far)
        for host, addresses in ((self.near, (NEAR,)), (self.far, (FAR, ALSO_FAR))):
            for address in addresses:
                ip("-n", host, "addr", "add", f"{address}/24", "dev", "eth0")
            ip("-n", host, "link", "set", "lo", "up")
            ip("-n", host, "link", "set", "eth0", "up")
        for host, address in ((self.near, NEAR_6), (self.far, FAR_6)):
            with contextlib.suppress(subprocess.CalledProcessError):  # a machine without IPv6
                ip("-n", host, "addr", "add", f"{address}/64", "dev", "eth0", "nodad")

    def remove(self):
        for process in self._started:
            process.kill()
            process.communicate()
        for host in (self.near, self.far):
            subprocess.run(["ip", "netns", "del", host], check=False, capture_output=True)

    def start(self, host, code, *words):
        command = ["ip", "netns", "exec", host, sys.executable, "-c", code, *map(str, words)]
        self._started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return self._started[-1]

    def send(self, does, *addresses, size):
        """A receiver on the far host, and from the near one a connection to each of its addresses."""
        receiver = self.start(self.far, READER, PORT, does)
        assert receiver.stdout.readline() == "listens\n"
        sender = self.start(self.near, SENDER, PORT, *addresses)
        assert sender.stdout.readline() == "connected\n"
        tell(sender, size)
        return sender

    def drop(self, address, share=""):
        """Lose what comes to an address of the far host."""
        rules = f"table ip f {{ chain c {{ type filter hook input priority 0; ip daddr {address} {share} drop; }}; }}"
        command = ["ip", "netns", "exec", self.far, "nft", "-f", "-"]
        subprocess.run(command, input=rules, text=True, check=True, capture_output=True, timeout=PATIENCE_S)


def tell(process, line=""):
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


@pytest.fixture
def hosts():
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if shutil.which("ip") is None:
        pytest.skip("`ip` is not installed (Debian package iproute2)")
    hosts = Hosts()
    try:
        try:
            hosts.make()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine makes no namespaces or veth pairs: {error.stderr}")
        yield hosts
    finally:
        hosts.remove()


@pytest.fixture
def watch(hosts):
    """Flows and peers of a host, once what is wanted of them is so."""
    lookers = {}

    def watch(host, wanted):
        if host not in lookers:
            lookers[host] = hosts.start(host, LOOKER)
        looker = lookers[host]
        until = time.monotonic() + PATIENCE_S
        while True:
            tell(looker)
            flows, peers = json.loads(looker.stdout.readline())
            if wanted(flows, peers):
                return flows, peers
            assert time.monotonic() < until, json.dumps(flows, indent=1)
            time.sleep(0.05)

    return watch


def needs(tool, package):
    if shutil.which(tool) is None:
        pytest.skip(f"`{tool}` is not installed (Debian package {package})")


def number(name, line):
    """What `ss` prints after a name and a colon, a blank or what else the name ends in; what is 0 it leaves out."""
    found = re.search(rf"(?<![\w:]){name}[: /]([\d.]+)", line)
    return float(found[1]) if found else 0


def shown_by_ss(host):
    """The connections of a host as `ss` has them, by the peer's port and address."""
    command = ["ip", "netns", "exec", host, "ss", "-tinOH", "state", "established"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S)
    shown = {}
    for line in done.stdout.splitlines():
        unread, unacknowledged, local, peer = line.split()[:4]
        address = peer.rpartition(":")[0].strip("[]").removeprefix("::ffff:")
        shown[address] = {
            "recv_queue": int(unread),
            "send_queue": int(unacknowledged),
            "local_port": int(local.rpartition(":")[2]),
            "peer_port": int(peer.rpartition(":")[2]),
            # ss prints milliseconds
            "rtt_us": round(number("rtt", line) * 1000),
            "min_rtt_us": round(number("minrtt", line) * 1000) or None,
            "rto_us": round(number("rto", line) * 1000),
            "busy_us": number("busy", line) * 1000,
            "pmtu": number("pmtu", line),
            "backoff": number("backoff", line),
            "unacked": number("unacked", line),
            "lost": number("lost", line),
            "bytes_acked": number("bytes_acked", line),
            "bytes_received": number("bytes_received", line),
            "bytes_retrans": number("bytes_retrans", line),
            "retrans_total": number(r"retrans:\d+", line),
            "reord_seen": number("reord_seen", line),
            "notsent_bytes": number("notsent", line),
            # bit/s, in whole
            "delivery_rate": number("delivery_rate", line) // 8 or None,
        }
    return shown


def test_quiet_connections_are_as_ss_shows_them(hosts, watch):
    needs("ss", "iproute2")
    has_ipv6 = pathlib.Path("/proc/net/if_inet6").exists()
    addresses = [FAR, FAR_6] if has_ipv6 else [FAR]
    sender = hosts.send("reads", *addresses, size=3_000_000)
    assert sender.stdout.readline() == "sent\n"

    def is_quiet(flows, _):
        return len(flows) == len(addresses) and not any(flow["send_queue"] for flow in flows)

    for host, peers in ((hosts.near, {FAR, FAR_6}), (hosts.far, {NEAR, NEAR_6})):
        flows, _ = watch(host, is_quiet)
        assert {flow["peer_address"] for flow in flows} <= peers
        assert {flow["state"] for flow in flows} == {"established"}
        shown = shown_by_ss(host)
        for flow in flows:
            compared = shown[flow["peer_address"]]
            flow["busy_us"] -= flow["busy_us"] % 1000
            assert {name: flow[name] for name in compared} == compared
    # An absolute value besides: the receiving end saw what was sent.
    assert {flow["bytes_received"] for flow in flows} == {3_000_000}


def test_connections_within_a_host_are_left_out(hosts, watch):
    assert hosts.send("reads", FAR, size=1).stdout.readline() == "sent\n"
    local = hosts.start(hosts.far, SENDER, PORT, "127.0.0.1", FAR, ALSO_FAR)
    assert local.stdout.readline() == "connected\n"
    flows, _ = watch(hosts.far, lambda flows, _: flows)
    assert [flow["peer_address"] for flow in flows] == [NEAR]


def test_a_receiver_that_does_not_read(hosts, watch):
    hosts.send("does not read", FAR, size=100_000_000)
    (sent,), peers = watch(
        hosts.near, lambda flows, _: flows and flows[0]["is_probing"] and flows[0]["backoff"] and flows[0]["send_queue"]
    )
    (received,), _ = watch(hosts.far, lambda flows, _: flows and flows[0]["recv_queue"])
    assert sent["send_queue"] == sent["notsent_bytes"] > 0
    assert sent["rwnd_limited_us"] > 0
    assert received["recv_queue"] == received["bytes_received"]
    assert received["send_queue"] == 0
    # The link is not to blame, though the kernel's word is the same.
    assert peers[FAR]["backoff"] == 0 < peers[FAR]["probe_backoff"]


def test_a_black_hole_shows_on_the_flows_through_it(hosts, watch):
    needs("nft", "nftables")
    sender = hosts.send("reads", FAR, ALSO_FAR, size=10_000)
    assert sender.stdout.readline() == "sent\n"
    watch(hosts.near, lambda flows, _: len(flows) == 2 and not any(flow["send_queue"] for flow in flows))
    hosts.drop(ALSO_FAR)
    tell(sender, 50_000)
    assert sender.stdout.readline() == "sent\n"  # into the buffers of the kernel
    flows, peers = watch(hosts.near, lambda _, peers: peers[ALSO_FAR]["backoff"] > 1)
    flow = next(flow for flow in flows if flow["peer_address"] == ALSO_FAR)
    assert flow["send_queue"] == 50_000
    assert flow["bytes_acked"] - 1 == 10_000  # the kernel counts the handshake as one
    assert not flow["is_probing"]
    assert min(flow["unacked"], flow["retrans_total"], flow["bytes_retrans"]) > 0
    assert flow["rto_us"] >= 4 * flow["rtt_us"]
    assert flow["last_ack_recv_ms"] > 0
    healthy = peers[FAR]
    assert healthy["bytes_acked"] - 1 == 60_000
    assert (healthy["send_queue"], healthy["unacked"], healthy["backoff"], healthy["probe_backoff"]) == (0, 0, 0, 0)


def test_losses_show_as_retransmissions(hosts, watch):
    needs("nft", "nftables")
    hosts.drop(FAR, "numgen random mod 100 < 20")
    sender = hosts.send("reads", FAR, size=0)
    for _ in range(100):
        tell(sender, 10_000)
    _, peers = watch(hosts.near, lambda _, peers: peers and peers[FAR]["retrans_total"] > 2)
    assert peers[FAR]["bytes_retrans"] > 0
    assert peers[FAR]["bytes_acked"] > 1


def told(run, counter, peer):
    rows = pl.from_arrow(reader.read_run(run).counters).filter(kind="peer", device=peer, counter=counter)
    return rows["value"].to_list()


def test_a_run_has_its_peers_and_its_addresses(hosts, tmp_path):
    needs("nft", "nftables")
    run = tmp_path / "run"
    command = [sys.executable, "-m", "roundk", "run", "--dir", str(run), "--", "sleep", "60"]
    job = subprocess.Popen(["ip", "netns", "exec", hosts.near, *command], stderr=subprocess.DEVNULL)
    until = time.monotonic() + PATIENCE_S

    def wait_for(counter, peer, wanted):
        while not any(run.glob("*/links-*.arrow")) or not any(wanted(value) for value in told(run, counter, peer)[-1:]):
            assert time.monotonic() < until, (counter, peer)
            time.sleep(0.2)

    try:
        sender = hosts.send("reads", FAR, ALSO_FAR, size=10_000)
        assert sender.stdout.readline() == "sent\n"
        for peer in (FAR, ALSO_FAR):
            wait_for("flows", peer, lambda flows: flows == 1)
        hosts.drop(ALSO_FAR)
        tell(sender, 50_000)
        wait_for("backoff", ALSO_FAR, lambda backoff: backoff > 1)
        sender.kill()
        wait_for("flows", FAR, lambda flows: flows == 0)
    finally:
        job.terminate()
        job.wait(PATIENCE_S)
    assert max(told(run, "send_queue", ALSO_FAR)) == 50_000
    assert max(told(run, "retrans_total", ALSO_FAR)) > 1
    assert set(told(run, "retrans_total", FAR)) == set(told(run, "backoff", FAR)) == {0}
    found = pl.from_arrow(reader.read_run(run).facts).filter(pl.col("kind") == "host_address")
    assert [json.loads(fields)["address"] for fields in found["fields"]] == [NEAR]


ADDRESSES = "from roundk.tracer import netlink; print(*sorted(netlink.addresses({'lo', 'eth0'})))"


def test_a_device_has_its_addresses(hosts):
    asking = hosts.start(hosts.far, ADDRESSES)
    told = {address for address in asking.stdout.readline().split() if not address.startswith("fe80:")}
    assert told - {FAR_6} == {FAR, ALSO_FAR}, "and not those of every host"
