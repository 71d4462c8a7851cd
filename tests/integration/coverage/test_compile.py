"""torch.compile makes the same graphs with roundk as without, and does not look into our code."""

from __future__ import annotations

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).parent


def test_the_same_graphs_come_out_with_roundk_as_without(start, tmp_path):
    made = {}
    for roundk in (False, True):
        job = start(
            [sys.executable, str(HERE / "compiled.py")],
            roundk=roundk,
            dir=tmp_path / "run" if roundk else None,
            env={"STORE": str(tmp_path / f"store-{roundk}")},
        )
        ended = job.wait()
        assert ended.code == 0, ended.stderr
        made[roundk] = json.loads(ended.stdout.splitlines()[-1])
        assert "hooks/" not in ended.stderr.replace("roundk run", "")
    assert list((tmp_path / "run").glob("*/rank-00000-*.arrow"))
    frames = {roundk: [functions.pop("frames") for functions in made[roundk].values()] for roundk in made}
    assert made[True] == made[False]
    # What we wrap is not looked into any more, and none of our frames is.
    assert all(with_us <= without for with_us, without in zip(frames[True], frames[False], strict=True))
