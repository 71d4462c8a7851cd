"""Every dispatched operation of the installed torch is known by name and read by its schema."""

from __future__ import annotations

import pytest
import torch

from roundk.hooks import kernels, plans
from roundk.tracer import words

OPERATIONS = kernels.operations()


def schema(name):
    return getattr(torch.ops.c10d, name).default._schema


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_has_a_code_and_a_work_where_it_returns_one(name):
    plan = plans.Plan(name, schema(name))
    assert words.OPS[plan.code] == plan.op != "unknown"
    returned = [str(value.type) for value in schema(name).returns]
    if plan.work_at == plans.NO_WORK:
        assert returned == []
    else:
        assert "Work" in returned[plan.work_at]


def test_none_is_missed():
    assert set(OPERATIONS) <= set(plans._NAMES)
    assert set(plans._NAMES.values()) == set(words.OPS) - {"unknown", words.STEP} - words.PSEUDO


def test_dtypes_of_torch_are_known():
    names = {str(value).removeprefix("torch.") for value in vars(torch).values() if isinstance(value, torch.dtype)}
    common = {
        name
        for name in names
        if not name.startswith(("q", "bits", "complex32", "bcomplex32", "float4", "float8_e8", "uint", "int"))
    }
    assert common <= set(words.DTYPES)


def test_reductions_of_torch_are_known():
    assert set(torch.distributed.ReduceOp.RedOpType.__members__) <= set(words.REDUCE_OPS)
