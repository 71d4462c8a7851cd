"""Host evidence: real outputs of this machine against the kernel's own files, and the tools' forms one by one."""

from __future__ import annotations

import datetime as dt
import json
import os
import pathlib
import shutil
import subprocess
import time

import polars as pl
import pytest
from costs import cheapest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundk.analyze.sources import host
from roundk.analyze.sources.host.where import Headers, device_of_name, of_path
from roundk.analyze.sources.inputs import Hints, Input

NET = pathlib.Path("/sys/class/net")
IP = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
needs_ip = pytest.mark.skipif(IP is None, reason="no ip command here")
needs_sysfs = pytest.mark.skipif(not (NET / "lo/statistics").is_dir(), reason="no /sys/class/net here")
UTC = dt.UTC


def at(*moment):
    return int(dt.datetime(*moment, tzinfo=UTC).timestamp()) * 10**9


@pytest.fixture
def load(tmp_path):
    def read(files, *, is_known=True):
        items = []
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
            items.append(Input(name, path))
        for item in items:
            assert host.recognises(item) == is_known, item.name
        return host.load(items, Hints())

    return read


def values(part, **where):
    """Counter to value or word, of the samples with these columns; None: it could not be read."""
    rows = part.counters.filter(*(pl.col(name) == value for name, value in where.items()))
    return {
        (row["device"], row["port"], row["counter"]): (row["value"] if row["word"] is None else row["word"])
        if row["is_read"]
        else None
        for row in rows.iter_rows(named=True)
    }


def facts(part):
    return [(row["kind"], json.loads(row["fields"])) for row in part.facts.iter_rows(named=True)]


def kernel(device, counter):
    return int((NET / device / "statistics" / counter).read_text())


@needs_ip
@needs_sysfs
@pytest.mark.parametrize("form", [["-s"], ["-s", "-j"], ["-s", "-j", "-p"], ["-s", "-s"]])
def test_real_ip_link_agrees_with_sysfs(load, form):
    before = {name: kernel("lo", name) for name in ("rx_bytes", "tx_packets")}
    told = subprocess.run([IP, *form, "link"], capture_output=True, text=True, check=True).stdout
    after = {name: kernel("lo", name) for name in ("rx_bytes", "tx_packets")}
    part = load({"node7/ip.txt": told})
    found = values(part, host="node7")
    for name, least in before.items():
        assert least <= found["lo", None, name] <= after[name]
    for device in NET.iterdir():
        own = device.name
        assert found[own, None, "mtu"] == int((device / "mtu").read_text())
        assert found[own, None, "operstate"] == (device / "operstate").read_text().strip()
        for name in ("rx_errors", "rx_dropped", "tx_errors", "tx_carrier_errors", "collisions", "multicast"):
            assert found[own, None, name] == kernel(own, name), (own, name)
        if form == ["-s", "-s"] and (own, None, "carrier_changes") in found:
            assert found[own, None, "carrier_changes"] == int((device / "carrier_changes").read_text())


@needs_sysfs
def test_a_copied_tree_of_this_machine(load):
    wanted = ["carrier", "carrier_changes", "mtu", "operstate", "speed"]
    tree, expected, unread = {}, {}, set()
    for device in NET.iterdir():
        for path in [*(device / name for name in wanted), *sorted((device / "statistics").iterdir())]:
            try:
                told = path.read_text()
            except OSError:
                told = ""  # What `cp` leaves of a file that cannot be read.
                unread.add((device.name, None, path.name))
            tree[f"node7/{path.as_posix().lstrip('/')}"] = told
            expected[device.name, None, path.name] = told.strip()
    found = values(load(tree), host="node7", kind="netdev")
    assert found.keys() == expected.keys()
    assert unread <= {key for key, value in found.items() if value is None}
    for key, told in expected.items():
        if key not in unread and key[2] != "speed":
            assert str(found[key]) == told


