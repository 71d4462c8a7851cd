"""A user's own modules keep their names: `hooks`, `tracer` and `analyze` are common ones."""

from __future__ import annotations

import harness

FILES = {
    "hooks.py": "NAME = 'the user\\'s hooks'\n",
    "tracer/__init__.py": "from tracer import ring\n\nNAME = ring.NAME\n",
    "tracer/ring.py": "NAME = 'the user\\'s tracer'\n",
    "analyze.py": "NAME = 'the user\\'s analyze'\n",
    "train.py": """
import analyze, hooks, tracer
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for _ in range(5):
    dist.all_reduce(torch.ones(8))
with open(f"seen-by-{dist.get_rank()}", "w") as file:  # ranks share a stream: printed lines may run into each other
    file.write("\\n".join(f"{module.NAME} from {module.__file__}" for module in (hooks, tracer, analyze)))
dist.destroy_process_group()
""",
}


def test_a_project_with_modules_named_like_ours_runs_untouched(start, tmp_path):
    project = tmp_path / "project"
    for name, text in FILES.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    run_dir = tmp_path / "run"
    ended = start(harness.torchrun("train.py", ranks=2), cwd=project, dir=run_dir).wait()
    assert ended.code == 0, ended.stderr
    wanted = {f"the user's {name.split('/')[0].removesuffix('.py')} from {project / name}" for name in list(FILES)[:2]}
    wanted.add(f"the user's analyze from {project / 'analyze.py'}")
    for rank in range(2):
        assert set((project / f"seen-by-{rank}").read_text().splitlines()) == wanted
    assert {name: (project / name).read_text() for name in FILES} == FILES
    analysis = harness.analyze(run_dir)
    assert (analysis.code, analysis.report["coverage"]["ranks_seen"]) == (0, 2)
