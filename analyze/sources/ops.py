"""Names of operations and element types as sources spell them, in the words of the contract.

Source: the profiling names of torch/csrc/distributed/c10d/ProcessGroup{NCCL,Gloo,XCCL}.cpp, torch 2.2 to 2.14
(`nccl:_all_gather_base`); `opTypeToString` of ProcessGroup.hpp (`_ALLGATHER_BASE`); ncclFuncToString of NCCL 2.8 to
2.30 (`AllGather`); `c10::toString(ScalarType)` (`BFloat16`); ncclDatatypeToString and NCCLX (`ncclFloat32`,
`commBfloat16`).
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from roundk.tracer import words

_TENSOR_GATHER: Final = "all_gather_into_tensor"
_TENSOR_SCATTER: Final = "reduce_scatter_tensor"

_ALIASES: Final = {
    "all_gather_base": _TENSOR_GATHER,
    "allgather_base": _TENSOR_GATHER,
    "all_gather_single": _TENSOR_GATHER,  # torch 2.13 renamed the public functions
    "reduce_scatter_base": _TENSOR_SCATTER,
    "reduce_scatter_single": _TENSOR_SCATTER,
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "all_gather_v": "all_gather",
    "reducescatter": "reduce_scatter",
    "reduce_scatter_v": "reduce_scatter",
    "broadcast_oop": "broadcast",
    "reduce_oop": "reduce",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "all_to_all_v_single": "all_to_all_single",
    "all_reduce_barrier": "barrier",
    "sendrecv": "coalesced",
    "recvanysource": "recv",
    "recv_any_source": "recv",
}
_WORD: Final = re.compile(r"[A-Za-z0-9_.]+")
_PEERS: Final = re.compile(r"(\d{1,9})(?:->|<-)(\d{1,9})")
_COALESCED: Final = "_coalesced"
_MOST_NAME: Final = 100


class Spelled(NamedTuple):
    """What a profiling name says.

    Attributes:
        backend: What stands before the colon; '' where nothing does.
        op: The operation in the words of the contract; an unknown one under its own name.
        source_op: The operation as it is spelled there.
        local: Of a p2p call that names both sides, its own rank in the group; None elsewhere.
        peer: And the other side's.
    """

    backend: str
    op: str
    source_op: str
    local: int | None
    peer: int | None


def spelled(name: str) -> Spelled:
    """Take a profiling name apart: `nccl:send 0->3`, `gloo:all_reduce`, `ALLREDUCE`."""
    backend, colon, rest = name[:_MOST_NAME].rpartition(":")
    word = _WORD.search(rest)
    source_op = word[0] if word else rest.strip() or "unknown"
    peers = _PEERS.search(rest)
    return Spelled(
        backend if colon else "",
        op_name(source_op),
        source_op,
        None if peers is None else int(peers[1]),
        None if peers is None else int(peers[2]),
    )


def op_name(spelling: str) -> str:
    """An operation in the words of the contract; one that is not known stays under its own name."""
    if spelling in words.OPS:
        return spelling
    plain = spelling.strip().lower().removeprefix("nccl").strip("_")
    if plain.endswith(_COALESCED):
        return op_name(plain.removesuffix(_COALESCED)) + _COALESCED
    plain = _ALIASES.get(plain, plain)
    return plain if plain in words.OPS or plain == "coalesced" else plain or "unknown"


_DTYPES: Final[dict[str, tuple[str, int | None]]] = {
    "undefined": ("", None),
    "float": ("float32", 4),
    "double": ("float64", 8),
    "half": ("float16", 2),
    "bfloat16": ("bfloat16", 2),
    "byte": ("uint8", 1),
    "char": ("int8", 1),
    "short": ("int16", 2),
    "int": ("int32", 4),
    "long": ("int64", 8),
    "bool": ("bool", 1),
    "complexhalf": ("complex32", 4),
    "complexfloat": ("complex64", 8),
    "complexdouble": ("complex128", 16),
    "float32": ("float32", 4),
    "float64": ("float64", 8),
    "float16": ("float16", 2),
    "uint8": ("uint8", 1),
    "uint16": ("uint16", 2),
    "uint32": ("uint32", 4),
    "uint64": ("uint64", 8),
    "int8": ("int8", 1),
    "int16": ("int16", 2),
    "int32": ("int32", 4),
    "int64": ("int64", 8),
    "complex64": ("complex64", 8),
    "complex128": ("complex128", 16),
    "float8e4m3": ("float8_e4m3fn", 1),
    "float8e5m2": ("float8_e5m2", 1),
    "f32": ("float32", 4),
    "f64": ("float64", 8),
    "f16": ("float16", 2),
    "bf16": ("bfloat16", 2),
}


def dtype(spelling: str) -> tuple[str, int | None]:
    """An element type as torch prints it, and the bytes of an element; None where it is not known.

    '' where there is none: who is not the root of a gather or scatter has a tensor without a type in place of the list.
    """
    plain = spelling.strip().lower().removeprefix("torch.").removeprefix("nccl").removeprefix("comm")
    if plain.startswith("float8_"):
        return plain, 1
    return _DTYPES.get(plain, (plain, None))
