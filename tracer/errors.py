"""The errors of roundk. The command line turns them into a message and an exit code; nothing else catches the root."""

from __future__ import annotations


class RoundkError(Exception):
    """Root of all errors that a user may see: says what, where, what was there instead and what to try."""


class RunError(RoundkError):
    """A run directory that cannot be read or written."""
