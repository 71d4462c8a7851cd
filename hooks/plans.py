"""What the arguments of each c10d operation mean: read from its schema, since argument lists differ by torch version.

Source: torch/csrc/distributed/c10d/Ops.cpp, the schemas of 2.6 to 2.14.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from roundk.tracer import words

_NAMES = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce_coalesced",
    "allgather_": "all_gather",
    "allgather_coalesced_": "all_gather_coalesced",
    "_allgather_base_": "all_gather_into_tensor",
    "allgather_into_tensor_coalesced_": "all_gather_into_tensor_coalesced",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter_tensor_coalesced",
    "broadcast_": "broadcast",
    "reduce_": "reduce",
    "gather_": "gather",
    "gather_into_tensor_": "gather_into_tensor",  # since torch 2.14
    "scatter_": "scatter",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all_single",
    "barrier": "barrier",
    "monitored_barrier_": "monitored_barrier",
    "send": "send",
    "recv_": "recv",
    "recv_any_source_": "recv",
}
"""Name in torch's dispatcher to the name in the verdict contract."""

_GLOO_END_UNSEEN = frozenset(
    {"reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced", "send", "recv"}
)
"""On gloo `is_completed()` of these never turns true before `wait()` (torch 2.13: it stays false for ever)."""

ONLY_RESULT, NO_WORK = -1, -2
"""Where the Work is when it is not one of several results."""
_NOWHERE = 1_000
_OUTPUTS = ("output_tensors", "output_tensor", "output_lists", "outputs", "output")
_INPUTS = ("input_tensors", "input_tensor", "input_list", "inputs", "input", "tensors")


class Signature(NamedTuple):
    """What a call moves: number of its line, elements and bytes of the inputs, bytes of the outputs, dtype code."""

    id: int
    numel: int
    bytes_in: int
    bytes_out: int
    dtype: int


class Plan:
    """How to read the arguments of one operation.

    Attributes:
        op: Name in the verdict contract; the dispatcher's own where it is unknown.
        code: Its code in the ring.
        is_p2p: It is a send or a recv.
        group_at: Position of the process group, boxed; `unbox` gives torch's object.
        peer_at: Position of the root or peer (a group rank); -1: none.
        async_at: Position of the flag that asks for an asynchronous call; beyond all positions where there is none.
        async_default: What holds where it is not passed, as arguments equal to their default are not.
        work_at: Position of the Work among several results, `ONLY_RESULT` or `NO_WORK`.
        gloo_end_unseen: See `_GLOO_END_UNSEEN`.
    """

    def __init__(self, name: str, schema: Any) -> None:
        self.op = _NAMES.get(name, name)
        self.code = words.OPS.index(self.op) if self.op in words.OPS else 0
        at = {argument.name: position for position, argument in enumerate(schema.arguments)}
        groups = [k for k, argument in enumerate(schema.arguments) if "ProcessGroup" in str(argument.type)]
        self.group_at = groups[0]
        self.is_p2p = self.op in words.P2P
        self.peer_at = next((at[k] for k in ("root_rank", "dst", "src") if k in at), -1)
        self.async_at = at.get("async_op", _NOWHERE)
        self.async_default = self.async_at != _NOWHERE or self.is_p2p
        self._out_at = next((at[k] for k in _OUTPUTS if k in at), -1)
        self._in_at = next((at[k] for k in _INPUTS if k in at), -1)
        self._splits_at = tuple(at[k] for k in ("output_split_sizes", "input_split_sizes") if k in at)
        self.work_at = {0: NO_WORK, 1: ONLY_RESULT}.get(len(schema.returns), len(schema.returns) - 1)
        self.gloo_end_unseen = self.op in _GLOO_END_UNSEEN
        from torch.distributed import ProcessGroup

        self.unbox = ProcessGroup.unbox

    def key(self, args: tuple[Any, ...]) -> tuple[Any, Any]:
        """What tells this call's signature from others, and its first tensor (None: it has none)."""
        if self._in_at < 0:
            return self.op, None
        given = args[self._in_at]
        if self._out_at < 0:
            if len(given) == 1:
                tensor = given[0]
                return (self.code, tensor.shape, tensor.dtype), tensor
            return (self.op, *((t.shape, t.dtype) for t in given)), given[0] if given else None
        outputs, inputs = flatten(args[self._out_at]), flatten(given)
        key = [self.op, len(outputs), *((t.shape, t.dtype) for t in outputs), *((t.shape, t.dtype) for t in inputs)]
        key += [tuple(args[at]) for at in self._splits_at]
        first = inputs or outputs
        return tuple(key), first[0] if first else None

    def describe(self, args: tuple[Any, ...], number: int) -> tuple[Signature, dict[str, Any]]:
        """A call's signature and its line for the side file."""
        inputs = flatten(args[self._in_at]) if self._in_at >= 0 else []
        outputs = flatten(args[self._out_at]) if self._out_at >= 0 else inputs
        dtypes = [str(t.dtype).removeprefix("torch.") for t in inputs or outputs]
        first = dtypes[0] if dtypes else ""
        signature = Signature(
            number,
            sum(t.numel() for t in inputs),
            _bytes(inputs),
            _bytes(outputs),
            words.DTYPES.index(first) if first in words.DTYPES else words.DTYPES.index("other"),
        )
        line = {
            "kind": "signature",
            "id": number,
            "op": self.op,
            "inputs": [list(t.shape) for t in inputs],
            "outputs": [list(t.shape) for t in outputs] if self._out_at >= 0 else None,
            "dtypes": sorted(set(dtypes)),
            "splits": [list(args[at]) for at in self._splits_at],
        }
        return signature, line


def _bytes(tensors: list[Any]) -> int:
    """Bytes of tensors as if they were dense: a sparse tensor tells no `nbytes`."""
    return sum(int(t.numel() * t.element_size()) for t in tensors)


def flatten(tensors: Any) -> list[Any]:
    """The tensors of a tensor, a list of tensors, or a list of lists."""
    if not isinstance(tensors, list | tuple):
        return [tensors]
    return [tensor for item in tensors for tensor in flatten(item)]
