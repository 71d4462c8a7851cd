"""Which network devices and InfiniBand ports a job's groups use, by its settings.

Source: torch `ProcessGroupGloo.cpp`, `createDefaultDevice` and `GLOO_SOCKET_IFNAME` (names, separated by commas); NCCL
`src/misc/socket.cc` and `src/transport/net_ib`, `parseStringList` and `matchIfList`: `NCCL_SOCKET_IFNAME` and
`NCCL_IB_HCA` are lists of beginnings of names, of whole names behind a `=`, and of what is left out behind a `^`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

GLOO, NCCL, NCCL_IB = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA"
MASTER = "MASTER_ADDR"
VARIABLES = (GLOO, NCCL, NCCL_IB, MASTER)
"""What a rank tells of its environment."""
BY_ROUTE = "route to the master"


class Used(NamedTuple):
    """A network device or port that the job's groups use, and what says so."""

    kind: str
    device: str
    port: int | None
    by: str


def by_settings(told: Mapping[str, str], devices: Iterable[str], hcas: Iterable[tuple[str, int]]) -> list[Used]:
    """The ports that a rank's variables choose among those there are."""
    devices = list(devices)
    gloo = {name.strip() for name in told.get(GLOO, "").split(",")}
    found = [Used("netdev", device, None, GLOO) for device in devices if device in gloo]
    if told.get(NCCL):
        found += [Used("netdev", device, None, NCCL) for device in devices if _is_chosen(told[NCCL], device, None)]
    if told.get(NCCL_IB):
        found += [Used("ib", device, port, NCCL_IB) for device, port in hcas if _is_chosen(told[NCCL_IB], device, port)]
    return found


def _is_chosen(setting: str, device: str, port: int | None) -> bool:
    is_left_out = setting.startswith("^")
    setting = setting.removeprefix("^")
    is_whole = setting.startswith("=")
    entries = [entry.partition(":") for entry in setting.removeprefix("=").split(",") if entry]
    matches = any(
        (device == name if is_whole else device.startswith(name)) and number in ("", str(port))
        for name, _, number in entries
    )
    return matches != is_left_out
