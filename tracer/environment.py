"""What a process tells of the settings and versions it runs with: a bounded part of its environment, never a secret.

Kept are variables by their beginning (`PREFIXES`) or whole name (`NAMES`): what NCCL, torch, gloo, CUDA and the layers
below them read. A name that sounds like a secret is never written, whatever it begins with, nor is a value in which a
password stands.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIXES = (
    "NCCL_",
    "TORCH_",
    "PYTORCH_",
    "GLOO_",
    "CUDA_",
    "NVIDIA_",
    "NVSHMEM_",
    "UCX_",
    "UCC_",
    "FI_",
    "RDMAV_",
    "IBV_",
    "MLX5_",
    "RCCL_",
    "HSA_",
    "HIP_",
    "ROCR_",
    "OMP_",
    "KMP_",
    "MKL_",
    "CUBLAS_",
    "CUDNN_",
    "TORCHINDUCTOR_",
    "OMPI_MCA_",
)
"""In the order in which they are kept where there is no room for all."""
NAMES = ("LD_PRELOAD", "LD_LIBRARY_PATH", "MALLOC_ARENA_MAX")
"""Which libraries, and so which NCCL and which network plugin, a process gets."""
SECRETS = (
    "KEY",
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "CREDENTIAL",
    "AUTH",
    "COOKIE",
    "PRIVATE",
)
"""A name with one of these in it is never written. That loses NCCL_IB_PKEY, a number of no secrecy."""
MOST_CHARACTERS = 512
"""Of a value; what is cut ends in `CUT`."""
MOST_BYTES = 6_144
"""Of all names and values: with the rest of a small job it fits into a side file's first 16 KiB."""
CUT = "..."
NOT_KEPT = "(not kept: a password is in it)"
_PASSWORD = re.compile(r"://[^/\s@]*:[^/\s@]*@")
_DRIVER = re.compile(r"NVRM version:.*?\s(\d+(?:\.\d+)+)\s")


def settings(environ: Mapping[str, str]) -> tuple[dict[str, str], int]:
    """The variables that are kept, and how many there was no room for."""
    ours = (name for name in environ if name.startswith(PREFIXES) or name in NAMES)
    wanted = [(_worth(name), name) for name in ours if not _is_secret(name)]
    kept: dict[str, str] = {}
    room = MOST_BYTES
    for _, name in sorted(wanted):
        value = _value(environ[name])
        room -= len(name) + len(value)
        if room >= 0:
            kept[_readable(name)] = value
    return kept, len(wanted) - len(kept)


def _worth(name: str) -> int:
    """Which of `PREFIXES` a name has, the less the better."""
    return next((at for at, prefix in enumerate(PREFIXES) if name.startswith(prefix)), len(PREFIXES))


def _is_secret(name: str) -> bool:
    upper = name.upper()
    return any(word in upper for word in SECRETS)


def _value(value: str) -> str:
    if _PASSWORD.search(value):
        return NOT_KEPT
    text = _readable(value)
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - len(CUT)] + CUT


def _readable(text: str) -> str:
    """Bytes that are no UTF-8, which Python has as lone surrogates, are written out: no reader can take those."""
    return text.encode(errors="backslashreplace").decode()


def host_versions() -> dict[str, str]:
    """Versions that all processes of a host share: its kernel, its GPU driver, the driver of its NICs.

    Source: `/proc/driver/nvidia/version`, first line: `NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  ...`;
    `/sys/module/mlx5_core/version`, which the drivers of Mellanox OFED have and those of the kernel do not.
    """
    found = {"kernel": os.uname().release}
    if match := _DRIVER.search(_first_bytes("/proc/driver/nvidia/version")):
        found["nvidia driver"] = match[1]
    if mlx5 := _first_bytes("/sys/module/mlx5_core/version").strip():
        found["mlx5_core"] = mlx5
    return found


def _first_bytes(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(512)
    except OSError:
        return ""