@needs_sysfs
@pytest.mark.parametrize(
    "command", ["grep . -r net/lo/", "tail -n +1 net/*/statistics/*", "grep . net/*/carrier net/lo/mtu"]
)
def test_real_grep_and_tail_of_the_tree(load, command):
    told = subprocess.run(
        ["/bin/sh", "-c", command], cwd="/sys/class", capture_output=True, text=True, errors="replace", check=False
    )
    found = values(load({"node7/sys.txt": told.stdout + told.stderr}))
    if "statistics" in command:
        assert {key[0] for key in found} == {device.name for device in NET.iterdir()}
        assert len(found) == sum(len(list((device / "statistics").iterdir())) for device in NET.iterdir())
    else:
        assert found["lo", None, "mtu"] == int((NET / "lo/mtu").read_text())
    if "carrier" in command:
        for device in NET.iterdir():
            try:
                expected = int((device / "carrier").read_text())
            except OSError:
                expected = None  # Switched off: the kernel refuses to tell, which is not 0.
            assert found[device.name, None, "carrier"] == expected


def test_real_proc_net(load):
    files = {name: pathlib.Path("/proc/net", name).read_text() for name in ("snmp", "netstat")}
    found = values(load({f"node7/proc/net/{name}": text for name, text in files.items()}), kind="tcp")
    names, told = (line.split() for line in files["snmp"].splitlines() if line.startswith("Tcp:"))
    assert len(names) > 10
    for name, value in zip(names[1:], told[1:], strict=True):
        assert found["", None, name] == int(value)
    names, told = (line.split() for line in files["netstat"].splitlines() if line.startswith("TcpExt:"))
    for name, value in zip(names[1:], told[1:], strict=True):
        assert found["", None, name] == int(value)


IB_TREE = {
    "state": "4: ACTIVE\n",
    "phys_state": "5: LinkUp\n",
    "rate": "400 Gb/sec (4X NDR)\n",
    "link_layer": "InfiniBand\n",
    "counters/link_downed": "1\n",
    "counters/port_xmit_data": "123456789012345\n",
    "hw_counters/local_ack_timeout_err": "7\n",
    "gids/0": "fe80:0000:0000:0000:e41d:2d03:007c:0001\n",
    "gids/1": "0000:0000:0000:0000:0000:0000:0000:0000\n",
    "gid_attrs/types/0": "IB/RoCE v1\n",
    "gid_attrs/types/1": "",
}


def test_a_copied_tree_of_infiniband_counters(load):
    root = "snap_20260102T030405Z/node7/sys/class/infiniband/mlx5_0/ports/1"
    files = {f"{root}/{name}": text for name, text in IB_TREE.items()}
    files["snap_20260102T030405Z/node7/sys/devices/pci0000:00/0000:3b:00.0/infiniband/mlx5_1/ports/1/state"] = (
        "1: DOWN\n"
    )
    part = load(files)
    assert set(part.counters["host"]) == {"node7"}
    assert set(part.counters["time_ns"]) == {at(2026, 1, 2, 3, 4, 5)}
    found = values(part, kind="ib")
    assert found["mlx5_0", 1, "link_downed"] == 1
    assert found["mlx5_0", 1, "port_xmit_data"] == 123456789012345  # Words of 4 bytes, as they are.
    assert found["mlx5_0", 1, "local_ack_timeout_err"] == 7
    assert found["mlx5_0", 1, "rate"] == "400 Gb/sec (4X NDR)"
    assert found["mlx5_0", 1, "state"] == "4: ACTIVE"
    assert found["mlx5_0", 1, "gid_attrs/types/0"] == "IB/RoCE v1"
    assert not any(key[2].endswith("/1") for key in found)  # Entries that are empty tell nothing.
    assert facts(part) == [("link_down", {"device": "mlx5_1", "port": 1, "state": "DOWN"})]
    assert part.notes == ()


IBSTAT = """CA 'mlx5_0'
    CA type: MT4129
    Number of ports: 1
    Firmware version: 28.39.1002
    Port 1:
        State: Active
        Physical state: LinkUp
        Rate: 400
        Base lid: 2
        Link layer: InfiniBand
CA 'mlx5_1'
    Port 1:
        State: Down
        Physical state: Polling
        Rate: 10
        Link layer: InfiniBand
"""
IBSTATUS = """Infiniband device 'mlx5_0' port 1 status:
    default gid:     fe80:0000:0000:0000:c470:bd03:00cf:4964
    base lid:     0x30
    state:         4: ACTIVE
    phys state:     5: LinkUp
    rate:         400 Gb/sec (4X NDR)
    link_layer:     InfiniBand

Infiniband device 'mlx5_1' port 1 status:
    state:         1: DOWN
    phys state:     3: Disabled
"""


