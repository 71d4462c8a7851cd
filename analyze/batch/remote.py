"""Object stores and whatever else fsspec reaches by URL: listing, the first bytes, downloading, and what goes wrong.

The one place that knows fsspec, which has no types. Credentials, endpoint and region are what the user's environment
and fsspec's configuration say. s3fs and gcsfs try a throttled request again by themselves, for seconds; what comes
out of them is tried again here, for longer, within a bound.
"""

from __future__ import annotations

import errno
import importlib
import pathlib
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from roundk.analyze.batch.run import File
from roundk.tracer.errors import RunError

TRIES: Final = 3
"""How often something is asked for. Each time s3fs asks a store that throttles 25 times within 30 s: its own five tries
by botocore's five."""
FIRST_WAIT_S: Final = 1.0
"""Before the second try; doubled each time, and drawn at random, so that workers do not come back all at once."""
LONGEST_WAIT_S: Final = 20.0
PATIENCE_S: Final = 60.0
"""Without any answer to any request of a run: a store that is out for longer would hold up all other runs."""

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?:://|::)")
_LOCAL: Final = re.compile(r"(?:file|local)://(?=/)")
BUSY: Final = "the store does not answer or throttles requests ({why}); run it again later"
_MISSING: Final = "reading {url} needs more packages: pip install 'roundk[remote]' ({why})"
_BUSY: Final = frozenset(
    {errno.EBUSY, errno.EAGAIN, errno.EIO, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.ETIMEDOUT}
    | ({errno.EREMOTEIO} if hasattr(errno, "EREMOTEIO") else set())
)
"""Errors that pass: s3fs makes EBUSY of `SlowDown` and 503, EREMOTEIO of `InternalError` and 500."""
_BUSY_CODES: Final = frozenset({408, 429, 500, 502, 503, 504})
_FOREIGN: Final = (
    ("botocore.exceptions", ("BotoCoreError", "ClientError")),
    ("gcsfs.retry", ("HttpError",)),
    ("google.auth.exceptions", ("GoogleAuthError",)),
    ("aiohttp", ("ClientError",)),
)
_LOST: Final = re.compile(r"Connection|HTTPClient|Timeout|ServerDisconnected|Payload|IncompleteRead")
"""Names of the exceptions of botocore and aiohttp that tell of a connection that was lost."""
_MOST_TEXT: Final = 300

_T = TypeVar("_T")


def is_url(name: str) -> bool:
    """Whether a root is to be reached through fsspec; `file://` is a local path."""
    return _URL.match(name) is not None and _LOCAL.match(name) is None


def local(name: str) -> str:
    """A local root without the scheme that it may have."""
    return _LOCAL.sub("", name)


class Patience:
    """How long the requests of one run may go without any answer, all together."""

    def __init__(self) -> None:
        """Begin with all of it."""
        self._since: float | None = None
        self._lock = threading.Lock()

    @property
    def is_over(self) -> bool:
        """Whether it has come to its end."""
        since = self._since
        return since is not None and time.monotonic() - since > PATIENCE_S

    def answered(self) -> None:
        """The store has answered something: it is all there again."""
        if not self.is_over:
            self._since = None

    def wait(self, tries: int, began: float) -> bool:
        """Wait before another try, after one that began then; False: there shall be none."""
        with self._lock:
            self._since = began if self._since is None else self._since
        if self.is_over or tries + 1 >= TRIES:
            return False
        wait_s = min(FIRST_WAIT_S * 2**tries, LONGEST_WAIT_S)
        time.sleep(wait_s * (0.5 + random.random() / 2))  # noqa: S311 - no secret
        return True


class Store:
    """What holds the objects below a URL."""

    def __init__(self, url: str) -> None:
        """Find the file system of a URL.

        Raises:
            RunError: there is none for it, or not without more packages.
        """
        try:
            fsspec = importlib.import_module("fsspec")
            self._fs: Any
            self._fs, self.path = fsspec.core.url_to_fs(url)
            self.url = str(self._fs.unstrip_protocol(self.path)).rstrip("/")
        except ImportError as error:
            raise RunError(_MISSING.format(url=url, why=error)) from error
        except errors(ValueError) as error:
            raise RunError(f"{url}: {said(error)}") from error

    def listed(self, patience: Patience) -> Iterator[tuple[str, File]]:
        """Every object below the URL, with its path below it; of one object: its name.

        Raises:
            One of `errors()`: it cannot be listed.
        """
        self._fs.invalidate_cache()
        found = retried(lambda: self._fs.find(self.path, detail=True), patience)
        top = self.path.rstrip("/")
        for path, info in sorted(found.items()):
            name = path.removeprefix(top).lstrip("/") if path != top else path.rsplit("/", 1)[-1]
            # A store's console makes an empty object `folder/` for each folder.
            if info.get("type") == "file" and name and not path.endswith("/"):
                url = self._fs.unstrip_protocol(path)
                yield name, File(url, int(info.get("size") or 0), _version(info))

    def head(self, url: str, size: int) -> bytes:
        """The first bytes of an object.

        Raises:
            One of `errors()`: it cannot be read.
        """
        data: bytes = self._fs.cat_file(self._fs._strip_protocol(url), start=0, end=size)  # noqa: SLF001 - as fsspec does
        return data

    def download(self, url: str, path: pathlib.Path) -> None:
        """Copy an object to a local file, whole or not at all.

        Raises:
            One of `errors()`: it cannot be read, or the file cannot be written.
        """
        part = path.with_name(path.name + ".part")
        try:
            self._fs.get_file(self._fs._strip_protocol(url), str(part))  # noqa: SLF001 - as fsspec does
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def _version(info: dict[str, Any]) -> str:
    names = ("ETag", "etag", "md5Hash", "generation", "LastModified", "mtime", "updated", "created")
    return str(next((info[name] for name in names if info.get(name)), ""))


def errors(*more: type[BaseException]) -> tuple[type[BaseException], ...]:
    """What the file systems raise: OSError, and what the packages that are loaded have of their own; and more."""
    found: list[type[BaseException]] = [OSError, *more]
    for module, names in _FOREIGN:
        if module in sys.modules:
            found += [getattr(sys.modules[module], name) for name in names]
    return tuple(found)


def passes(error: BaseException) -> bool:
    """Whether an error is one that another try may not meet: throttling, a lost connection, an error in the server."""
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError):
        return False
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if isinstance(error, OSError):
        return error.errno in _BUSY
    code = getattr(error, "code", None)
    if isinstance(code, int | str) and str(code).isdecimal():
        return int(code) in _BUSY_CODES
    return any(_LOST.search(kind.__name__) for kind in type(error).__mro__)


def retried(action: Callable[[], _T], patience: Patience) -> _T:
    """Do what may be throttled, again with growing waits, as long as patience lasts.

    Raises:
        One of `errors()`: the last one.
    """
    for tries in range(TRIES):
        began = time.monotonic()
        try:
            result = action()
        except errors() as error:
            if not passes(error):
                patience.answered()
                raise
            if not patience.wait(tries, began):
                raise
        else:
            patience.answered()
            return result
    raise AssertionError  # the last try returns or raises


def said(error: BaseException) -> str:
    """What an error says, in a line."""
    text = (error.strerror if isinstance(error, OSError) and error.strerror else None) or str(error)
    return " ".join(text.split())[:_MOST_TEXT] or type(error).__name__
