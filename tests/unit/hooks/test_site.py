"""The folder on the job's PYTHONPATH: what is told where it cannot be written."""

from __future__ import annotations

import errno
import shutil

import pytest

from roundk.hooks import config, site


def test_a_full_disk_is_told_in_one_short_sentence(tmp_path, monkeypatch):
    def full(source, to, **_):
        raise OSError(errno.ENOSPC, "No space left on device", str(to))

    monkeypatch.setattr(shutil.copytree, "__defaults__", (False, None, full, False, False))
    with pytest.raises(OSError, match="No space left on device") as raised:
        site.make(str(tmp_path / "site"), config.Config(str(tmp_path)))
    told = str(raised.value)
    assert len(told) < 400
    assert told.count("No space left") == 1
    assert "more like it" in told
