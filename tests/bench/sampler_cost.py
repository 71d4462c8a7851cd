"""What sampling a host's links costs: `python tests/bench/sampler_cost.py [SECONDS]`.

The CPU time of the sampler's process by the kernel's count, once it has started, as a share of one core: on this host's
own devices (real sysfs, with pairs of veth added where that is permitted), the same with 100 connections to 64 peers in
a network namespace, over each of which something is sent ten times a second (where that is permitted), and on a
synthetic tree of 4 network devices and 8 InfiniBand ports on a file system, where a second process moves the counters
that traffic moves; at rest, and while a rank says that it waits. In a synthetic tree no driver asks its firmware, which
a real one does for each value.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time

import sysfs_tree

from roundk.tracer import links, rundir

SECONDS = 30.0
MOVING = {"statistics": ("rx_bytes", "tx_bytes", "rx_packets", "tx_packets")}
MOVING |= {"counters": ("port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets", "port_xmit_wait")}
MOVING |= {"hw_counters": ("np_cnp_sent", "rp_cnp_handled", "rx_write_requests")}
DEVICES = 4
CONNECTIONS, PEERS = 100, 64
NET, PORT = "10.219.5", 7001
READER = f"""
import selectors, socket
found = selectors.DefaultSelector()
server = socket.create_server(("", {PORT}), backlog={CONNECTIONS})
found.register(server, selectors.EVENT_READ)
print("listens", flush=True)
while True:
    for key, _ in found.select():
        if key.fileobj is server:
            found.register(server.accept()[0], selectors.EVENT_READ)
        elif not key.fileobj.recv(65536):
            found.unregister(key.fileobj)
"""


def sample(run, seconds, *, waiting, **options):
    """CPU seconds of a sampler after its start, and what it left on disk in bytes."""
    folder = rundir.prepare(str(run))
    if waiting:
        _, file = rundir.side_file(folder, 0)
        devices = ",".join(
            path.name for path in pathlib.Path(options.get("sysfs_root", "/sys"), "class", "net").iterdir()
        )
        file.append({"kind": "process", "network": {"GLOO_SOCKET_IFNAME": devices, "NCCL_IB_HCA": "mlx5"}})
        file.renew(time.time_ns(), time.time_ns() - 10**10)
    stop, hold = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(hold)
        sampler = links.Sampler(folder, **options)
        sampler.run(stop)
        os._exit(0)
    time.sleep(2)
    begin = cpu_of(pid)
    time.sleep(seconds)
    used = cpu_of(pid) - begin
    os.close(hold)
    os.waitpid(pid, 0)
    return used, sum(path.stat().st_size for path in pathlib.Path(folder).glob("links-*"))


def cpu_of(pid):
    """CPU seconds of a process, to the nanosecond. Source: proc_pid_schedstat, first field."""
    return int(pathlib.Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def move(sys_root, stop):
    """Move the counters that traffic moves, a hundred times a second, until told to stop."""
    wanted = [path for folder, names in MOVING.items() for name in names for path in sys_root.rglob(f"{folder}/{name}")]
    files = [os.open(path, os.O_WRONLY) for path in wanted]
    value = 0
    while not stop.exists():
        value += 1_000_000
        for file in files:
            os.pwrite(file, b"%d\n" % value, 0)
        time.sleep(0.01)


def tree(root):
    """The synthetic tree: its `sys`."""
    for number in range(DEVICES):
        sysfs_tree.add_netdev(root / "sys", f"eth{number}")
    for number in range(8):
        sysfs_tree.add_port(root / "sys", f"mlx5_{number}", 1)
    sysfs_tree.set_tcp(root / "proc")
    return root / "sys"


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def connections():
    """Connections of this host to the addresses of a namespace, which carry a little data while this lasts."""
    name, stop = f"rk-{os.getpid()}", threading.Event()
    ip("netns", "add", name)
    try:
        ip("link", "add", name[:15], "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("addr", "add", f"{NET}.254/24", "dev", name[:15])
        ip("link", "set", name[:15], "up")
        ip("-n", name, "link", "set", "eth0", "up")
        for number in range(PEERS):
            ip("-n", name, "addr", "add", f"{NET}.{number + 1}/24", "dev", "eth0")
        with (
            subprocess.Popen(
                ["ip", "netns", "exec", name, sys.executable, "-c", READER], stdout=subprocess.PIPE
            ) as reader,
            contextlib.ExitStack() as kept,
        ):
            reader.stdout.readline()
            made = [socket.create_connection((f"{NET}.{number % PEERS + 1}", PORT)) for number in range(CONNECTIONS)]
            for one in made:
                kept.enter_context(one)
            sending = threading.Thread(target=send, args=(made, stop))
            sending.start()
            try:
                yield
            finally:
                stop.set()
                sending.join()
                reader.kill()
    finally:
        ip("netns", "del", name)


def send(sockets, stop):
    while not stop.wait(0.1):
        for one in sockets:
            one.sendall(bytes(10_000))


def measure(root, name, seconds, **options):
    for waiting in (False, True):
        used, left = sample(root / f"{name} {waiting}", seconds, waiting=waiting, **options)
        way = "while a call is stalled" if waiting else "at rest"
        print(f"{name}, {way}: {100 * used / seconds:.2f} % of a core, {left:,} bytes on disk", flush=True)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(scratch)
        sys_root = tree(root)
        mover = os.fork()
        if not mover:
            move(sys_root, root / "stop")
            os._exit(0)
        measure(root, "this host", seconds)
        try:
            with connections():
                measure(root, f"this host, {CONNECTIONS} connections", seconds)
        except subprocess.CalledProcessError as error:
            print(f"connections to another host cannot be made here: {error.stderr.decode().strip()}")
        measure(root, "synthetic tree", seconds, sysfs_root=str(sys_root))
        (root / "stop").touch()
        os.waitpid(mover, 0)


if __name__ == "__main__":
    with_pairs = subprocess.run(["ip", "link", "add", "rk0", "type", "veth", "peer", "name", "rk1"], check=False)
    try:
        main()
    finally:
        if not with_pairs.returncode:
            subprocess.run(["ip", "link", "del", "rk0"], check=False)
