"""Answers of NCCL's RAS, laid out line by line as NCCL prints them."""

from __future__ import annotations

OPS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


def rank(number, place=None, *, counts=None, init=0, error=0, flags=(False, False, False)):
    """A rank of a communicator; place is (host, pid, GPU)."""
    host, pid, gpu = place or (f"10.0.0.{1 + number // 4}", 1000 + number, number % 4)
    return {
        "rank": number,
        "host": host,
        "pid": pid,
        "gpu": gpu,
        "init": init,
        "error": error,
        "flags": flags,
        "counts": {**dict.fromkeys(OPS, 0), **(counts or {})},
    }


def missing(number, place=None, *, dead=False, answers=False):
    """A rank without data: its process is dead, silent, or has no such communicator."""
    told = rank(number, place)
    return {**told, "dead": dead, "unresponsive": not answers}


def comm(ranks, gone=(), *, number=0xFA93DAEA854B060B, size=None):
    return {"hash": number, "size": size or len(ranks) + len(gone), "ranks": ranks, "gone": gone}


def as_json(comms, *, at="2026-01-02 03:04:05", version="2.29.2", timeouts=0):
    """What `jsonWriteHeader` and its siblings write; versions before 2.29 forget a comma."""
    comma = "" if version.startswith("2.28") else ","
    out = [
        "{",
        f'  "nccl_version": "{version}",',
        '  "cuda_runtime_version": 12090,',
        '  "cuda_driver_version": 13000,',
        f'  "timestamp": "{at}",',
        f'  "communicators_count": {len(comms)},',
        '  "communicators": [',
    ]
    body = [_comm(one, comma) for one in comms]
    tail = f'  ],\n  "ras": {{\n    "collection_time_sec": 0.012,\n    "timeouts_count": {timeouts}\n  }}\n}}\n'
    return "\n".join(out) + "\n" + ",\n".join(body) + "\n" + tail


def _comm(one, comma):
    return (
        "    {\n"
        f'      "hash": "0x{one["hash"]:x}",\n'
        '      "secondary_hash": "0x1:0x2",\n'
        f'      "size": {one["size"]},\n'
        f'      "ranks_count": {len(one["ranks"])},\n'
        f'      "missing_ranks_count": {len(one["gone"])},\n'
        '      "ranks": [\n'
        + ",\n".join(_rank(told) for told in one["ranks"])
        + '\n      ],\n      "missing_ranks": [\n'
        + ",\n".join(_gone(told, comma) for told in one["gone"])
        + "\n      ]\n    }"
    )


def _where(told, comma):
    return (
        "        {\n"
        f'          "rank": {told["rank"]},\n'
        f'          "host": "{told["host"]}",\n'
        f'          "pid": {told["pid"]},\n'
        f'          "cuda_dev": {told["gpu"]},\n'
        f'          "nvml_dev": {told["gpu"]}{comma}\n'
    )


def _rank(told):
    finalize, destroy, abort = (str(flag).lower() for flag in told["flags"])
    counts = ",\n".join(f'            "{op}": {value}' for op, value in told["counts"].items())
    return (
        _where(told, ",") + '          "status": {\n'
        f'            "init_state": {told["init"]},\n'
        f'            "async_error": {told["error"]},\n'
        f'            "finalize_called": {finalize},\n'
        f'            "destroy_flag": {destroy},\n'
        f'            "abort_flag": {abort}\n'
        "          },\n"
        '          "collective_counts": {\n' + counts + "\n          }\n        }"
    )


def _gone(told, comma):
    return (
        _where(told, comma) + '          "status": {\n'
        f'            "unresponsive": {str(told["unresponsive"]).lower()},\n'
        f'            "considered_dead": {str(told["dead"]).lower()}\n'
        "          }\n        }"
    )


def as_text(*, size=32, errors="", warnings="", status="RUNNING", word="OK", version="2.27.3", comms=1):
    """A text answer around what stands under its two headings."""
    return f"""NCCL version {version} compiled with CUDA 12.9
CUDA runtime version 12090, driver version 12040

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
{size // 8:7d}  {8:9d}  {1:11d}  {size:9d}  {size:7d}

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
{0:5d}  {comms:8d}  {size // 8:8d}  {8!s:>8}  {size:8d}  {size:8d}  {status:>8}  {word:>6}

Errors
======

{errors}
Warnings
========

{warnings}"""
