"""NCCL's warnings, and what its INFO lines say of the network, NCCL 2.8 to 2.30.

Completion errors (transport/net_ib.cc), all of which end in what the NIC said:
- 2.8 `NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129`
- 2.10 to 2.19 `... from peer 192.0.2.1<4791> with error 12, opcode ..`, from 2.18 with ` (Send) localGid .. remoteGid
  ..`
- 2.20 to 2.28 `with status=12 opcode=1 len=0 vendor err 129 (Recv) localGid .. remoteGids..` (no space), 2.22 on `
  hca mlx5_3`
- 2.28.7 on `status=IBV_WC_RETRY_EXC_ERR(12) opcode=..(1) [reqSize=..] vendor_err=129 [req_type=Send ]localGid ..` The
  peer is named by the address of its bootstrap socket. Opcode and length mean nothing where the status is not 0.
  Status 12: no answer from the peer (cable, NIC, switch, host down, wrong GID); 13: receiver not ready; 10, 11:
  refused by the peer; 5: flushed, the consequence of an earlier error and never a root. Vendor error 129: transport
  retries used up.

Asynchronous events: `Got async event : port error` (to 2.19, without a device), `mlx5_0:1 Got async event : ..`, `Got
async error event: ..` (2.23), `Got non-fatal async event: port error(10)` (2.28.7), `async fatal event ..`.
`Connection closed by remote peer`, `socketProgress..` and `-> 6` are echoes of a peer that ended first.

What NCCL finds wrong when it initialises (init.cc, bootstrap.cc, misc/socket.cc): `Duplicate GPU detected : rank 1 and
rank 0 both on CUDA device 1b000`, `Mismatched NCCL version detected : rank 1 version 22705 rank 0 version 22703`,
`Bootstrap : no socket interface found`, `NET/IB : No IP interface found.`, `socketStartConnect: Connect to
192.0.2.1<5000> failed : ..`; torch repeats them behind `Last error:`. INFO: `NCCL_IB_TIMEOUT set by environment to 22.`
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from roundk.analyze.sources.joblog.events import Event, number, present, short

LITERALS: Final = (
    "NCCL WARN",
    "Using network ",
    "Bootstrap",
    "NCCL INFO NET/",
    ".cc:",
    "NCCL version ",
    "set by environment to ",
    "Duplicate GPU detected",
    "socketStartConnect: ",
    "Connection closed by ",
)

_COMPLETION: Final = re.compile(
    r"(?P<plugin>NET/\w+(?:/\w+)?) ?: ?Got completion(?: from peer (?P<peer>[^\s<]{1,100})<(?P<port>\d{1,5})>)? with "
    r"(?:error |status=)(?:(?P<name>[A-Z_]+)\()?(?P<status>\d{1,5})\)?,? ?opcode[= ](?:"
    r"(?P<opname>[A-Z_]+)\()?(?P<opcode>\d{1,10})\)?"
    r",? ?(?:(?:len|reqSize)[= ](?P<length>-?\d{1,20}),? ?)?vendor[_ ]err[= ](?P<vendor>\d{1,10})(?P<rest>.*)"
)
_TYPE: Final = re.compile(
    r"(?:req_type=|\()(?P<type>Send|Recv|Flush|IPut|GinIput|Unused|[A-Z]\w{1,20})(?:\)|\s|(?=localGid)|$)"
)
_GIDS: Final = re.compile(r"localGid (?P<local>[\da-fA-F:.]{2,60}) ?remoteGids? ?(?P<remote>[\da-fA-F:.]{2,60})")
_HCA: Final = re.compile(r"hca (?P<hca>[\w.-]{1,60})")
_EVENT: Final = re.compile(
    r"(?P<plugin>NET/\w+(?:/\w+)?) ?: ?(?:(?P<device>[\w.-]+?)(?::(?P<port>\d{1,3}))? )?Got "
    r"(?P<kind>async event|async error event|non-fatal async event) ?: "
    r"(?P<event>[^\n(]{1,100})(?:\((?P<code>\d{1,4})\))?"
)
_FATAL: Final = re.compile(
    r"(?P<plugin>NET/\w+(?:/\w+)?) ?: ?(?:(?P<device>[\w.-]+?)(?::(?P<port>\d{1,3}))? )?(?:Got )?async"
    r" fatal event(?P<on> on (?:QP|CQ|SRQ)[^:]{0,100})?: "
    r"(?P<event>[^\n(]{1,100})(?:\((?P<code>\d{1,4})\))?"
)
_FAILED: Final = re.compile(
    r"NET/IB ?: ?Device (?P<device>\d{1,4}) marked as failed\. Initiating recovery\? (?P<recovers>\w+)"
)
_ALL_FAILED: Final = re.compile(r"Fatal error\. Detected (?P<count>\d{1,4}) failed devices")
_GID: Final = re.compile(r"(?:(?P<device>[A-Za-z][\w.-]{0,40}):(?P<port>\d{1,3}) .{0,20}?)?GID table changed")
_SPEED: Final = re.compile(
    r"(?:(?P<device>[A-Za-z][\w.-]{0,40}):(?P<port>\d{1,3}) .{0,20}?)?speed change detected: "
    r"(?P<before>\d{1,9}) -> (?P<after>\d{1,9}) Mbps"
)
_CALL: Final = re.compile(
    r"Call to (?P<call>\w+)(?: (?:from|to) (?P<peer>[^\s<]{1,100})<(?P<port>\d{1,5})>)? ?failed(?:"
    r" with)? ?:?(?: error)? ?(?:(?P<errno>\d{1,4})\b ?)?(?P<error>[^\n,(]{0,120})(?P<rest>[^\n]{0,400})"
)
_ON: Final = re.compile(r"on dev (?P<device>[\w.-]+?)(?::(?P<port>\d{1,3}))?[,\s]")
_STATES: Final = re.compile(r"curr state (?P<current>\w+), next state (?P<next>\w+)")
_CALL_GIDS: Final = re.compile(
    r"(?:local GID index (?P<index>-?\d{1,6}), )?local GID (?P<local>[\da-fA-F:.]{2,60})"
    r"(?:, remote GIDs? (?P<remote>[\da-fA-F:.]{2,60}))?"
)
_CLOSED: Final = re.compile(r"Connection closed by remote peer(?: (?P<peer>[^\s<]{1,100})<(?P<port>\d{1,5})>)?")
_SIZES: Final = re.compile(
    r"(?P<what>collective mismatch error|posted incorrect receive info|Message truncated|message truncated)"
    r"(?:[,:]? .{0,40}?(?:local size|size) (?P<local>-?\d{1,19}))?(?:.{0,40}?remote size (?P<remote>-?\d{1,19}))?"
)
_MISMATCH: Final = re.compile(
    r"Mismatched collective detected, please check your collective calls at and around rank (?P<rank>\d{1,8})"
)
_DUPLICATE: Final = re.compile(
    r"Duplicate GPU detected : rank (?P<rank>\d{1,8}) and rank (?P<other>\d{1,8}) both on CUDA device"
    r" (?P<bus>[\da-fA-F]{1,16})"
)
_VERSIONS: Final = re.compile(
    r"Mismatched NCCL version detected : rank (?P<rank>\d{1,8}) version (?P<version>\d{1,8})"
    r" rank (?P<other>\d{1,8}) version (?P<other_version>\d{1,8})"
)
_INTERFACE: Final = re.compile(r"(?P<by>Bootstrap|NET/\w+) ?: ?[Nn]o (?:socket|IP) interface found")
_CONNECT: Final = re.compile(
    r"socket\w*Connect: [Cc]onnect to (?P<peer>[^\s<]{1,100})<(?P<port>\d{1,5})> (?:failed ?:|returned|timed out)"
    r" ?(?P<error>[^\n,]{0,120})"
)
_SETTING: Final = re.compile(r"(?P<name>NCCL_\w{2,60}) set (?:by environment )?to (?P<value>[^\n]{1,200}?)\.?\s*$")
_CUDA: Final = re.compile(r"Cuda failure (?:(?P<code>\d{1,4}) )?'(?P<error>[^']{1,200})'")
_PROXY: Final = re.compile(
    r"(?:\[(?:Service thread|Proxy Service \d{1,8})\]|Failed to execute operation \w+ from rank|Could not"
    r" receive type from localRank)"
)
_RETURN: Final = re.compile(r"(?P<at>[\w/]{1,80}\.cc:\d{1,6}) -> (?P<code>\d{1,2})\b")
_WARN: Final = re.compile(r"NCCL WARN (?P<message>.*)")
_RESULTS: Final = {
    1: "CUDA error",
    2: "system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    6: "remote error",
}

_NETWORK: Final = re.compile(r"Using network (?P<network>[\w./-]+(?: [A-Z][\w.-]*)?)")
_NONE: Final = re.compile(r"NET/(?P<plugin>\w+) ?: ?No (?:device found|IB devices found)")
_DEVICES: Final = re.compile(r"NET/(?P<plugin>\w+) ?: ?Using (?P<list>\[\d.*)")
_IB: Final = re.compile(
    r"\[(?P<index>\d{1,4})\](?P<device>[\w.+-]+):(?P<port>\d{1,3})(?::[\w-]+){0,2}/(?P<link>IB|RoCE|[A-Z]\w{1,10})"
)
_SOCKETS: Final = re.compile(r"\[(?P<index>\d{1,4})\](?P<device>[\w.@-]+):(?P<address>[^\s<]{2,60})<\d{1,5}>")
_ADDRESS: Final = re.compile(r"(?:Bootstrap ?: ?Using |OOB )(?P<interface>[\w.@-]+):(?P<address>[^\s<]{2,60})<\d{1,5}>")
_GDR: Final = re.compile(r"GPU Direct RDMA (?P<state>Enabled|Disabled)(?P<rest>[^\n]{0,200})")
_VERSION: Final = re.compile(r"NCCL version (?P<version>\d{1,2}\.[\d.]{1,10}\d(?:\+cuda[\d.]+)?)")
_LISTED: Final = 128
"""Devices kept of one line; no host has more."""


def parse(text: str) -> Iterator[Event]:
    """What a warning, or an INFO line about the network, says."""
    is_warning = "NCCL WARN" in text
    if (setup := _setup(text)) is not None:
        yield setup
        return
    if not is_warning and (connect := _CONNECT.search(text)) is not None:  # torch repeats it without NCCL's prefix
        yield _connect(connect)
    elif not is_warning and (closed := _CLOSED.search(text)) is not None:
        yield _closed(closed)
    found = False
    for event in _network_errors(text) if is_warning or "NET/" in text else ():
        found = True
        yield event
    if is_warning and not found:
        found = True
        yield _warning(text)
    if not is_warning and "NCCL INFO" in text:
        yield from _info(text)
    if (version := _VERSION.search(text)) is not None and not is_warning:
        yield Event("nccl_version", f"NCCL {version['version']}", {"version": version["version"]})


def _network_errors(text: str) -> Iterator[Event]:
    if (completion := _COMPLETION.search(text)) is not None:
        yield _completion(completion)
    elif (event := _EVENT.search(text) or _FATAL.search(text)) is not None:
        yield _async_event(event)
    elif (failed := _FAILED.search(text)) is not None:
        fields = present(device_index=number(failed["device"]), recovers=failed["recovers"] == "Yes")
        yield Event("net_device_failed", f"NCCL gave up network device {failed['device']}", fields)
    elif (all_failed := _ALL_FAILED.search(text)) is not None:
        count = number(all_failed["count"])
        yield Event("net_device_failed", f"NCCL gave up all of {count} devices", present(failed=count, recovers=False))
    elif (gid := _GID.search(text)) is not None:
        yield Event("net_gid_changed", "the GID table changed", present(device=gid["device"], port=number(gid["port"])))


def _completion(line: re.Match[str]) -> Event:
    rest = line["rest"]
    kind, gids, hca = _TYPE.search(rest), _GIDS.search(rest), _HCA.search(rest)
    status = number(line["status"])
    fields = present(
        plugin=line["plugin"],
        status=status,
        status_name=line["name"],
        opcode=number(line["opcode"]),
        opcode_name=line["opname"],
        length=number(line["length"]),
        vendor_err=number(line["vendor"]),
        peer=line["peer"],
        peer_port=number(line["port"]),
        direction=kind["type"].lower() if kind else None,
        local_gid=gids["local"] if gids else None,
        remote_gid=gids["remote"] if gids else None,
        hca=hca["hca"] if hca else None,
    )
    shown = f"{line['name']}({status})" if line["name"] else str(status)
    peer = f", peer {line['peer']}" if line["peer"] else ""
    return Event("net_completion_error", f"completion with status {shown}, vendor error {line['vendor']}{peer}", fields)


def _async_event(line: re.Match[str]) -> Event:
    event = line["event"].strip()
    is_fatal = "kind" not in line.re.groupindex
    fields = present(
        plugin=line["plugin"],
        event=event,
        code=number(line["code"]),
        device=line["device"],
        port=number(line["port"]),
        is_fatal=is_fatal or None,
    )
    where = f"{line['device']}: " if line["device"] else ""
    return Event("net_async_event", f"{where}{event}", fields)


def _warning(text: str) -> Event:
    for pattern, told in _WARNINGS:
        if (match := pattern.search(text)) is not None:
            return told(match)
    message = _WARN.search(text)
    said = short(message["message"]) if message else short(text)
    return Event("nccl_proxy_error" if _PROXY.search(text) else "nccl_warning", said, {"message": said})


def _closed(line: re.Match[str]) -> Event:
    fields = present(peer=line["peer"], port=number(line["port"]))
    return Event("net_closed", f"connection closed by peer {line['peer'] or ''}".strip(), fields)


def _sizes(line: re.Match[str]) -> Event:
    fields = present(what=line["what"].lower(), local_size=number(line["local"]), remote_size=number(line["remote"]))
    return Event("nccl_size_mismatch", f"two ranks' sizes differ: {short(line.string[line.start() :])}", fields)


def _mismatch(line: re.Match[str]) -> Event:
    fields = present(of_comm_rank=number(line["rank"]))
    return Event("nccl_mismatch", f"different calls at and around communicator rank {line['rank']}", fields)


def _cuda(line: re.Match[str]) -> Event:
    fields = present(error=line["error"], code=number(line["code"]))
    return Event("nccl_cuda_failure", f"NCCL: CUDA failure: {line['error']}", fields)


def _socket(line: re.Match[str]) -> Event:
    return Event("net_socket_error", short(line.string[line.start() :]))


def _call(line: re.Match[str]) -> Event:
    on, states, gids = (pattern.search(line["rest"]) for pattern in (_ON, _STATES, _CALL_GIDS))
    error = line["error"].strip(" :")
    fields = present(
        call=line["call"],
        peer=line["peer"],
        peer_port=number(line["port"]),
        errno=number(line["errno"]),
        error=short(error) or None,
        device=on["device"] if on else None,
        port=number(on["port"]) if on else None,
        current_state=states["current"] if states else None,
        next_state=states["next"] if states else None,
        gid_index=number(gids["index"]) if gids else None,
        local_gid=gids["local"] if gids else None,
        remote_gid=gids["remote"] if gids else None,
    )
    return Event("net_call_failed", f"{line['call']} failed: {error or line['errno'] or '?'}", fields)


def _connect(line: re.Match[str]) -> Event:
    error = line["error"].strip(" :.") or ("timed out" if "timed out" in line[0] else "")
    fields = present(call="connect", peer=line["peer"], peer_port=number(line["port"]), error=error or None)
    return Event("net_call_failed", f"connect to {line['peer']} failed: {error or '?'}", fields)


def _setup(text: str) -> Event | None:
    """What NCCL finds wrong with a job when it initialises, be it NCCL or torch that prints it."""
    if (twice := _DUPLICATE.search(text)) is not None:
        ranks = [int(twice["rank"]), int(twice["other"])]
        said = f"communicator ranks {ranks[0]} and {ranks[1]} are both on the GPU at {twice['bus']}"
        return Event("nccl_duplicate_gpu", said, {"comm_ranks": ranks, "bus_id": twice["bus"]})
    if (versions := _VERSIONS.search(text)) is not None:
        sides = [[number(versions["rank"]), _release(versions["version"])]]
        sides.append([number(versions["other"]), _release(versions["other_version"])])
        said = " and ".join(f"NCCL {version} on communicator rank {rank}" for rank, version in sides)
        return Event("nccl_version_mismatch", said, {"sides": sides})
    return None


def _release(code: str) -> str:
    """`22703` as `2.27.3`. Source: NCCL_VERSION_CODE of nccl.h, 2.9 on."""
    number_of = int(code)
    return f"{number_of // 10_000}.{number_of // 100 % 100}.{number_of % 100}" if number_of >= 10_000 else code


def _interface(line: re.Match[str]) -> Event:
    return Event("nccl_no_interface", f"{line['by']}: no network interface found", {"by": line["by"]})


_WARNINGS: Final[tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Event]], ...]] = (
    (_INTERFACE, _interface),
    (_CONNECT, _connect),
    (_CALL, _call),
    (_CLOSED, _closed),
    (_SIZES, _sizes),
    (_MISMATCH, _mismatch),
    (_CUDA, _cuda),
    (re.compile(r"socketProgress|socket progress error"), _socket),
)


def _info(text: str) -> Iterator[Event]:
    if (setting := _SETTING.search(text)) is not None:
        fields = {"name": setting["name"], "value": setting["value"]}
        yield Event("nccl_setting", f"{setting['name']} is set to {setting['value']}", fields)
    if (network := _NETWORK.search(text)) is not None:
        yield Event("nccl_network", f"NCCL uses network {network['network']}", {"network": network["network"]})
    if (none := _NONE.search(text)) is not None:
        yield Event("nccl_no_device", f"NET/{none['plugin']}: no device found", {"plugin": f"NET/{none['plugin']}"})
    if (devices := _DEVICES.search(text)) is not None:
        yield _devices(devices)
    if (address := _ADDRESS.search(text)) is not None:
        fields = {"interface": address["interface"], "address": address["address"]}
        yield Event("nccl_address", f"{address['interface']} is {address['address']}", fields)
    if (gdr := _GDR.search(text)) is not None:
        is_on = gdr["state"] == "Enabled"
        yield Event(
            "nccl_gdr",
            f"GPUDirect RDMA {gdr['state'].lower()}{short(gdr['rest'])}",
            {"is_enabled": is_on, "detail": short(gdr["rest"])},
        )
    if (speed := _SPEED.search(text)) is not None:
        fields = present(
            device=speed["device"],
            port=number(speed["port"]),
            before_mbit_per_s=number(speed["before"]),
            after_mbit_per_s=number(speed["after"]),
        )
        yield Event("net_speed_changed", f"speed went from {speed['before']} to {speed['after']} Mbit/s", fields)
    if (returned := _RETURN.search(text)) is not None and (code := int(returned["code"])) in _RESULTS:
        fields = {"code": code, "error": _RESULTS[code]}
        yield Event("nccl_returned", f"NCCL gave up with {code} ({_RESULTS[code]})", fields)


def _devices(line: re.Match[str]) -> Event:
    listed: list[dict[str, object]]
    if line["plugin"] == "Socket":
        listed = [
            {"index": int(one["index"]), "device": one["device"], "address": one["address"]}
            for one in _SOCKETS.finditer(line["list"])
        ]
    else:
        listed = [
            {"index": int(one["index"]), "device": one["device"], "port": int(one["port"]), "link": one["link"]}
            for one in _IB.finditer(line["list"])
        ]
    shown = ", ".join(str(one["device"]) for one in listed[:8]) + (", ..." if len(listed) > 8 else "")
    return Event(
        "nccl_devices",
        f"NET/{line['plugin']} uses {shown}",
        {"plugin": f"NET/{line['plugin']}", "devices": listed[:_LISTED]},
    )
