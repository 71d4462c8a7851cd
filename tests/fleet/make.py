"""Write a tree of failed runs and the plan of what was planted in them.

python tests/fleet/make.py DIR --runs 300 --seed 1      DIR/runs (the tree), DIR/plan.json, DIR/plan.csv
"""

from __future__ import annotations

import argparse
import collections
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
for folder in (HERE, HERE.parent / "corpus", HERE.parent / "unit" / "analyze"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from planted import tree  # noqa: E402 - the path is set first


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="where to; must not hold a tree already")
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    plan = tree.make(arguments.folder, arguments.runs, arguments.seed)
    causes = collections.Counter(planned.truth.causes[0] for planned in plan.runs)
    for cause, count in causes.most_common():
        print(f"{cause:<20}{count:>5}")
    damaged = sum(planned.damage is not None for planned in plan.runs)
    print(f"{len(plan.runs)} runs, {damaged} of them damaged")


if __name__ == "__main__":
    main()
