"""Hosts of a small cluster on one machine: a network namespace each, cables between them and a switch.

The switch is a namespace of its own with two bridges: `br0` joins every host's `eth0`, on which the job talks, and
`br1` joins every host's `eth1`, which nobody uses. The machine's own interfaces are never touched, and there is no way
out of the cluster. Names are the same in every run, so one suite at a time has the machine (`only_one`).

All of it needs root, iproute2 and nftables; `missing` says what is not there.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

SWITCH = "roundk-lab-sw"
USED, SPARE = "eth0", "eth1"
BRIDGES = {USED: "br0", SPARE: "br1"}
_PORT_PREFIX = {USED: "p", SPARE: "q"}
_NET = {USED: "10.77.0", SPARE: "10.78.0"}
SMALL_MTU = 1500
_WIRE_SOURCE = pathlib.Path(__file__).with_name("wire.c")
_PR_SET_PDEATHSIG = 1
_SUITE_S = 900
"""The tests take 150 s, the command with all scenarios 300 s for each run of them."""
_TIMEOUT_S = 30
"""For commands that take milliseconds."""


class LabError(Exception):
    """The lab itself failed: the run says nothing about what was to be tested."""


def missing(*, wire=False):
    """Why faults cannot be injected on this machine; empty: they can.

    Args:
        wire: Whether the wire that delays, loses and reorders frames is needed too.
    """
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool, package in (("ip", "iproute2"), ("tc", "iproute2"), ("bridge", "iproute2"), ("nft", "nftables")):
        if shutil.which(tool) is None:
            return f"`{tool}` is not installed (Debian package {package})"
    if shutil.which("ethtool") is None:
        return "`ethtool` is not installed"
    if wire and shutil.which("cc") is None:
        return "there is no C compiler `cc` for the wire that delays and loses frames"
    if wire and not pathlib.Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun for the wire that delays and loses frames"
    return _refused()


def _refused():
    probe = f"{SWITCH}-probe"
    try:
        ip("netns", "add", probe)
        try:
            ip("-n", probe, "link", "add", "probe0", "type", "veth", "peer", "name", "probe1")
            ip("-n", probe, "link", "add", "probe2", "type", "bridge")
        finally:
            ip("netns", "del", probe)
    except LabError as error:
        return f"this machine makes no namespaces, veth pairs or bridges: {error}"
    return ""


def die_with_parent():
    """In a child: end when the parent does, however it ends, so that a killed driver leaves nothing behind."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@contextlib.contextmanager
def only_one():
    """Hold the machine: the namespaces' names are fixed, and two suites would cut each other's links.

    SIGTERM ends the body as an exception does, so that the namespaces are removed then too.

    Raises:
        LabError: another suite holds it for longer than one takes.
    """
    with (pathlib.Path(tempfile.gettempdir()) / "roundk-lab.lock").open("w") as lock:
        before = signal.signal(signal.SIGTERM, _terminated)
        try:
            _wait_for(lock)
            yield
        finally:
            signal.signal(signal.SIGTERM, before)


def _wait_for(lock):
    until = time.monotonic() + _SUITE_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > until:
                raise LabError("another run of the fault lab holds this machine, and one at a time can") from None
            time.sleep(0.5)
        else:
            return


def _terminated(number, frame):
    raise SystemExit(128 + number)


