"""`roundk run [OPTIONS] -- COMMAND...`."""

from __future__ import annotations

import os

import click

from roundk.hooks import config, launch
from roundk.tracer import rundir


@click.command(name="run", context_settings={"allow_interspersed_args": False})
@click.option("--dir", "directory", metavar="DIR", help="Run directory. Default: roundk-runs/<time>-<pid>.")
@click.option(
    "--max-mb",
    default=config.DEFAULT_MAX_MB,
    show_default=True,
    type=click.IntRange(min=16),
    help="Disk per rank in MiB; beyond it the oldest calls are deleted.",
)
@click.option(
    "--stall-s",
    default=config.DEFAULT_STALL_S,
    show_default=True,
    type=click.FloatRange(min=0.1),
    help="Seconds in a call, or without one, after which a rank writes its Python stacks.",
)
@click.option("--no-logs", is_flag=True, help="Do not keep the job's stdout and stderr in the run directory.")
@click.option("--no-links", is_flag=True, help="Do not sample the counters of this host's network links.")
@click.option(
    "--sysfs-root",
    metavar="DIR",
    default="/sys",
    show_default=True,
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    help="Read the counters of links under this directory: a recorded tree, with /proc beside it in DIR/../proc.",
)
@click.option("--host-name", metavar="NAME", help="Record under this name rather than the machine's own.")
@click.option(
    "--nccl-debug",
    type=click.Choice(["warn", "info"], case_sensitive=False),
    help="Have NCCL write its log into the run directory, unless NCCL_DEBUG and NCCL_DEBUG_FILE are set.",
)
@click.argument("command_line", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def command(  # noqa: PLR0913 - one per option
    context: click.Context,
    *,
    directory: str | None,
    max_mb: int,
    stall_s: float,
    no_logs: bool,
    no_links: bool,
    sysfs_root: str,
    host_name: str | None,
    nccl_debug: str | None,
    command_line: tuple[str, ...],
) -> None:
    """Run COMMAND with every torch.distributed call of its ranks recorded.

    Nothing in the job changes: same streams, signals and exit code. On several hosts, run it on each with the same
    directory on a shared file system, or copy the hosts' folders into one directory before they are analysed.

    Example: roundk run -- torchrun --nproc-per-node 8 train.py
    """
    level = nccl_debug.upper() if nccl_debug else None
    if host_name:
        os.environ[rundir.HOST_VARIABLE] = host_name  # for the ranks too
    root = None if no_links else sysfs_root
    context.exit(
        launch.run(command_line, directory, max_mb, stall_s, logs=not no_logs, sysfs_root=root, nccl_debug=level)
    )
