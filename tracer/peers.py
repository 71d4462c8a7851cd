"""What the sampler of a host's links stores of its TCP connections: by the peer's address, what `sockdiag` tells.

Counters of `kind` peer, `device` the address. `flows` is the number of connections, 0 once there are none.
`bytes_acked`, `retrans_total` and `reord_seen` are sums over those there are, and fall when one ends.

Figures that are never the same twice are stored when they have changed by more than `_SLACK`, so that connections do
not push out what is kept of the ports.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from time import time_ns
from typing import TYPE_CHECKING

from roundk.tracer import sockdiag, words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from roundk.tracer.linkstore import Store
    from roundk.tracer.sockdiag import Flow, Peer

PEER = "peer"
MOST_PEERS = 64
"""At one time; of more, those with most bytes. A ring or a tree has a handful, an all-to-all one per host."""
_MOST_EVER = 1_024
"""Peers to tell of at all: a server in the host's network must not use up the ids of counters."""
_SLACK = {
    "bytes_acked": 1.0,  # which peers the job's data go to, not how fast
    "rtt_us": 0.1,
    "min_rtt_us": 0.1,
    "send_queue": 0.5,
    "notsent_bytes": 0.5,
    "recv_queue": 0.5,
}
"""Share of the stored value that a new one may differ by without being stored. A beginning or an end always is."""
_SUMS = (
    "bytes_acked",
    "retrans_total",
    "reord_seen",
    "lost",
    "backoff",
    "probe_backoff",
    "send_queue",
    "notsent_bytes",
    "recv_queue",
)
"""0 where there is no connection. Of round-trip times there is then none."""
NAMES = ("flows", *_SUMS, "rtt_us", "min_rtt_us")
_LIMITS = tuple(_SLACK.get(name, 0.0) for name in NAMES)
_NO_FLOWS = (0,) * (1 + len(_SUMS)) + (None,) * (len(NAMES) - 1 - len(_SUMS))
_UNTOLD = (None,) * len(NAMES)


@dataclass(slots=True)
class _Stored:
    """A peer's counters by their ids, and what was stored of them last."""

    ids: list[int]
    values: Sequence[int | None] = _UNTOLD
    """None: never, or that it cannot be read."""


class Peers:
    """The connections of this host, read like a file again and again.

    Attributes:
        ids: Of all counters so far.
        is_new: There are ids that no look covers yet.
        is_gone: Never: there is always a kernel to ask.
    """

    def __init__(self, store: Store) -> None:
        """See whether the kernel tells of them.

        Raises:
            OSError: it does not.
        """
        self.ids: list[int] = []
        self.is_new = self.is_gone = False
        self._diag = sockdiag.SockDiag()
        self._known: dict[str, list[int]] = {}
        self._stored: dict[str, _Stored] = {}
        self._addresses: set[tuple[str, bool]] = set()
        self._troubles: set[str] = set()
        self._generation = store.generation

    def read(self, store: Store) -> None:
        """Ask the kernel, and store what has changed."""
        begin_ns = time_ns()
        flows: list[Flow] = []
        error_number = 0
        try:
            flows = self._diag.flows()
        except OSError as error:
            error_number = error.errno or errno.EIO
            self._tell(store, str(error))
        when = begin_ns, time_ns()
        if self._diag.is_cut:
            self._tell(store, f"there are more than {sockdiag.MOST_SOCKETS:,}, of which the rest is left out")
        is_anew, self._generation = self._generation != store.generation, store.generation
        self.tell_addresses(store, {flow.local_address for flow in flows})
        found = sockdiag.by_peer(flows)
        chosen = _chosen(found)
        for address in chosen:
            if address not in self._stored and (ids := self._ids_of(store, address)):
                self._stored[address] = _Stored(ids)
        for address, stored in list(self._stored.items()):
            if address in chosen:
                _store(store, when, stored, _values(found[address]), is_anew=is_anew)
                continue
            if error_number or self._diag.is_cut or address in found:
                _store(store, when, stored, _UNTOLD, is_anew=is_anew, error_number=error_number or errno.E2BIG)
            else:
                _store(store, when, stored, _NO_FLOWS, is_anew=is_anew)
            if not error_number:
                del self._stored[address]

    def tell_addresses(self, store: Store, addresses: Iterable[str], *, is_used: bool = False) -> None:
        """Tell addresses of this host, each once, and once more as one of a port that the job uses."""
        for told in sorted({(address, is_used) for address in addresses} - self._addresses):
            address, _ = told
            self._addresses |= {told, (address, False)}
            store.event("address", address=address, is_used=is_used)

    def close(self) -> None:
        """Ask no more."""
        self._diag.close()

    def _tell(self, store: Store, why: str) -> None:
        """Say once that something cannot be read."""
        if why not in self._troubles:
            self._troubles.add(why)
            store.event("unreadable", what="TCP connections", why=why)

    def _ids_of(self, store: Store, address: str) -> list[int]:
        """Of a peer's counters; none where it is one too many."""
        if address not in self._known:
            if len(self._known) >= _MOST_EVER:
                self._tell(store, f"there were more than {_MOST_EVER:,} peers, of which the later are left out")
                return []
            ids = store.counters(PEER, address, None, list(NAMES))
            self._known[address] = ids if all(ids) else []
            self.ids += self._known[address]
            self.is_new = True
        return self._known[address]


def _chosen(found: dict[str, Peer]) -> set[str]:
    """The peers to store."""
    if len(found) <= MOST_PEERS:
        return set(found)
    return set(sorted(found, key=lambda address: -_bytes(found[address]))[:MOST_PEERS])


def _bytes(peer: Peer) -> int:
    return peer.counters.get("bytes_acked", 0) + peer.counters.get("bytes_received", 0)


def _values(peer: Peer) -> list[int | None]:
    told = peer.counters.get
    return [peer.flows, *(told(name) for name in NAMES[1:])]


def _store(
    store: Store,
    when: tuple[int, int],
    stored: _Stored,
    values: Sequence[int | None],
    *,
    is_anew: bool,
    error_number: int = errno.ENODATA,
) -> None:
    """Store the values that have changed; those that were there and are not any more as not to be read."""
    kept = list(stored.values)
    for place, (value, before, limit) in enumerate(zip(values, stored.values, _LIMITS, strict=True)):
        if value is None:
            if before is not None:
                store.sample(stored.ids[place], *when, words.UNREADABLE, error_number)
        elif is_anew or before is None or abs(value - before) > limit * before:
            store.sample(stored.ids[place], *when, words.VALUE, value)
        else:
            continue
        kept[place] = value
    stored.values = kept
