"""The `roundk` command: the one place that knows both sides, each command imported when it is called."""

from __future__ import annotations

import importlib
import sys
from typing import Final, cast

import click

from roundk.tracer.errors import RoundkError

_COMMANDS: Final = {
    "analyze": ("roundk.analyze.commands.analyze", "Name the rank that hangs or slows a run, and say why."),
    "batch": ("roundk.analyze.commands.batch", "Judge many failed runs, and say what they have in common."),
    "diff": ("roundk.analyze.commands.diff", "Show what differs between a good and a failed run."),
    "explain": ("roundk.analyze.commands.explain", "Say what a name in a verdict means, and what to do then."),
    "links": ("roundk.analyze.commands.links", "Show the links of a run: ports that went down, counters that moved."),
    "ras": ("roundk.analyze.commands.ras", "Ask a running job's NCCL RAS who is behind, gone, or does not move."),
    "show": (
        "roundk.analyze.commands.show",
        "Show what was found: files by kind, ranks, groups, times, what is unreadable.",
    ),
    "run": ("roundk.hooks.command", "Run a command and record every torch.distributed call of its ranks."),
}
_EXIT_USAGE: Final = 2
_EXIT_INTERRUPTED: Final = 130
"""128 and SIGINT, as shells have it; click's own, 1, means that something was found."""


class _LazyGroup(click.Group):
    """A group whose commands are imported only when called: `run` must not load polars, nor `analyze` the hooks."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("roundk: interrupted", err=True)
            sys.exit(_EXIT_INTERRUPTED)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _ = _COMMANDS[cmd_name]
        return cast("click.Command", importlib.import_module(module).command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # click's own would import every command to ask for its help line.
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="roundk")
def group() -> None:
    """Find the rank that never entered round k of a torch.distributed job, and say why."""


def main() -> None:
    """Run the command line: errors of ours become a message on stderr and exit code 2."""
    try:
        group(prog_name="roundk")
    except RoundkError as error:
        from roundk.analyze.commands.printing import printable

        click.echo(f"roundk: {printable(str(error))}", err=True)
        sys.exit(_EXIT_USAGE)
