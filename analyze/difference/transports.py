"""By what the ranks are connected, and the settings of the ports that they use."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import polars as pl

from roundk.analyze.difference.found import Found, Topic
from roundk.analyze.difference.run import Run
from roundk.analyze.difference.values import Values
from roundk.analyze.phrases import port_text
from roundk.analyze.told import short_host

_NOTABLE_SHARE: Final = 0.01
"""Of all connections: routes between the same hosts vary by less with the order in which they were made."""
_LINK_SETTINGS: Final = {
    ("netdev", "mtu"): "MTU",
    ("netdev", "speed"): "speed (Mb/s)",
    ("ib", "rate"): "rate",
    ("ib", "link_layer"): "link layer",
}
_VIRTUAL: Final = ("lo", "docker", "veth", "br-", "virbr", "tunl", "sit", "cni", "flannel", "cali", "dummy", "bonding_")


def compare(a: Run, b: Run, found: Found) -> None:
    """Compare by what the ranks of two runs are connected.

    Args:
        a: One run.
        b: The other one.
        found: Takes what is found.
    """
    topic = Topic.TRANSPORTS
    of_a, of_b = _facts(a), _facts(b)
    for name in dict.fromkeys([*of_a, *of_b]):
        found.values(topic, name, of_a.get(name), of_b.get(name))
    if a.trace.channels.is_empty() or b.trace.channels.is_empty():
        no_a, no_b = a.trace.channels.is_empty(), b.trace.channels.is_empty()
        if not (no_a and no_b) or a.uses_nccl or b.uses_nccl:
            found.is_untold(topic, "connections of NCCL's channels", a=no_a, b=no_b)
        return
    mix_a, mix_b = _mix(a), _mix(b)
    if _is_alike(mix_a, mix_b):
        found.is_same(topic, "connections")
    else:
        found.texts(topic, "connections", _mix_text(mix_a), _mix_text(mix_b))
    found.texts(topic, "channels of a communicator", _channels(a), _channels(b))
    found.values(topic, "network devices", _devices(a), _devices(b))
    gdr_a, gdr_b = _gdr(a), _gdr(b)
    if gdr_a and gdr_b:
        found.texts(topic, "GPUDirect RDMA", gdr_a, gdr_b)
    elif gdr_a or gdr_b:
        found.is_untold(topic, "GPUDirect RDMA", a=not gdr_a, b=not gdr_b)


def _facts(run: Run) -> dict[str, Values]:
    pairs: dict[str, list[tuple[str | None, int | str]]] = defaultdict(list)
    for fact in run.facts("nccl_network"):
        pairs["network that NCCL uses"].append((fact.text_of("network"), _who(fact.host, fact.rank)))
    return {name: Values.of(of, run.hosts) for name, of in pairs.items()}


def _who(host: str | None, rank: int | None) -> int | str:
    return host if host is not None else "a log" if rank is None else rank


def _mix(run: Run) -> dict[str, int]:
    """Connections by transport, each counted once, at its sending end where both are told."""
    sending = run.trace.channels.filter(pl.col("direction").is_in(["send", "child"]))
    ends = sending if sending.height else run.trace.channels
    counted = ends.group_by(pl.col("transport").fill_null("not told")).len().sort("len", "transport", descending=True)
    return dict(counted.iter_rows())


def _is_alike(a: dict[str, int], b: dict[str, int]) -> bool:
    shares = [{name: count / sum(mix.values()) for name, count in mix.items()} for mix in (a, b)]
    return set(a) == set(b) and all(abs(shares[0][name] - shares[1][name]) < _NOTABLE_SHARE for name in a)


def _mix_text(mix: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in mix.items())


def _channels(run: Run) -> str:
    """`16`, or `2 to 16` where the communicators have different numbers of them."""
    made = run.trace.channels.filter(pl.col("shape") != "p2p")
    most = (made if made.height else run.trace.channels).group_by("comm").agg(pl.col("channel").max() + 1)["channel"]
    least, highest = int(str(most.min())), int(str(most.max()))
    return str(highest) if least == highest else f"{least} to {highest}"


def _devices(run: Run) -> Values:
    """Devices that each host's connections over a network use."""
    used = run.trace.channels.filter(
        pl.col("transport").str.starts_with("NET/"), pl.col("host").is_not_null(), pl.col("device").is_not_null()
    )
    by_host = used.group_by("host").agg(pl.col("device").unique().sort())
    return Values.of((", ".join(devices), short_host(host) or host) for host, devices in by_host.iter_rows())


def _gdr(run: Run) -> str:
    over = run.trace.channels.filter(pl.col("transport").str.starts_with("NET/"), pl.col("is_gdr").is_not_null())
    if over.is_empty():
        return ""
    on = int(over["is_gdr"].sum())
    return "on" if on == over.height else "off" if not on else f"on for {on:,} of {over.height:,} ends"


def links(a: Run, b: Run, found: Found) -> None:
    """Compare the settings of the ports of two runs, those that the job uses where that is told.

    Args:
        a: One run.
        b: The other one.
        found: Takes what is found.
    """
    topic = Topic.LINKS
    empty = [run.trace.counters.is_empty() for run in (a, b)]
    if any(empty):
        found.is_untold(topic, "settings of links", a=empty[0], b=empty[1])
        return
    ports_a, ports_b = _used(a), _used(b)
    if ports_a or ports_b:
        found.values(topic, "ports used", _named(ports_a), _named(ports_b))
    both_told = bool(ports_a) and bool(ports_b)
    of_a, of_b = (_link_settings(run, used if both_told else {}) for run, used in ((a, ports_a), (b, ports_b)))
    for name in dict.fromkeys([*of_a, *of_b]):
        found.values(topic, name, of_a.get(name), of_b.get(name))


def _used(run: Run) -> dict[tuple[str, str, str], str]:
    """Ports of each host that the job uses: (host, kind, device) to how the port is called."""
    found = {}
    for fact in run.facts("port_used"):
        device, kind = fact.text_of("device"), fact.text_of("kind")
        if device and kind and fact.host:
            found[fact.host, kind, device] = port_text(device, fact.number_of("port"))
    return found


def _named(ports: dict[tuple[str, str, str], str]) -> Values:
    by_host: dict[str, set[str]] = defaultdict(set)
    for (host, _, _), port in ports.items():
        by_host[host].add(port)
    return Values.of((", ".join(sorted(of)), host) for host, of in by_host.items())


def _link_settings(run: Run, used: dict[tuple[str, str, str], str]) -> dict[str, Values]:
    """What each host's ports last had; of several ports with different values, all of them."""
    asked = pl.struct(kind="kind", counter="counter").is_in(
        [{"kind": kind, "counter": counter} for kind, counter in _LINK_SETTINGS]
    )
    last = (
        run.trace.counters.filter(asked, pl.col("host").is_not_null(), pl.col("is_read"))
        .with_columns(said=pl.coalesce("word", pl.col("value").cast(pl.String)))
        .group_by("host", "kind", "device", "counter", maintain_order=True)
        .agg(pl.col("said").last())
    )
    by_host: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for host, kind, device, counter, said in last.iter_rows():
        named = short_host(host) or host
        is_ours = (named, kind, device) in used if used else not device.startswith(_VIRTUAL)
        if is_ours and said is not None and not said.startswith("-"):  # a port that is down has speed -1
            by_host[_LINK_SETTINGS[kind, counter]][named].add(said)
    return {
        name: Values.of((", ".join(sorted(said)), host) for host, said in hosts.items())
        for name, hosts in by_host.items()
    }
