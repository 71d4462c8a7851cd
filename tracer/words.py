"""The words that the writing and the reading half share: operations, element types, reductions, outcomes.

Standard library only: the training process imports this. The order is part of the file format; append, never reorder.
"""

from __future__ import annotations

from typing import Final

SCHEMA_VERSION: Final = 1
"""Version of the run directory. Raised when a column changes its meaning or a new one is needed to read the rest."""

OPS: Final = (
    "unknown",
    "all_reduce",
    "all_reduce_coalesced",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "monitored_barrier",
    "send",
    "recv",
    "init_process_group",
    "new_group",
    "split_group",
    "destroy_process_group",
    "coalescing_end",
    "gather_into_tensor",
    "step",
)
"""Operations by their code in the ring; `unknown` is named by its signature line."""

PSEUDO: Final = frozenset({"init_process_group", "new_group", "split_group", "destroy_process_group", "coalescing_end"})
"""Calls that torch does not dispatch and that can hang all the same; they have groups of their own (`CONTROL`)."""
CONTROL: Final = "control"
"""Description of such a group, and of no other: its members are the ranks that must make the call."""
STEP: Final = "step"
"""No call: a row that marks the end of a training step. It has no group; its `seq` is the step's number, from 1."""
P2P: Final = frozenset({"send", "recv"})
ROOTED: Final = frozenset({"broadcast", "reduce", "gather", "gather_into_tensor", "scatter"})

DTYPES: Final = (
    "",
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "bool",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "uint16",
    "uint32",
    "uint64",
    "other",
)
"""Element types by their code in the ring, as torch prints them without `torch.`; '' where the call has no tensor."""

REDUCE_OPS: Final = ("", "SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM", "OTHER")

OUTCOMES: Final = ("open", "completed", "failed", "not_recorded")
"""How a call ended, by its code in the ring; `not_recorded`: the end may have come unseen."""
OPEN: Final = 0
COMPLETED: Final = 1
FAILED: Final = 2
NOT_RECORDED: Final = 3

VALUE: Final = 1
WORD: Final = 2
UNREADABLE: Final = 3
LOOKED: Final = 4
"""What a row of link samples is; see `schema.LINK_RING`."""