@pytest.mark.parametrize("text", [IBSTAT, IBSTATUS])
def test_ibstat_and_ibstatus(load, text):
    part = load({"node7/ib.txt": text.replace("    ", "\t")})  # The tools indent with tabs.
    found = values(part, kind="ib")
    assert found["mlx5_0", 1, "phys_state"].endswith("LinkUp")
    assert found["mlx5_0", 1, "rate"].startswith("400 Gb/sec")
    assert found["mlx5_0", 1, "link_layer"] == "InfiniBand"
    ((kind, fields),) = facts(part)
    assert (kind, fields["device"], fields["port"], fields["state"].upper()) == ("link_down", "mlx5_1", 1, "DOWN")


PERFQUERY = """# Port counters: Lid 1 port 1 (CapMask: 0x1600)
PortSelect:......................1
CounterSelect:...................0x0000
SymbolErrorCounter:..............3
LinkDownedCounter:...............2
PortXmitData:....................16576648
PortXmitWait:....................441
QP1Dropped:......................0
"""


def test_perfquery_has_the_names_of_sysfs(load):
    found = values(load({"node7/perfquery_mlx5_0.txt": PERFQUERY}))
    assert found["mlx5_0", 1, "symbol_error"] == 3
    assert found["mlx5_0", 1, "link_downed"] == 2
    assert found["mlx5_0", 1, "port_xmit_data"] == 16576648
    assert found["mlx5_0", 1, "QP1Dropped"] == 0
    assert ("mlx5_0", 1, "PortSelect") not in found
    found = values(load({"node7/p.txt": "$ perfquery -C mlx5_3 1\n" + PERFQUERY}))
    assert found["mlx5_3", 1, "link_downed"] == 2


ETHTOOL = """NIC statistics:
     rx_packets: 6234918441
     tx_prio3_pause: 50847
     link_down_events_phy: {down}
     [0]: rx_ucast_packets: 4
"""


def test_ethtool_series_with_times_prompts_and_devices(load):
    text = (
        "Sun Nov 29 23:53:10 UTC 2026\nroot@node9:~# ethtool -S eth1\n" + ETHTOOL.format(down=0)
        + "2026-11-29T23:53:20.500+01:00\n$ ethtool -S eth2\n" + ETHTOOL.format(down=4)
    )  # fmt: skip
    part = load({"node7/all.txt": text})
    rows = part.counters.filter(pl.col("counter") == "link_down_events_phy").sort("device")
    assert rows["device"].to_list() == ["eth1", "eth2"]
    assert rows["value"].to_list() == [0, 4]
    assert rows["host"].to_list() == ["node9", "node9"]  # A prompt goes before the folder.
    assert rows["time_ns"].to_list() == [at(2026, 11, 29, 23, 53, 10), at(2026, 11, 29, 22, 53, 20) + 5 * 10**8]


def test_ethtool_with_the_device_in_the_file_name(load):
    files = {"node7_ethtool_ens1f0np0_20260102-030405.txt": ETHTOOL.format(down=1)}
    part = load(files)
    row = part.counters.filter(pl.col("counter") == "link_down_events_phy").row(0, named=True)
    assert (row["device"], row["host"], row["time_ns"]) == ("ens1f0np0", "node7", at(2026, 1, 2, 3, 4, 5))


LINK = """4: eth0: <NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 9000 qdisc mq state DOWN mode DEFAULT group default qlen 1000
    link/ether 02:fc:00:00:00:01 brd ff:ff:ff:ff:ff:ff
    RX: bytes  packets  errors  dropped overrun mcast
    4106590647 90574    0       1       2       3
    TX: bytes  packets  errors  dropped carrier collsns
    5234945    62931    0       0       5       0
7: veth12@if3: <NO-CARRIER,BROADCAST,UP> mtu 1500 qdisc noqueue state DOWN mode DEFAULT group default
"""