def command(*words, text=None):
    """Run a command of the system.

    Raises:
        LabError: it failed.
    """
    try:
        done = subprocess.run(words, input=text, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LabError(f"{' '.join(words)}: {error}") from None
    if done.returncode:
        raise LabError(f"{' '.join(words)}: exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def ip(*words, text=None):
    """Run `ip`."""
    return command("ip", *words, text=text)


def host_name(host):
    """A host's name, as the run directory has it."""
    return f"h{host}"


def netns(host):
    """A host's network namespace."""
    return f"roundk-lab-h{host}"


def port(host, device=USED):
    """The switch's port at the other end of a host's cable."""
    return f"{_PORT_PREFIX[device]}{host}"


def address(host, device=USED):
    """A host's address."""
    return f"{_NET[device]}.{10 + host}"


class Network:
    """The cluster. Made by `up`; `down` removes it whatever state it is in."""

    def __init__(self, hosts=4, *, mtu=1500, segmentation=True, small=None, wired=None, scratch=None):
        """Describe a cluster.

        Args:
            hosts: How many.
            mtu: Of every interface and port.
            segmentation: Whether the interfaces leave cutting packets to the other end (TSO, GSO). Such packets pass
                a port of any MTU until one is sent again, so without it an MTU fault is the same in every run.
            small: The host whose port at the switch takes packets of 1500 bytes only, whatever `mtu` is.
            wired: The host whose cable is `wire.c`.
            scratch: Folder for the compiled wire.
        """
        self.hosts = hosts
        self._mtu = mtu
        self._segmentation = segmentation
        self._small = small
        self._wired = wired
        self._scratch = scratch
        self.wire = None

    def __enter__(self):
        try:
            self.up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *_):
        self.down()

    def up(self):
        """Make the cluster.

        Raises:
            LabError: the machine refuses.
        """
        remove_all()
        ip("netns", "add", SWITCH)
        for host in range(self.hosts):
            ip("netns", "add", netns(host))
        # Without forward_delay and STP a port forwards at once after a flap, as a data centre's edge port does.
        lines = ["link set lo up"]
        for bridge in BRIDGES.values():
            lines += [f"link add {bridge} type bridge stp_state 0 forward_delay 0", f"link set {bridge} up"]
        ip("-n", SWITCH, "-batch", "-", text="\n".join(lines) + "\n")
        if self._wired is not None:
            self.wire = Wire(self._wired, pathlib.Path(self._scratch))
        lines = [line for host in range(self.hosts) for device in BRIDGES for line in self._cable(host, device)]
        ip("-n", SWITCH, "-batch", "-", text="\n".join(lines) + "\n")
        for host in range(self.hosts):
            self._host_up(host)
        if self._small is not None:
            ip("-n", SWITCH, "link", "set", port(self._small), "mtu", str(SMALL_MTU))

    def _cable(self, host, device):
        at = port(host, device)
        if device == USED and host == self._wired:
            made = [f"link set {at} mtu {self._mtu}"]
        else:
            ends = f"{at} mtu {self._mtu} type veth peer name {device} mtu {self._mtu} netns {netns(host)}"
            made = [f"link add {ends}"]
        return [*made, f"link set {at} master {BRIDGES[device]} up"]

    def _host_up(self, host):
        lines = ["link set lo up"]
        for device in BRIDGES:
            lines += [
                f"link set {device} mtu {self._mtu}",
                f"addr add {address(host, device)}/24 dev {device}",
                f"link set {device} up",
            ]
        ip("-n", netns(host), "-batch", "-", text="\n".join(lines) + "\n")
        if not self._segmentation:
            ip("netns", "exec", netns(host), "ethtool", "-K", USED, "tso", "off", "gso", "off")

    def down(self):
        """Remove the cluster."""
        if self.wire is not None:
            self.wire.close()
            self.wire = None
        remove_all()


def remove_all():
    """Remove every namespace of ours, those that a killed driver left behind too."""
    for line in ip("netns", "list").splitlines():
        name = line.split()[0]
        if name == SWITCH or name.startswith(("roundk-lab-h", f"{SWITCH}-")):
            ip("netns", "del", name)


class Wire:
    """The process in place of a host's cable; it is a perfect one until `set` is called."""

    def __init__(self, host, scratch):
        """Compile the program and put it between the host and the switch.

        Raises:
            LabError: there is no compiler, or no TAP device.
        """
        program = scratch / "wire"
        if not program.exists():
            command("cc", "-O2", "-Wall", "-o", str(program), str(_WIRE_SOURCE))
        self._process = subprocess.Popen(
            [str(program), netns(host), USED, SWITCH, port(host)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._expect("ready")

    def set(self, *, delay_ms=0, jitter_ms=0, loss=0.0, reorder=0.0, hold_ms=0, rate_mbit=0, ways="ab"):
        """Make the cable bad, or good again without arguments.

        Args:
            delay_ms, jitter_ms: Added to every frame; jitter: between nothing and so much.
            loss: Share of frames that is lost.
            reorder: Share of frames that is held back `hold_ms`, so that others overtake them.
            hold_ms: See there.
            rate_mbit: So many Mbit pass in a second; 0: all.
            ways: `a`: what the host sends, `b`: what it receives.

        Raises:
            LabError: the process is gone.
        """
        rules = (delay_ms * 1000, jitter_ms * 1000, loss * 1e6, reorder * 1e6, hold_ms * 1000, rate_mbit * 125_000)
        for way in ways:
            print(way, *(round(number) for number in rules), file=self._process.stdin, flush=True)
            self._expect("ok")

    def _expect(self, word):
        line = self._process.stdout.readline().strip()
        if line != word:
            raise LabError(f"the wire said {line!r} instead of {word!r} (exit code {self._process.poll()})")

    def close(self):
        """End the process, and with it the cable."""
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
