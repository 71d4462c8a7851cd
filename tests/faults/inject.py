"""Faults of links and processes. Each function injects one and gives the function that takes it away again."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

import lab

_DISABLED, _FORWARDING = "0", "3"
"""States of a bridge's port. Source: bridge(8)."""
_NFT_TABLE = "roundk_lab"


def link_down(host, device=lab.USED, *, at="switch"):
    """Take a cable's end down; the host sees its carrier lost in both cases.

    Args:
        host: At whose cable.
        device: Which of its cables.
        at: `switch`: the port there, as when the cable is pulled or the port dies; `host`: by its administrator.
    """
    where = (lab.SWITCH, lab.port(host, device)) if at == "switch" else (lab.netns(host), device)

    def turn(state):
        lab.ip("-n", where[0], "link", "set", where[1], state)

    turn("down")
    return lambda: turn("up")


def black_hole(host):
    """Have the switch's port drop everything, both ways, while its link stays up."""

    def turn(state):
        lab.command("bridge", "-n", lab.SWITCH, "link", "set", "dev", lab.port(host), "state", state)

    turn(_DISABLED)
    return lambda: turn(_FORWARDING)


def one_way(source, target):
    """Have the switch drop what one host sends to another, and only that."""
    return _nft(f'iifname "{lab.port(source)}" oifname "{lab.port(target)}" counter drop')


def loss(host, percent):
    """Have the switch drop packets to and from a host at random. With segmentation left to the end, in bursts."""
    chance = f"numgen random mod 1000 < {round(percent * 10)} counter drop"
    return _nft(*(f'{way} "{lab.port(host)}" {chance}' for way in ("iifname", "oifname")))


def _nft(*rules):
    lines = [
        f"table bridge {_NFT_TABLE} {{",
        "chain forward {",
        "type filter hook forward priority 0;",
        *rules,
        "}",
        "}",
    ]
    lab.ip("netns", "exec", lab.SWITCH, "nft", "-f", "-", text="\n".join(lines) + "\n")
    return lambda: lab.ip("netns", "exec", lab.SWITCH, "nft", "delete", "table", "bridge", _NFT_TABLE)


def rate_limit(host, mbit, *, at="switch"):
    """Let only so much through a cable: what the host receives (`switch`), or what it sends (`host`)."""
    where = (lab.SWITCH, lab.port(host)) if at == "switch" else (lab.netns(host), lab.USED)
    shape = f"tbf rate {mbit}mbit burst 64kb limit 1mb"
    lab.command("tc", "-n", where[0], "qdisc", "add", "dev", where[1], "root", *shape.split())
    return lambda: lab.command("tc", "-n", where[0], "qdisc", "del", "dev", where[1], "root")


def mtu(host, size, *, at="switch"):
    """Make one end of a cable take smaller packets than all the others."""
    where = (lab.SWITCH, lab.port(host)) if at == "switch" else (lab.netns(host), lab.USED)
    before = lab.command("ip", "-n", where[0], "-o", "link", "show", "dev", where[1]).split(" mtu ")[1].split()[0]

    def turn(value):
        lab.ip("-n", where[0], "link", "set", where[1], "mtu", value)

    turn(str(size))
    return lambda: turn(before)


def stop(pid):
    """Stop a process."""
    os.kill(pid, signal.SIGSTOP)
    return lambda: os.kill(pid, signal.SIGCONT)


def kill(pid):
    """Kill a process: nothing takes that away."""
    os.kill(pid, signal.SIGKILL)
    return lambda: None


def half_cpu(pid, turn_s):
    """Stop and continue a process in turns of one length: it gets half of the time."""
    over = threading.Event()

    def alternate():
        with contextlib.suppress(ProcessLookupError):
            while not over.is_set():
                os.kill(pid, signal.SIGSTOP)
                time.sleep(turn_s)
                os.kill(pid, signal.SIGCONT)
                over.wait(turn_s)

    thread = threading.Thread(target=alternate, name="half-cpu")
    thread.start()

    def clear():
        over.set()
        thread.join()

    return clear
