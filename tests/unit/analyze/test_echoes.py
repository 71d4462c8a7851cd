"""Which errors are those of a peer, and in which words they are shown."""

from __future__ import annotations

import pytest

from roundk.analyze import echoes

NCCL = "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3687, "
DIST = "torch.distributed.DistBackendError"
ABORTED = "NCCL communicator was aborted on rank 2."
ADVICE = "This is typically caused by a remote worker crashing."
GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (DIST, f"{NCCL}remote process exited or there was a network error, NCCL version 2.27.5"),
        (DIST, "NCCL communicator was aborted on rank 5."),
        (DIST, "[6] is setting up NCCL communicator and .. but store->get('0') got error: Connection reset by peer"),
        ("RuntimeError", f"{GLOO}pair.cc:553] Connection closed by peer [192.0.2.7]:6891"),
        ("RuntimeError", f"{GLOO}pair.cc:553] Read error [192.0.2.7]:6891: Connection reset by peer"),
        ("RuntimeError", f"{GLOO}unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to complete"),
        ("RuntimeError", "Broken pipe"),
        ("BrokenPipeError", "[Errno 32] Broken pipe"),
        ("ConnectionResetError", "[Errno 104] Connection reset by peer"),
        ("torch.distributed.DistNetworkError", "failed to recv, got 0 bytes"),
        ("torch.distributed.DistStoreError", "wait timeout after 600000ms, keys: /default_pg/0"),
        ("RuntimeError", "Socket Timeout"),
    ],
)  # fmt: skip
def test_errors_of_a_peer(kind, message):
    assert echoes.is_echo(kind, message)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 20.00 GiB."),
        ("ValueError", "cannot restore the store of checkpoint 12"),
        (DIST, f"{NCCL}unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5"),
        (DIST, f"{ABORTED}  Original reason for failure was: NCCL error: unhandled cuda error"),
        ("torch.distributed.DistNetworkError", "The server socket has failed to listen on any local network address."),
        ("botocore.exceptions.ConnectionClosedError", "Connection reset by peer"),
        ("KeyError", "'loss'"),
        (None, None),
    ],
)  # fmt: skip
def test_errors_of_a_ranks_own(kind, message):
    assert not echoes.is_echo(kind, message)


def test_a_system_error_of_nccl_can_be_either():
    message = f"{NCCL}unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5"
    assert echoes.may_be_echo(DIST, message)
    assert not echoes.is_echo(DIST, message)
    assert not echoes.may_be_echo("ValueError", "bad batch")


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (f"{NCCL}remote process exited or there was a network error, NCCL version 2.27.5",
         "NCCL error: remote process exited or there was a network error"),
        (f"{NCCL}unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5",
         "NCCL error: unhandled cuda error"),
        (f"{GLOO}pair.cc:553] Connection closed by peer [192.0.2.7]:6891. {ADVICE} Check its logs.",
         "Connection closed by peer [192.0.2.7]:6891"),
        ("[Rank 0]: Ranks 1 failed to pass", "[Rank 0]: Ranks 1 failed to pass"),
    ],
)  # fmt: skip
def test_messages_without_places_in_torch(message, shown):
    assert echoes.short_message(message) == shown


def test_types_without_the_path_of_torch():
    assert echoes.short_type(DIST) == "DistBackendError"
    assert echoes.short_type("requests.exceptions.ConnectionError") == "requests.exceptions.ConnectionError"
