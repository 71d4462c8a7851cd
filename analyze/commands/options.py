"""Options that several commands share."""

from __future__ import annotations

import re
from typing import Any

import click


def not_empty(ctx: click.Context | None, param: click.Parameter | None, value: Any) -> Any:
    """The value, or an error for the empty name that a variable leaves which was not set."""
    if value is not None and any(not str(one).strip() for one in (value if isinstance(value, tuple) else (value,))):
        raise click.BadParameter("is empty; was a variable not set?", ctx, param)
    return value


def _compiled(ctx: click.Context, param: click.Parameter, text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise click.BadParameter(f"{text!r} is not a regular expression: {error}", ctx, param) from None
    if pattern.groups < 1:
        example = r"node\d+_(\d+)\.dump"
        raise click.BadParameter(f"{text!r} has no group around the rank's digits, as {example!r} has", ctx, param)
    return pattern


rank_pattern = click.option(
    "--rank-pattern",
    callback=_compiled,
    metavar="REGEX",
    help="Finds the rank in a dump's path, by its first group. Without it: the last integer of the file's name.",
)
