"""Damage: what disks, full quotas, broken copies and strangers do to a run, and how much is left to read."""

from __future__ import annotations

import pickle
import re
import tarfile

from planted.plan import NOTHING, PARTLY, WHOLE

DUMP = re.compile(r"(?:nccl_trace_rank|comm_lib_trace_rank|_dump)_\d+(?:\.json)?")
"""Names by which a dump is one, whatever it holds."""
KEPT_BYTES = 24
"""Of an archive of which nothing is left: less than its header."""
GARBAGE_BYTES = 3000


class _Refused:
    """A pickle that would run something."""

    def __reduce__(self):
        return (print, ("this must never be printed",))


def _dumps(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file() and DUMP.fullmatch(path.name))


def _files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _some(rng, paths):
    return rng.sample(paths, max(1, len(paths) // 4))


def _each(paths, content):
    for path in paths:
        path.write_bytes(content())
    return PARTLY, tuple(sorted(int(re.search(r"\d+(?=\D*$)", path.name)[0]) for path in paths))


def _garbage(rng):
    return b"\x00\xff\xfe" + rng.randbytes(GARBAGE_BYTES)


def dumps_emptied(rng, folder):
    """All files are there and empty: the disk was full."""
    for path in _files(folder):
        path.write_bytes(b"")
    return NOTHING, ()


def some_dumps_emptied(rng, folder):
    return _each(_some(rng, _dumps(folder)), lambda: b"")


def all_garbage(rng, folder):
    for path in _files(folder):
        path.write_bytes(_garbage(rng))
    return NOTHING, ()


def some_garbage(rng, folder):
    return _each(_some(rng, _dumps(folder)), lambda: _garbage(rng))


def all_refused(rng, folder):
    """Dumps that would run code when unpickled, and no log."""
    for path in _files(folder):
        if DUMP.fullmatch(path.name):
            path.write_bytes(pickle.dumps(_Refused(), protocol=2))
        else:
            path.unlink()
    return NOTHING, ()


def some_refused(rng, folder):
    return _each(_some(rng, _dumps(folder)), lambda: pickle.dumps(_Refused(), protocol=2))


def log_not_utf8(rng, folder):
    """A log with lines of another encoding in it: no line that counts is lost."""
    for path in folder.rglob("job.log"):
        path.write_bytes(b"d\xe9marrage du travail \xff\xfe\n" + path.read_bytes() + b"\n\x80\x81 fin\n")
    return WHOLE, ()


def arrow_cut(rng, folder):
    """The segments of a run directory are cut short."""
    for path in folder.rglob("*.arrow"):
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 10])
    return PARTLY, ()


def arrow_cut_on_one_rank(rng, folder):
    """The segments of one rank, or of one host's links, are cut short."""
    path = rng.choice(sorted(folder.rglob("*.arrow")))
    path.write_bytes(path.read_bytes()[:200])
    return PARTLY, ()


def _has_dumps(folder):
    return len(_dumps(folder)) >= 3 and not any(path.suffix == ".arrow" for path in _files(folder))


def _has_log(folder):
    return any(folder.rglob("job.log"))


def _has_arrow(folder):
    return any(folder.rglob("*.arrow"))


DAMAGES = {
    dumps_emptied: _has_dumps,
    some_dumps_emptied: _has_dumps,
    all_garbage: _has_dumps,
    some_garbage: _has_dumps,
    all_refused: _has_dumps,
    some_refused: _has_dumps,
    log_not_utf8: _has_log,
    arrow_cut: _has_arrow,
    arrow_cut_on_one_rank: _has_arrow,
}
"""Damage -> whether a folder has what it is done to."""

ARCHIVE_DAMAGES = {"archive_cut": PARTLY, "archive_cut_to_its_header": NOTHING}


def do(rng, folder):
    """Damage the files of a run in a way that they have room for: (name, what can be read, ranks whose dumps went)."""
    fitting = [damage for damage, fits in DAMAGES.items() if fits(folder)]
    if not fitting:
        return None, WHOLE, ()
    damage = rng.choice(fitting)
    return damage.__name__, *damage(rng, folder)


def cut_archive(rng, path, name):
    """Damage a finished archive."""
    data = path.read_bytes()
    kept = KEPT_BYTES if name == "archive_cut_to_its_header" else int(len(data) * rng.uniform(0.3, 0.8))
    path.write_bytes(data[:kept])
    return ARCHIVE_DAMAGES[name]


def pack(folder, path):
    """The files of a run as an archive; what they were packed from goes."""
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for one in _files(folder):
            archive.add(one, f"{path.name.removesuffix('.tar.gz')}/{one.relative_to(folder)}")