def test_ip_link_of_a_device_without_carrier(load):
    part = load({"node7/ip.txt": LINK})
    found = values(part)
    assert found["eth0", None, "rx_over_errors"] == 2
    assert found["eth0", None, "tx_carrier_errors"] == 5
    assert found["veth12", None, "mtu"] == 1500
    assert facts(part) == [("link_down", {"device": "eth0", "port": None, "state": "no carrier"})]


NVLINK = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-abcdefab-cdef-abdc-abcd-abababababab)
     Link 0: Replay Errors: 0
     Link 0: Recovery Errors: 2
     Link 17: CRC Errors: 1
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-00000000-cdef-abdc-abcd-abababababab)
     Link 0: 26.562 GB/s
     Link 1: <inactive>
     Link 2: Replay Errors: N/A
"""


def test_nvlink_counters_and_speeds(load):
    found = values(load({"node7/nvlink.txt": NVLINK}), kind="nvlink")
    assert found == {
        ("GPU 0", 0, "Replay Errors"): 0,
        ("GPU 0", 0, "Recovery Errors"): 2,
        ("GPU 0", 17, "CRC Errors"): 1,
        ("GPU 1", 0, "speed"): "26.562 GB/s",
        ("GPU 1", 1, "speed"): "<inactive>",
        ("GPU 1", 2, "Replay Errors"): None,
    }


NVIDIA_SMI = """
==============NVSMI LOG==============

Timestamp                                 : Fri Jan  2 03:04:05 2026
Driver Version                            : 550.54.15
CUDA Version                              : 12.4

Attached GPUs                             : 2
GPU 00000000:10:1C.0
    Product Name                          : NVIDIA A100-SXM4-80GB
    PCI
        Bus                               : 0x10
        GPU Link Info
            PCIe Generation
                Max                       : 4
                Current                   : 4
            Link Width
                Max                       : 16x
                Current                   : 8x
        Replays Since Reset               : 12
    Fan Speed                             : N/A
    Clocks Event Reasons
        HW Slowdown                       : Active
    ECC Errors
        Volatile
            SRAM Uncorrectable            : 0
            DRAM Uncorrectable            : 3
        Aggregate
            DRAM Uncorrectable            : N/A
    Remapped Rows
        Uncorrectable Error               : 1
        Pending                           : Yes
