"""A Ray cluster of two nodes with one processor each, for as long as standard input is open: prints a line of JSON.

It must be told a folder of its own by RAY_TMPDIR, with a short path (Ray puts sockets below it). The line has
its address and the process ids of the nodes' raylets.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys

from ray.cluster_utils import Cluster

QUICK = {"health_check_period_ms": 500, "health_check_failure_threshold": 4, "health_check_initial_delay_ms": 500}
SMALL = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False}


def raylet(node):
    return node.all_processes["raylet"][0].process.pid


def main():
    (pathlib.Path(os.environ["RAY_TMPDIR"]) / "ray").mkdir()  # Ray leaves that to `ray start`
    cluster = Cluster(initialize_head=True, head_node_args={**SMALL, "_system_config": QUICK}, connect=False)
    try:
        second = cluster.add_node(**SMALL)
        print(json.dumps({"address": cluster.address, "head": raylet(cluster.head_node), "second": raylet(second)}))
        sys.stdout.flush()
        sys.stdin.read()
    finally:
        cluster.shutdown()


main()
