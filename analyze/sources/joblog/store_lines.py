"""Lines of torch's store (TCPStore) and of the barrier on it: who came to meet the others when the job started.

- `Timed out after 601 seconds waiting for clients. 31/32 clients joined.`: of the process that hosts the store, rank 0
  unless told otherwise (TCPStore.cpp, torch 1.9 to 2.14).
- `Timed out initializing process group in store based barrier on rank: 0, for key: store_based_barrier_key:1
  (world_size=32, worker_count=31, timeout=0:30:00)`; `num_workers_joined` from 2.1 (distributed_c10d.py).
- `The client socket has failed to connect to [node-0]:29500 (errno: 111 - Connection refused).`, `... to any network
  address of (node-0, 29500).`, `The client socket has timed out after 600000ms while trying to connect to (node-0,
  29500).` (socket.cpp, 1.11 on); `TCP client failed to connect/validate to host node-0:29500 - retrying (..)` (2.6 on).

Who prints one of these waited, or could not get through: the line says nothing against it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from roundk.analyze.sources.joblog.events import Event, number, present, rank_number, short

MS_PER_S: Final = 1000

LITERALS: Final = ("waiting for clients", "store based barrier on rank", "to connect")

_CLIENTS: Final = re.compile(
    r"Timed out after (?P<waited>\d{1,9}) seconds waiting for clients\. (?P<joined>\d{1,8})/(?P<expected>\d{1,8}) "
    r"clients joined"
)
_BARRIER: Final = re.compile(
    r"Timed out initializing process group in store based barrier on rank:? (?P<rank>\d{1,8}), for key: "
    r"(?P<key>\S{1,200}) \(world_size=(?P<expected>\d{1,8}), (?:worker_count|num_workers_joined)=(?P<joined>\d{1,8})"
)
_TIMEOUT: Final = re.compile(
    r"The client socket has timed out after (?P<after>\d{1,12}) ?(?P<unit>ms|s) while trying to connect to "
    r"\((?P<peer>[^,()\s]{1,200}), (?P<port>\d{1,5})\)"
)
_FAILED: Final = re.compile(
    r"The client socket has failed to connect to (?:any network address of )?[\[(](?P<peer>[^\],()\s]{1,200})(?:\]:|, )"
    r"(?P<port>\d{1,5})\)?(?: \(errno: (?P<errno>\d{1,4}) - (?P<error>[^)\n]{1,100})\))?"
)
_CLIENT: Final = re.compile(
    r"TCP client failed to connect(?:/validate)? to host (?P<peer>[^\s:]{1,200}):(?P<port>\d{1,5})"
)


def parse(text: str) -> Iterator[Event]:
    """What a line about the store says."""
    if (clients := _CLIENTS.search(text)) is not None:
        fields = {**_count(clients), "waited_s": number(clients["waited"])}
        yield Event("store_clients", f"{_came(clients)} to the store within {clients['waited']} s", fields)
    elif (barrier := _BARRIER.search(text)) is not None:
        fields = {**_count(barrier), "key": short(barrier["key"])}
        said = f"{_came(barrier)} to the barrier of init_process_group"
        yield Event("store_barrier", said, fields, rank=rank_number(barrier["rank"]))
    elif (timeout := _TIMEOUT.search(text)) is not None:
        after = number(timeout["after"]) or 0
        fields = {**_peer(timeout), "timeout_ms": after if timeout["unit"] == "ms" else after * MS_PER_S}
        said = f"could not connect to {timeout['peer']}:{timeout['port']} within {timeout['after']} {timeout['unit']}"
        yield Event("store_connect_timeout", said, fields)
    elif (failed := _FAILED.search(text) or _CLIENT.search(text)) is not None:
        told = failed.groupdict()
        error = told.get("error")
        fields = {**_peer(failed), **present(errno=number(told.get("errno")), error=error)}
        why = f": {error}" if error else ""
        yield Event("store_connect_failed", f"could not connect to {failed['peer']}:{failed['port']}{why}", fields)


def _peer(line: re.Match[str]) -> dict[str, object]:
    return present(peer=line["peer"], port=number(line["port"]))


def _count(line: re.Match[str]) -> dict[str, object]:
    return present(joined=number(line["joined"]), expected=number(line["expected"]))


def _came(line: re.Match[str]) -> str:
    return f"{line['joined']} of {line['expected']} came"
