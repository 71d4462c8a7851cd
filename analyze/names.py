"""The words of the verdict contract: structures, details, causes, levels of confidence, states of a run."""

from __future__ import annotations

import enum


class Structure(enum.StrEnum):
    """WHO and WHERE."""

    HEALTHY = "HEALTHY"
    IN_PROGRESS = "IN_PROGRESS"
    RANK_NOT_ENTERED = "RANK_NOT_ENTERED"
    DEVICE_STUCK = "DEVICE_STUCK"
    KERNEL_NOT_STARTED = "KERNEL_NOT_STARTED"
    ALL_ENTERED_NONE_COMPLETED = "ALL_ENTERED_NONE_COMPLETED"
    PARTIAL_COMPLETION = "PARTIAL_COMPLETION"
    ORDER_DEADLOCK = "ORDER_DEADLOCK"
    SIGNATURE_MISMATCH = "SIGNATURE_MISMATCH"
    EXTRA_CALL = "EXTRA_CALL"
    SKIPPED_CALL = "SKIPPED_CALL"
    GROUP_MEMBERSHIP_CONFLICT = "GROUP_MEMBERSHIP_CONFLICT"
    P2P_UNPAIRED = "P2P_UNPAIRED"
    STUCK_IN_INIT = "STUCK_IN_INIT"
    STUCK_OUTSIDE = "STUCK_OUTSIDE"
    STRAGGLER = "STRAGGLER"
    ROTATING_STRAGGLER = "ROTATING_STRAGGLER"
    CONFIG_FINDING = "CONFIG_FINDING"
    ERROR_REPORTED = "ERROR_REPORTED"
    METHODS_DISAGREE = "METHODS_DISAGREE"
    INSUFFICIENT_EVIDENCE = "INSUFFICIENT_EVIDENCE"


class Detail(enum.StrEnum):
    """A structure said more closely."""

    IDLE = "IDLE"
    BUSY = "BUSY"
    DEAD = "DEAD"
    STOPPED = "STOPPED"
    EXITED_EARLY = "EXITED_EARLY"
    SILENT = "SILENT"
    RAISED = "RAISED"
    OP = "OP"
    SIZE = "SIZE"
    DTYPE = "DTYPE"
    ROOT = "ROOT"
    REDUCE_OP = "REDUCE_OP"


class Cause(enum.StrEnum):
    """WHY."""

    EXCEPTION = "EXCEPTION"
    PROCESS_KILLED = "PROCESS_KILLED"
    PROCESS_EXITED = "PROCESS_EXITED"
    PROCESS_STOPPED = "PROCESS_STOPPED"
    HOST_STALL = "HOST_STALL"
    OOM_KILLED = "OOM_KILLED"
    LINK_FLAP = "LINK_FLAP"
    LINK_DOWN = "LINK_DOWN"
    TRANSPORT_ERROR = "TRANSPORT_ERROR"
    TRANSPORT_FALLBACK = "TRANSPORT_FALLBACK"
    NETWORK_CONFIG = "NETWORK_CONFIG"
    GPU_FAULT = "GPU_FAULT"
    NVLINK_FAULT = "NVLINK_FAULT"
    DUPLICATE_GPU = "DUPLICATE_GPU"
    CODE_DIVERGENCE = "CODE_DIVERGENCE"
    UNDETERMINED = "UNDETERMINED"


class Confidence(enum.StrEnum):
    """How sure a verdict is."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    NONE = "none"


class Status(enum.StrEnum):
    """The state of the run in one word."""

    HEALTHY = "healthy"
    IN_PROGRESS = "in_progress"
    SLOW = "slow"
    STUCK = "stuck"
    FAILED = "failed"
    UNDETERMINED = "undetermined"
