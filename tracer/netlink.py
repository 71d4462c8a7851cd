"""The kernel's own word on network devices: up and down as it happens, and which device leads to an address.

A netlink socket is of the network namespace that it was opened in, whatever is mounted on /sys.

Source: rtnetlink(7); Linux `include/uapi/linux/{netlink,rtnetlink,if_link,if_addr}.h`.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

_RTMGRP_LINK = 1
_NEWLINK, _DELLINK, _GETLINK = 16, 17, 18
_NEWADDR, _GETADDR = 20, 22
_NEWROUTE, _GETROUTE = 24, 26
_ERROR, _DONE = 2, 3
_REQUEST, _DUMP = 0x1, 0x300
_BRIDGE = 7
"""AF_BRIDGE: a port's place in a bridge, not the device."""
_IFF_UP, _IFF_LOWER_UP = 0x1, 0x10000
_TYPE_MASK = 0x3FFF
"""Two high bits of an attribute's type are flags."""
_HEADER = struct.Struct("=IHHII")
_LINK = struct.Struct("=BxHiII")
_ROUTE = struct.Struct("=BBBBBBBBI")
_ADDRESS = struct.Struct("=BBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_U32 = struct.Struct("=I")
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_CARRIER_CHANGES, _IFLA_CARRIER_DOWN = 1, 3, 35, 48
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_DST, _RTA_OIF = 1, 4
_RTN_LOCAL = 2
_RECEIVE_BYTES = 65_536
"""One datagram of a dump is 32 KiB at most."""
_QUEUE_BYTES = 4_194_304
"""Some 2,000 events while we are not at it: a host that starts and ends many containers at once."""
_ANSWER_S = 1.0
"""A request is answered by the kernel at once, except while a driver holds its lock."""


class Link(NamedTuple):
    """A network device at one moment; `is_up`: switched on, and with a carrier.

    The counts are None where this kernel does not tell them.
    """

    number: int
    name: str
    is_up: bool
    is_admin_up: bool
    is_gone: bool
    address: str
    carrier_changes: int | None
    carrier_down_count: int | None


class Events:
    """The network devices of this namespace, and what happens to them."""

    def __init__(self) -> None:
        """Begin to listen.

        Raises:
            OSError: not permitted, or no netlink here.
        """
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _QUEUE_BYTES)
        self._socket.bind((0, _RTMGRP_LINK))
        self._socket.setblocking(False)

    def fileno(self) -> int:
        """What to poll."""
        return self._socket.fileno()

    def read(self) -> list[Link]:
        """What happened since the last reading, in order.

        Raises:
            OSError: ENOBUFS: more happened than the kernel keeps for us.
        """
        found: list[Link] = []
        while True:
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return found
            found += (link for kind, body in _messages(data) if (link := _link(kind, body)) is not None)

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


def links() -> list[Link]:
    """All network devices of this namespace.

    Raises:
        OSError: the kernel does not answer.
    """
    answers = _asked(_GETLINK, _REQUEST | _DUMP, _LINK.pack(0, 0, 0, 0, 0))
    return [link for kind, body in answers if (link := _link(kind, body)) is not None]


def device_towards(address: str) -> str | None:
    """The network device by which this host reaches an IP address; for an own address, the one that has it.

    None where there is no route, or no such device.

    Raises:
        OSError: the kernel does not answer.
        ValueError: it is no IP address.
    """
    wanted = ipaddress.ip_address(address)
    family = socket.AF_INET if wanted.version == 4 else socket.AF_INET6
    message = _ROUTE.pack(family, wanted.max_prefixlen, 0, 0, 0, 0, 0, 0, 0)
    message += _ATTRIBUTE.pack(_ATTRIBUTE.size + len(wanted.packed), _RTA_DST) + wanted.packed
    for kind, body in _asked(_GETROUTE, _REQUEST, message):
        if kind != _NEWROUTE:
            continue
        if _ROUTE.unpack_from(body)[7] == _RTN_LOCAL and not wanted.is_loopback:
            return _holder(wanted.packed)
        leads_to = _attributes(body[_ROUTE.size :]).get(_RTA_OIF)
        return _name_of(_U32.unpack(leads_to)[0]) if leads_to else None
    return None


def addresses(devices: Container[str]) -> list[str]:
    """The IP addresses of network devices of this host, but for those that every host has.

    Raises:
        OSError: the kernel does not answer.
    """
    found = []
    for kind, body in _asked(_GETADDR, _REQUEST | _DUMP, _ADDRESS.pack(0, 0, 0, 0, 0)):
        if kind == _NEWADDR and _name_of(_ADDRESS.unpack_from(body)[4]) in devices:
            told = _attributes(body[_ADDRESS.size :])
            # Of a point-to-point device, IFA_ADDRESS is the other end's.
            address = ipaddress.ip_address(told.get(_IFA_LOCAL) or told[_IFA_ADDRESS])
            if not address.is_loopback:
                found.append(str(address))
    return found


def _holder(address: bytes) -> str | None:
    """The device that has an address of this host."""
    for kind, body in _asked(_GETADDR, _REQUEST | _DUMP, _ADDRESS.pack(0, 0, 0, 0, 0)):
        if kind == _NEWADDR:
            told = _attributes(body[_ADDRESS.size :])
            if address in (told.get(_IFA_LOCAL), told.get(_IFA_ADDRESS)):
                return _name_of(_ADDRESS.unpack_from(body)[4])
    return None


def _name_of(index: int) -> str | None:
    try:
        return socket.if_indextoname(index)
    except OSError:
        return None


def _asked(kind: int, flags: int, message: bytes) -> list[tuple[int, bytes]]:
    """The kernel's answers to a request, on a socket of its own."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as asking:
        asking.settimeout(_ANSWER_S)
        asking.send(_HEADER.pack(_HEADER.size + len(message), kind, flags, 1, 0) + message)
        found: list[tuple[int, bytes]] = []
        while True:
            answers = list(_messages(asking.recv(_RECEIVE_BYTES)))
            found += answers
            if not flags & _DUMP or any(answer in (_DONE, _ERROR) for answer, _ in answers):
                return found


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and body of each message of a datagram."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size:
            raise OSError(errno.EPROTO, f"a netlink message of {length} bytes")
        yield kind, data[at + _HEADER.size : at + length]
        at += (length + 3) & ~3


def _attributes(data: bytes) -> dict[int, bytes]:
    found = {}
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            break
        found[kind & _TYPE_MASK] = data[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3
    return found


def _link(kind: int, body: bytes) -> Link | None:
    """A message about a network device; None: it is about something else."""
    if kind not in (_NEWLINK, _DELLINK):
        return None
    family, _, index, flags, _ = _LINK.unpack_from(body)
    if family == _BRIDGE:
        return None
    told = _attributes(body[_LINK.size :])
    is_gone, is_admin_up = kind == _DELLINK, bool(flags & _IFF_UP)
    return Link(
        index,
        told.get(_IFLA_IFNAME, b"").rstrip(b"\0").decode(errors="surrogateescape"),  # as /sys spells it
        is_admin_up and bool(flags & _IFF_LOWER_UP) and not is_gone,
        is_admin_up and not is_gone,
        is_gone,
        told.get(_IFLA_ADDRESS, b"").hex(":"),
        *(_U32.unpack(told[number])[0] if number in told else None for number in _COUNTS),
    )


_COUNTS = (_IFLA_CARRIER_CHANGES, _IFLA_CARRIER_DOWN)
