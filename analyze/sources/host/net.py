"""Output of `ip -s link` (text and JSON), `ethtool -S`, `ibstat`, `ibstatus`, `perfquery`, /proc/net/{snmp,netstat}.

Counters that sysfs has too carry sysfs' names, so that they compare: `rx_missed_errors` for what `ip` heads `missed`,
`carrier_changes` for its `transns`, `link_downed` for perfquery's `LinkDownedCounter`, `phys_state` for ibstat's
`Physical state`. All others keep the tool's. `ethtool -S` does not print its device: it is in the command above, or in
the file's name.

Source: iproute2 6 `ip/ipaddress.c`; ethtool 6; infiniband-diags (rdma-core 40) `ibstat`, `ibstatus`, `perfquery`; Linux
`net/ipv4/proc.c` (header line and value line, columns differ by kernel).
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from roundk.analyze.sources.host.samples import IB, NETDEV, TCP, Context, Samples
from roundk.analyze.sources.host.sysfs import ib_state, no_carrier

_LINK: Final = re.compile(r"^\d{1,7}: ([^\s:@]{1,64})(?:@[^\s:]{1,64})?: <([A-Z0-9_,-]{0,300})> mtu (\d{1,9})\b(.*)$")
_STATE: Final = re.compile(r"\bstate ([A-Z]{2,20})\b")
_STATS: Final = re.compile(r"^\s+(RX|TX)( errors)?: +([a-z].*)$")
_RX: Final = {
    "bytes": "rx_bytes",
    "packets": "rx_packets",
    "errors": "rx_errors",
    "dropped": "rx_dropped",
    "missed": "rx_missed_errors",
    "overrun": "rx_over_errors",
    "mcast": "multicast",
    "length": "rx_length_errors",
    "crc": "rx_crc_errors",
    "frame": "rx_frame_errors",
    "fifo": "rx_fifo_errors",
    "nohandler": "rx_nohandler",
}
_TX: Final = {
    "bytes": "tx_bytes",
    "packets": "tx_packets",
    "errors": "tx_errors",
    "dropped": "tx_dropped",
    "carrier": "tx_carrier_errors",
    "collsns": "collisions",
    "aborted": "tx_aborted_errors",
    "fifo": "tx_fifo_errors",
    "window": "tx_window_errors",
    "heartbt": "tx_heartbeat_errors",
    "transns": "carrier_changes",
}
_UNPREFIXED: Final = frozenset({"multicast", "collisions", "carrier_changes"})
_ETHTOOL: Final = re.compile(
    r"^\s{1,16}(\[?[A-Za-z0-9_.\-\[\]]{1,80}(?: [A-Za-z0-9_.\-\[\]]{1,40}){0,3}): (-?\d{1,20})$"
)
_CA: Final = re.compile(r"^\s*CA '([^']{1,64})'\s*$")
_IBSTATUS: Final = re.compile(r"^\s*Infiniband device '([^']{1,64})' port (\d{1,3}) status:\s*$")
_IB_PORT: Final = re.compile(r"^\s*Port (\d{1,3}):\s*$")
_IB_WORD: Final = re.compile(
    r"^\s*(State|state|Physical state|phys state|Rate|rate|Link layer|link_layer):\s+(.{1,80})$"
)
_IB_NAMES: Final = {"state": "state", "physical state": "phys_state", "phys state": "phys_state", "rate": "rate"}
_PERF_HEAD: Final = re.compile(r"^# Port (?:extended )?counters: (Lid \d{1,6}|\S{1,80}) port (\d{1,3})")
_PERF: Final = re.compile(r"^([A-Za-z0-9_]{2,60}):\.*(0x[0-9a-fA-F]{1,16}|\d{1,20})$")
_PERF_NAMES: Final = {
    "SymbolErrorCounter": "symbol_error",
    "LinkErrorRecoveryCounter": "link_error_recovery",
    "LinkDownedCounter": "link_downed",
    "PortRcvErrors": "port_rcv_errors",
    "PortRcvRemotePhysicalErrors": "port_rcv_remote_physical_errors",
    "PortRcvSwitchRelayErrors": "port_rcv_switch_relay_errors",
    "PortXmitDiscards": "port_xmit_discards",
    "PortXmitConstraintErrors": "port_xmit_constraint_errors",
    "PortRcvConstraintErrors": "port_rcv_constraint_errors",
    "LocalLinkIntegrityErrors": "local_link_integrity_errors",
    "ExcessiveBufferOverrunErrors": "excessive_buffer_overrun_errors",
    "VL15Dropped": "VL15_dropped",
    "PortXmitData": "port_xmit_data",
    "PortRcvData": "port_rcv_data",
    "PortXmitPkts": "port_xmit_packets",
    "PortRcvPkts": "port_rcv_packets",
    "PortXmitWait": "port_xmit_wait",
    "PortUnicastXmitPkts": "unicast_xmit_packets",
    "PortUnicastRcvPkts": "unicast_rcv_packets",
    "PortMulticastXmitPkts": "multicast_xmit_packets",
    "PortMulticastRcvPkts": "multicast_rcv_packets",
}
_PERF_SELECT: Final = frozenset({"PortSelect", "CounterSelect", "CounterSelect2"})
_TCP: Final = re.compile(r"^(Tcp|TcpExt): (.{1,16000})$")


class Lines:
    """Reads these outputs line by line.

    Attributes:
        device: Device of the command that was seen last, or of the file's name: `ethtool` and `perfquery` print none.
    """

    def __init__(self) -> None:
        self.device: str | None = None
        self._section = ""
        self._name = ""
        self._port: int | None = None
        self._columns: list[str] = []
        self._tcp: dict[str, list[str]] = {}

    def take(self, samples: Samples, at: Context, text: str, line: int) -> bool:
        """Take a line; False: it is none of these."""
        if not text:
            return False
        if text[0].isdigit() and self._link(samples, at, text, line):
            return True
        if text.startswith("NIC statistics"):
            self._section, self._name = "ethtool", self.device or ""
            return True
        if text[0] in "TI[#C \tP":
            return self._other(samples, at, text, line)
        return self._inside(samples, at, text, line)

    def _other(self, samples: Samples, at: Context, text: str, line: int) -> bool:
        if text.startswith("Tcp") and self._pair(samples, at, text):
            return True
        if text.startswith('[{"ifindex"'):
            return document(samples, at, text, line)
        head = _CA.match(text) or _IBSTATUS.match(text) or _PERF_HEAD.match(text)
        if head is not None:
            self._section = "perf" if text.startswith("#") else "ib"
            self._name = head[1] if self._section == "ib" else self.device or head[1]
            self._port = int(head[2]) if head.lastindex == 2 else None
            return True
        return self._inside(samples, at, text, line)

    def _inside(self, samples: Samples, at: Context, text: str, line: int) -> bool:
        """A line under a heading."""
        if self._section == "ib":
            return self._ib(samples, at, text, line)
        if self._section == "link":
            return self._stats(samples, at, text)
        if self._section == "ethtool":
            counter = _ETHTOOL.match(text)
            if counter is not None:
                samples.add(at, NETDEV, self._name, counter[1].strip(), counter[2])
            return counter is not None
        return self._section == "perf" and self._perf(samples, at, text)

    def _link(self, samples: Samples, at: Context, text: str, line: int) -> bool:
        found = _LINK.match(text)
        if found is None:
            return False
        self._section, self._name, self._columns = "link", found[1], []
        state = _STATE.search(found[4])
        _about_link(samples, at, found[1], found[3], state[1] if state else "", found[2].split(","), line)
        return True

    def _stats(self, samples: Samples, at: Context, text: str) -> bool:
        head = _STATS.match(text)
        if head is not None:
            names = _RX if head[1] == "RX" else _TX
            self._columns = [names.get(word, f"{head[1].lower()}_{word}") for word in head[3].split()]
            return True
        values = text.split()
        if not self._columns or len(values) != len(self._columns):
            return text.lstrip().startswith(("link/", "altname", "alias"))
        for counter, told in zip(self._columns, values, strict=True):
            samples.add(at, NETDEV, self._name, counter, told)
        self._columns = []
        return True

    def _ib(self, samples: Samples, at: Context, text: str, line: int) -> bool:
        port = _IB_PORT.match(text)
        if port is not None:
            self._port = int(port[1])
            return True
        word = _IB_WORD.match(text)
        if word is None or self._port is None:
            return ":" in text
        name = _IB_NAMES.get(word[1].lower(), "link_layer")
        told = word[2].strip()
        if name == "rate" and told.replace(".", "", 1).isdigit():
            told = f"{told} Gb/sec"
        samples.add(at, IB, self._name, name, told, port=self._port)
        if name == "state":
            ib_state(samples, at, self._name, self._port, told, line)
        return True

    def _perf(self, samples: Samples, at: Context, text: str) -> bool:
        found = _PERF.match(text)
        if found is None:
            return False
        if found[1] not in _PERF_SELECT:
            told = str(int(found[2], 16)) if found[2].startswith("0x") else found[2]
            samples.add(at, IB, self._name, _PERF_NAMES.get(found[1], found[1]), told, port=self._port)
        return True

    def _pair(self, samples: Samples, at: Context, text: str) -> bool:
        """A line of names, or the line of values that belongs to it."""
        found = _TCP.match(text)
        if found is None:
            return False
        words = found[2].split()
        names = self._tcp.get(found[1])
        if names is None or words[0][:1].isalpha():
            self._tcp[found[1]] = words
        else:
            for name, told in zip(names, words, strict=False):
                samples.add(at, TCP, "", name, told)
        return True


def _about_link(
    samples: Samples, at: Context, device: str, mtu: str, state: str, flags: list[str], line: int | None
) -> None:
    samples.add(at, NETDEV, device, "mtu", mtu)
    if state:
        samples.add(at, NETDEV, device, "operstate", state.lower())
    if "NO-CARRIER" in flags:
        no_carrier(samples, at, device, line)


def document(samples: Samples, at: Context, text: str, line: int | None = None) -> bool:
    """Take the JSON of `ip -s -j link`; False: it is none."""
    try:
        links = json.loads(text)
    except (ValueError, RecursionError):
        return False
    is_taken = False
    for link in links if isinstance(links, list) else ():
        device = link.get("ifname") if isinstance(link, dict) else None
        if not isinstance(device, str):
            continue
        is_taken = True
        flags = link.get("flags")
        named = [str(flag) for flag in flags] if isinstance(flags, list) else []
        _about_link(samples, at, device[:64], str(link.get("mtu", "")), str(link.get("operstate", "")), named, line)
        _json_stats(samples, at, device[:64], link.get("stats64", link.get("stats")))
    return is_taken


def _json_stats(samples: Samples, at: Context, device: str, stats: Any) -> None:
    for way in ("rx", "tx"):
        told = stats.get(way) if isinstance(stats, dict) else None
        for name, value in told.items() if isinstance(told, dict) else ():
            if isinstance(value, int) and len(name) <= 64:
                counter = name if name in _UNPREFIXED else f"{way}_{name}"
                samples.add(at, NETDEV, device, counter, str(value))
