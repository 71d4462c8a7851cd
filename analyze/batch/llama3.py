"""The one published breakdown of what interrupts a job of 16,384 GPUs, to compare with.

Source: Llama Team, "The Llama 3 Herd of Models", arXiv 2407.21783, section 3.3.4 and Table 5: a 54-day snapshot of the
pre-training of Llama 3 405B on up to 16,384 H100 GPUs; 466 interruptions, 47 of them planned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from roundk.analyze.batch import shares
from roundk.analyze.batch.table import Category

NAME: Final = "Llama 3 405B, 16,384 GPUs, 54 days"
SOURCE: Final = "arXiv 2407.21783, Table 5"
GPUS: Final = 16_384
DAYS: Final = 54
UNEXPECTED: Final = 419
PLANNED: Final = 47
PRINTED_GPU: Final = 58.7
"""Percent of the unexpected interruptions that the text says are of GPUs."""


@dataclass(frozen=True)
class Row:
    """A row of the published table.

    Attributes:
        component: As printed.
        theirs: Their category, as printed.
        count: Interruptions.
        printed: Percent, as printed.
        category: Ours.
    """

    component: str
    theirs: str
    count: int
    printed: float
    category: Category


ROWS: Final = (
    Row("Faulty GPU", "GPU", 148, 30.1, Category.GPU),
    Row("GPU HBM3 memory", "GPU", 72, 17.2, Category.GPU),
    Row("Software bug", "Dependency", 54, 12.9, Category.CODE),
    Row("Network switch/cable", "Network", 35, 8.4, Category.NETWORK),
    Row("Host maintenance", "Unplanned maintenance", 32, 7.6, Category.HOST),
    Row("GPU SRAM memory", "GPU", 19, 4.5, Category.GPU),
    Row("GPU system processor", "GPU", 17, 4.1, Category.GPU),
    Row("NIC", "Host", 7, 1.7, Category.NETWORK),
    Row("NCCL watchdog timeouts", "Unknown", 7, 1.7, Category.UNDETERMINED),
    Row("Silent data corruption", "GPU", 6, 1.4, Category.GPU),
    Row("GPU thermal interface + sensor", "GPU", 6, 1.4, Category.GPU),
    Row("SSD", "Host", 3, 0.7, Category.HOST),
    Row("Power supply", "Host", 3, 0.7, Category.HOST),
    Row("Server chassis", "Host", 2, 0.5, Category.HOST),
    Row("IO expansion board", "Host", 2, 0.5, Category.HOST),
    Row("Dependency", "Dependency", 2, 0.5, Category.CODE),
    Row("CPU", "Host", 2, 0.5, Category.HOST),
    Row("System memory", "Host", 2, 0.5, Category.HOST),
)


def by_category() -> dict[Category, int]:
    """Their interruptions by our categories: a NIC is of the network, silent data corruption of the GPU, as printed."""
    return {category: sum(row.count for row in ROWS if row.category is category) for category in Category}


def misprints() -> list[shares.Misprint]:
    """The percentages of the published table that do not follow from its counts."""
    return shares.check([(row.component, row.count, row.printed) for row in ROWS], UNEXPECTED)


def hours_between() -> float:
    """Hours from one unexpected interruption to the next."""
    return DAYS * 24 / UNEXPECTED


def gpu_hours_between() -> float:
    """GPU-hours from one unexpected interruption to the next, had all GPUs been used all the time."""
    return GPUS * hours_between()


def footnotes() -> tuple[str, ...]:
    """What has to be known to quote the table."""
    gpu, network = by_category()[Category.GPU], by_category()[Category.NETWORK]
    switch = next(row.count for row in ROWS if row.component == "Network switch/cable")
    wrong = "; ".join(
        f"the printed {one.printed} % for {one.name} is {one.count}/{one.total} = {one.computed:.1f} %"
        for one in misprints()
    )
    return (
        (
            f"{UNEXPECTED} unexpected interruptions, {PLANNED} planned besides, {UNEXPECTED + PLANNED} in all. "
            "Shares are computed from the counts."
        ),
        f"{wrong[:1].upper()}{wrong[1:]}.",
        (
            f"The printed GPU share of {PRINTED_GPU} % is the sum of the printed rows; by count it is "
            f"{gpu}/{UNEXPECTED} = {shares.text(gpu, UNEXPECTED)}."
        ),
        (
            f"Network switches and cables are {switch}, {shares.text(switch, UNEXPECTED)}; with NICs {network}, "
            f"{shares.text(network, UNEXPECTED)}; not the 60 % that is sometimes quoted."
        ),
        (
            "Rows of theirs in our categories: GPU with silent data corruption; network: switch or cable, NIC; host: "
            "maintenance, SSD, power supply, chassis, IO board, CPU, memory; code: software bug, dependency; "
            "undetermined: NCCL watchdog timeouts."
        ),
    )