"""


def test_nvidia_smi_q(load):
    part = load({"node7/smi.txt": NVIDIA_SMI})
    gpu = "GPU 00000000:10:1C.0"
    assert values(part, kind="gpu") == {
        (gpu, None, "PCI/GPU Link Info/PCIe Generation/Max"): 4,
        (gpu, None, "PCI/GPU Link Info/PCIe Generation/Current"): 4,
        (gpu, None, "PCI/GPU Link Info/Link Width/Max"): "16x",
        (gpu, None, "PCI/GPU Link Info/Link Width/Current"): "8x",
        (gpu, None, "PCI/Replays Since Reset"): 12,
        (gpu, None, "Clocks Event Reasons/HW Slowdown"): "Active",
        (gpu, None, "ECC Errors/Volatile/SRAM Uncorrectable"): 0,
        (gpu, None, "ECC Errors/Volatile/DRAM Uncorrectable"): 3,
        (gpu, None, "ECC Errors/Aggregate/DRAM Uncorrectable"): None,
        (gpu, None, "Remapped Rows/Uncorrectable Error"): 1,
        (gpu, None, "Remapped Rows/Pending"): "Yes",
    }
    assert set(part.counters["time_ns"]) == {at(2026, 1, 2, 3, 4, 5)}
    assert any("UTC" in note for note in part.notes)


def test_ray_names_a_nodes_file_by_its_address(load):
    part = load({"hang_detector/nvidia_smi/node_10.0.0.7.log": NVIDIA_SMI})
    assert set(part.counters["host"]) == {"10.0.0.7"}


DCGM = """# HELP DCGM_FI_DEV_XID_ERRORS Value of the last XID error encountered.
# TYPE DCGM_FI_DEV_XID_ERRORS gauge
DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-a",device="nvidia0",Hostname="node-a",err_code="0"} 0
DCGM_FI_DEV_XID_ERRORS{gpu="1",UUID="GPU-b",device="nvidia1",Hostname="node-a",err_code="79"} 79
DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L3{gpu="1",UUID="GPU-b",Hostname="node-a"} 4
DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL{gpu="1",UUID="GPU-b",Hostname="node-a"} 9223372036854775794
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-b",Hostname="node-a"} 99
"""


def test_dcgm_exporter(load):
    part = load({"metrics.txt": DCGM})
    assert values(part, host="node-a") == {
        ("GPU 0", None, "DCGM_FI_DEV_XID_ERRORS"): 0,
        ("GPU 1", None, "DCGM_FI_DEV_XID_ERRORS"): 79,
        ("GPU 1", 3, "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L3"): 4,
        ("GPU 1", None, "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL"): None,  # DCGM's blank value.
    }
    assert facts(part) == [("xid", {"xid": 79, "device": "GPU 1"})]


def test_dcgmi_dmon(load):
    text = "#Entity   XIDER  NVLRE\nID\nGPU 0     0      N/A\nGPU 1     74     2\n"
    part = load({"node7/dmon.txt": text})
    assert values(part) == {
        ("GPU 0", None, "XIDER"): 0, ("GPU 0", None, "NVLRE"): None,
        ("GPU 1", None, "XIDER"): 74, ("GPU 1", None, "NVLRE"): 2,
    }  # fmt: skip
    assert facts(part) == [("xid", {"xid": 74, "device": "GPU 1"})]


def test_before_and_after_take_their_order_from_the_files_times(load, tmp_path):
    names = ["before/node7/sys/class/net/eth0/carrier_changes", "after/node7/sys/class/net/eth0/carrier_changes"]
    load(dict.fromkeys(names, "2\n"))
    for number, name in enumerate(names):
        (tmp_path / name).write_text(f"{2 + 2 * number}\n")
        os.utime(tmp_path / name, (1_000_000 + 60 * number, 1_000_000 + 60 * number))
    part = host.load([Input(name, tmp_path / name) for name in reversed(names)], Hints())
    assert part.counters.select("time_ns", "value").rows() == [(10**15, 2), (10**15 + 60 * 10**9, 4)]
    assert set(part.counters["host"]) == {"node7"}
    assert any("tell no time" in note for note in part.notes)
    # A copy that set both times the other way round: the order of the words stays, the times are dropped.
    for number, name in enumerate(names):
        os.utime(tmp_path / name, (1_000_000 - 60 * number, 1_000_000 - 60 * number))
    part = host.load([Input(name, tmp_path / name) for name in reversed(names)], Hints())
    assert part.counters.select("time_ns", "value").rows() == [(None, 2), (None, 4)]
    assert any("changed in the other order" in note for note in part.notes)


def test_a_jobs_log_that_prints_ibstat_is_none(load):
    load({"job.log": IBSTAT + "node7:1:2 [0] NCCL INFO Bootstrap\n", "x.txt": "nothing\n"}, is_known=False)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("node7/before/ip.txt", "node7"),
        ("evidence/gpu-12.cluster/20260102/ethtool_eth0.txt", "gpu-12.cluster"),
        ("node-a/ip.txt", "node-a"),
        ("ethtool-S_eth0_dgx03_before.txt", "dgx03"),
        ("ip_link.txt", None),
        ("10.0.0.7/ip.txt", "10.0.0.7"),
        ("worker3.tar.gz!before/ip.txt", "worker3"),
        ("before/ip.txt", None),
        ("nvlink_2026-01-02T03-04-05Z.txt", None),
    ],
)
def test_hosts_of_paths(name, expected):
    assert of_path(name)[0] == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ethtool_eth0.txt", "eth0"),
        ("ethtool-mlx5_1-node7.txt", "mlx5_1"),
        ("ethtool.txt", None),
        ("a/ens1f0np0.txt", "ens1f0np0"),
    ],
)
def test_devices_of_names(name, expected):
    assert device_of_name(name) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Fri Jan  2 03:04:05 UTC 2026", at(2026, 1, 2, 3, 4, 5)),
        ("Fri 02 Jan 2026 03:04:05 PM UTC", at(2026, 1, 2, 15, 4, 5)),
        ("Fri 02 Jan 2026 12:04:05 AM UTC", at(2026, 1, 2, 0, 4, 5)),
        ("2026-01-02 03:04:05", at(2026, 1, 2, 3, 4, 5)),
        ("=== 2026-01-02T03:04:05Z ===", at(2026, 1, 2, 3, 4, 5)),
        ("2026-01-02T03:04:05-0800", at(2026, 1, 2, 11, 4, 5)),
        ("1767323045", 1767323045 * 10**9),
        ("1767323045.25", 1767323045 * 10**9 + 25 * 10**7),
        ("     rx_packets: 1767323045", None),
        ("2026-13-45 03:04:05", None),
        ("Fri Foo  2 03:04:05 UTC 2026", None),
    ],
)
def test_header_lines_with_times(text, expected):
    headers = Headers()
    assert headers.take(text) == (expected is not None)
    assert headers.time_ns == expected


def test_the_output_of_date_here():
    headers = Headers()
    before = time.time()
    told = subprocess.run(
        ["date"], capture_output=True, text=True, check=True, env={**os.environ, "TZ": "UTC", "LC_ALL": "C"}
    )
    assert headers.take(told.stdout.strip())
    assert int(before) * 10**9 <= headers.time_ns <= time.time_ns()
    assert headers.is_zone_known


counter_names = st.text("abcdefghijklmnopqrstuvwxyz_0123456789", min_size=1, max_size=30)


@settings(max_examples=60, deadline=None)
@given(counters=st.dictionaries(counter_names, st.integers(0, 2**62), min_size=1, max_size=12))
def test_generated_counters_survive(counters, tmp_path_factory):
    folder = tmp_path_factory.mktemp("host")
    files = {
        "node7/ethtool_eth0.txt": "NIC statistics:\n" + "".join(f"     {name}: {n}\n" for name, n in counters.items()),
        "node8/sys.txt": "".join(f"/sys/class/net/eth0/statistics/{name}:{n}\n" for name, n in counters.items()),
    }
    items = []
    for name, text in files.items():
        path = folder / name.replace("/", "_")
        path.write_text(text)
        items.append(Input(name, path))
    part = host.load(items, Hints())
    for name in ("node7", "node8"):
        assert values(part, host=name) == {("eth0", None, counter): n for counter, n in counters.items()}


BASES = [IBSTAT, IBSTATUS, PERFQUERY, ETHTOOL, LINK, NVLINK, NVIDIA_SMI, DCGM, "Tcp: RtoAlgorithm A\nTcp: 1 2\n"]


@settings(max_examples=250, deadline=None)
@given(
    base=st.lists(st.sampled_from(BASES), min_size=1, max_size=3).map("".join),
    cut=st.integers(0, 3000),
    puts=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=8),
)
def test_damage_never_raises(base, cut, puts, tmp_path_factory):
    data = bytearray(base.encode()[:cut])
    for place, value in puts:
        if data:
            data[place % len(data)] = value
    path = tmp_path_factory.mktemp("host") / "x"
    path.write_bytes(data)
    item = Input("node7/x", path)
    host.recognises(item)
    part = host.load([item], Hints())
    assert part.read or part.ignored or part.unreadable


@pytest.mark.parametrize(
    "grown",
    [
        lambda n: "NIC statistics:\n" + " " * n,
        lambda n: "NIC statistics:\n" + "     " + "a" * n + ": 1\n",
        lambda n: '[{"ifname":' + "[" * n,
        lambda n: "/" * n + "/net/eth0/mtu:1\n",
        lambda n: "1: a: <" + "A," * n,
        lambda n: "==============NVSMI LOG==============\nGPU 00000000:10:1C.0\n" + "     " * n + "a\n" * 100,
        lambda n: "#" * n + "\n" + "Tcp: " + "a " * n + "\nTcp: " + "1 " * n + "\n",
        lambda n: "a@" * n + "\n" + "[" * n,
    ],
)
def test_hostile_text_costs_no_more_than_its_length(tmp_path, grown):
    def cost(number):
        path = tmp_path / "x"
        path.write_text(grown(number))
        return cheapest(lambda: host.load([Input("node7/x", path)], Hints()))

    small = cost(20_000)
    assert cost(160_000) < 24 * max(small, 0.02)  # 8 times the text; a quadratic reader would take 64 times as long.
