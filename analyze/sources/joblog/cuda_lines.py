"""CUDA errors as torch, NCCL and the interpreter print them, and deaths by a fatal signal.

`CUDA error: an illegal memory access was encountered` (torch; `CUDA kernel errors might be asynchronously reported`
follows: the call that raised is not the one that failed), `CUDA out of memory. Tried to allocate 2.00 GiB` (torch;
2.3 on as `torch.OutOfMemoryError`), `device-side assert triggered`, `CUBLAS_STATUS_...`, `Fatal Python error: ...`
(faulthandler).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from roundk.analyze.sources.joblog.events import Event, present, short

LITERALS: Final = ("CUDA error", "CUDA out of memory", "CUBLAS_STATUS_", "Fatal Python error: ")

_ERROR: Final = re.compile(r"CUDA error(?: \d+)?: (?P<error>(?!.*CUBLAS_STATUS)[^\n]{1,300})")
_OUT: Final = re.compile(
    r"CUDA out of memory\.(?: Tried to allocate (?P<size>[\d.]+ [KMGT]?i?B))?(?:.{0,40}?GPU (?P<gpu>\d{1,3}))?"
)
_CUBLAS: Final = re.compile(r"(?P<error>CUBLAS_STATUS_\w+)")
_FATAL: Final = re.compile(r"Fatal Python error: (?P<error>[^\n]{1,200})")


def parse(text: str) -> Iterator[Event]:
    """What a line says of CUDA or of a fatal error of the interpreter."""
    if (out := _OUT.search(text)) is not None:
        yield Event("cuda_out_of_memory", short(text[out.start() :]), present(tried=out["size"], gpu=_gpu(out["gpu"])))
    elif (error := _ERROR.search(text)) is not None:
        yield Event("cuda_error", f"CUDA error: {short(error['error'])}", {"error": short(error["error"])})
    elif (cublas := _CUBLAS.search(text)) is not None:
        yield Event("cuda_error", f"cuBLAS: {cublas['error']}", {"error": cublas["error"]})
    if (fatal := _FATAL.search(text)) is not None:
        yield Event(
            "fatal_python_error",
            f"fatal error of the interpreter: {short(fatal['error'])}",
            {"error": short(fatal["error"])},
        )


def _gpu(digits: str | None) -> int | None:
    return int(digits) if digits is not None else None
