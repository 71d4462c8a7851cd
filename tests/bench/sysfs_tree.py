"""Synthetic trees of /sys and /proc with network devices, InfiniBand ports and TCP counters, made file by file.

Nothing in them was recorded on a machine: names and forms are those of Linux 6.18 and of mlx5, values are invented.
"""

from __future__ import annotations

NET = {"carrier": "1", "operstate": "up", "mtu": "1500", "speed": "100000"}
NET |= {"carrier_changes": "2", "carrier_up_count": "1", "carrier_down_count": "1"}
STATISTICS = [
    "collisions",
    "multicast",
    "rx_bytes",
    "rx_compressed",
    "rx_crc_errors",
    "rx_dropped",
    "rx_errors",
    "rx_fifo_errors",
    "rx_frame_errors",
    "rx_length_errors",
    "rx_missed_errors",
    "rx_nohandler",
    "rx_over_errors",
    "rx_packets",
    "tx_aborted_errors",
    "tx_bytes",
    "tx_carrier_errors",
    "tx_compressed",
    "tx_dropped",
    "tx_errors",
    "tx_fifo_errors",
    "tx_heartbeat_errors",
    "tx_packets",
    "tx_window_errors",
]
PORT = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand"}
COUNTERS = [
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "multicast_rcv_packets",
    "multicast_xmit_packets",
    "port_rcv_constraint_errors",
    "port_rcv_data",
    "port_rcv_errors",
    "port_rcv_packets",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_data",
    "port_xmit_discards",
    "port_xmit_packets",
    "port_xmit_wait",
    "symbol_error",
    "unicast_rcv_packets",
    "unicast_xmit_packets",
]
HW_COUNTERS = [
    "duplicate_request",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "out_of_buffer",
    "out_of_sequence",
    "packet_seq_err",
    "req_cqe_error",
    "req_cqe_flush_error",
    "req_remote_access_errors",
    "req_remote_invalid_request",
    "resp_cqe_error",
    "resp_cqe_flush_error",
    "resp_local_length_error",
    "resp_remote_access_errors",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "roce_adp_retrans_to",
    "roce_slow_restart",
    "roce_slow_restart_cnps",
    "roce_slow_restart_trans",
    "rp_cnp_handled",
    "rp_cnp_ignored",
    "rx_atomic_requests",
    "rx_dct_connect",
    "rx_icrc_encapsulated",
    "rx_read_requests",
    "rx_write_requests",
]
SNMP = """Ip: Forwarding DefaultTTL OutNoRoutes FragFails
Ip: 1 64 0 0
Icmp: InMsgs InErrors InCsumErrors InDestUnreachs
Icmp: 0 0 7 0
Tcp: RtoAlgorithm ActiveOpens OutSegs RetransSegs InCsumErrors
Tcp: 1 5 {out} {retransmitted} 0
"""
NETSTAT = """TcpExt: SyncookiesSent TCPTimeouts TCPLostRetransmit
TcpExt: 9 {timeouts} 0
IpExt: InNoRoutes InTruncatedPkts
IpExt: 0 0
"""


def add_netdev(sys, name, **told):
    """A network device, with what it tells; its folder."""
    folder = sys / "class" / "net" / name
    (folder / "device").mkdir(parents=True)
    (folder / "statistics").mkdir()
    for file, text in {**NET, **told}.items():
        (folder / file).write_text(f"{text}\n")
    for file in STATISTICS:
        (folder / "statistics" / file).write_text("0\n")
    return folder


def add_port(sys, device, port, lifespan_ms=10, **told):
    """A port of an HCA, with what it tells; its folder."""
    folder = sys / "class" / "infiniband" / device / "ports" / str(port)
    for inside, names in (("counters", COUNTERS), ("hw_counters", HW_COUNTERS)):
        (folder / inside).mkdir(parents=True)
        for name in names:
            (folder / inside / name).write_text("0\n")
    (folder / "hw_counters" / "lifespan").write_text(f"{lifespan_ms}\n")
    for file, text in {**PORT, **told}.items():
        (folder / file).write_text(f"{text}\n")
    return folder


def set_tcp(proc, out=0, retransmitted=0, timeouts=0):
    """The host's TCP counters."""
    (proc / "net").mkdir(parents=True, exist_ok=True)
    (proc / "net" / "snmp").write_text(SNMP.format(out=out, retransmitted=retransmitted))
    (proc / "net" / "netstat").write_text(NETSTAT.format(timeouts=timeouts))
