"""What came from files, made harmless: for a terminal, for a page, for Markdown."""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
import re
from collections.abc import Sequence
from typing import Final

_MARKS: Final = re.compile(r"([\\`*\[\]|~])|\b_|_\b")
_LINKED: Final = re.compile(r"(?:[A-Za-z_]\w*[ ])?\#\d+ | \S*@\S* | \S*://\S*", re.VERBOSE)
"""What forges and chats make links or calls of: `all_reduce #5`, `@name`, addresses."""


def printable(text: str) -> str:
    """The text with what a terminal would obey, or could not show, written out by its number."""
    return "".join(char if char == "\n" or char.isprintable() else ascii(char)[1:-1] for char in text)


class Html(str):
    """Text that is HTML already; any other is escaped where it enters a page."""

    __slots__ = ()


def page(text: str) -> Html:
    """Text as HTML that shows it."""
    return text if isinstance(text, Html) else Html(html.escape(printable(text), quote=True))


def element(tag: str, *inside: str, **attributes: str | float | None) -> Html:
    """An element of a page.

    Args:
        tag: Its name.
        *inside: What is in it, escaped unless it is `Html`.
        **attributes: Its attributes; `_` stands for `-`, a trailing one is left out, None: without this one.
    """
    told = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{page(str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Html(f"<{tag}{told}>{''.join(map(page, inside))}</{tag}>")


def document(title: str, styles: Sequence[str], script: str, *inside: str, **attributes: str) -> str:
    """A whole page that needs nothing else, of files of this package.

    Nothing but its script may run and nothing may be loaded, whatever a file, a host or a message is called.

    Args:
        title: Title of its window.
        styles: Names of its style sheets.
        script: Name of its script.
        *inside: What is in its `main`.
        **attributes: Attributes of its body.
    """
    files = importlib.resources.files(__package__)
    css = "\n".join(files.joinpath(name).read_text("utf-8") for name in styles)
    code = files.joinpath(script).read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = element(
        "head",
        Html('<meta charset="utf-8">'),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Html('<link rel="icon" href="data:,">'),
        element("title", title),
        Html(f"<style>{css}</style>"),
    )
    body = element("body", element("main", *inside), Html(f"<script>{code}</script>"), **attributes)
    return f'<!DOCTYPE html>\n<html lang="en">{head}{body}</html>'


def joined(*pieces: str) -> Html:
    """Pieces of a page one after the other."""
    return Html("".join(map(page, pieces)))


def markdown(text: str) -> str:
    """Text as a line of Markdown that shows it, and that no forge or chat makes links or calls of."""
    line = " ".join(printable(text).split())
    made, at = [], 0
    for match in _LINKED.finditer(line):
        made += [_marked(line[at : match.start()]), code(match[0])]
        at = match.end()
    return "".join([*made, _marked(line[at:])])


def code(text: str) -> str:
    """Text as a piece of code in a line of Markdown."""
    return "`" + " ".join(printable(text).split()).replace("`", "'").replace("|", "\\|") + "`"


def _marked(text: str) -> str:
    escaped = html.escape(text, quote=False).replace("&gt;", ">")
    return _MARKS.sub(lambda match: "\\" + match[0], escaped)
