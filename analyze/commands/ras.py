"""`roundk ras`: ask a running job's NCCL RAS twice, and say who is behind, gone, or does not move."""

from __future__ import annotations

import datetime as dt
import pathlib
import shutil
import sys
import time

import click

from roundk.analyze.commands import printing
from roundk.analyze.output.ras import render
from roundk.analyze.phrases import NS_PER_S
from roundk.analyze.ras_polls import compare
from roundk.analyze.sources import ras
from roundk.analyze.sources.ras import client as ras_client
from roundk.analyze.sources.ras.client import RasError
from roundk.analyze.sources.ras.snapshot import Snapshot


@click.command("ras")
@click.argument("address", default=f"{ras_client.HOST}:{ras_client.PORT}", metavar="[HOST[:PORT]]")
@click.option(
    "--interval-s",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="Time between the two answers.",
)
@click.option(
    "--timeout-s",
    type=click.FloatRange(min=0, min_open=True),
    default=15.0,
    show_default=True,
    help="How long RAS may be silent; it gathers the data of all processes.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=pathlib.Path),
    metavar="DIR",
    help="Keep the answers there; `roundk analyze` and `roundk show` read them.",
)
def command(address: str, interval_s: float, timeout_s: float, out: pathlib.Path | None) -> None:
    """Ask a running job's NCCL RAS twice, and say who is behind, gone, or does not move.

    HOST[:PORT] is where a process of the job listens (localhost:28028, or NCCL_RAS_ADDR), with NCCL 2.24 or later.
    One answer has the whole job.

    Exit codes: 0 nothing wrong seen; 1 something is wrong; 2 usage, or RAS cannot be asked; 3 it cannot be said, as
    when ranks differ in one answer only, or when all are level and nothing moves.
    """
    host, port = ras_client.address(address)
    asked_ns = time.monotonic_ns()
    first = _ask(host, port, timeout_s, out)
    _wait(asked_ns, interval_s)
    apart_ns: int | None = time.monotonic_ns() - asked_ns
    second: Snapshot | None = None
    try:
        second = _ask(host, port, timeout_s, out)
    except RasError as error:
        # What the first answer said is worth more than that there is no second.
        click.echo(f"roundk: the second answer did not come: {error}", err=True)
        apart_ns = None
    compared = compare(first, second)
    width = shutil.get_terminal_size((80, 24)).columns
    last, where = second or first, f"{host}:{port}"
    told = printing.painted(lambda paint: render(compared, last, apart_ns, where=where, width=width, paint=paint))
    printing.write(told)
    sys.exit(compared.code)


def _ask(host: str, port: int, timeout_s: float, out: pathlib.Path | None) -> Snapshot:
    """One answer, kept where it is asked for.

    Raises:
        RasError: It cannot be had, kept or understood.
    """
    data = ras_client.fetch(host, port, timeout_s)
    name = f"ncclras_{_clock()}.{'json' if data.lstrip()[:1] == b'{' else 'txt'}"
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
            (out / name).write_bytes(data)
        except OSError as error:
            raise RasError(f"{out}: the answer cannot be kept: {error.strerror or error}; name another --out") from None
    snapshots, _, notes = ras.parse(data, name)
    if not snapshots:
        raise RasError(
            f"{host}:{port}: its answer is not understood: {data[:80].decode('utf-8', 'replace')!r};"
            " --out DIR keeps it for a report of this"
        )
    for note in notes:
        click.echo(f"roundk: {note}", err=True)
    return snapshots[0]


def _clock() -> str:
    """The time for a file's name: its `Z` tells the reader that it is UTC."""
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H-%M-%S.%f") + "Z"


def _wait(since_ns: int, interval_s: float) -> None:
    time.sleep(max(0.0, interval_s - (time.monotonic_ns() - since_ns) / NS_PER_S))
