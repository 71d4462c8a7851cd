"""Closes every descriptor, has files of its own at the same numbers, then all that makes the recorder write happens.

Its last call is made after the recorder has said goodbye. Prints the numbers at which something else was written.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import pathlib
import sys
import time

CONTENT = b"the job's own"


@atexit.register  # before roundk's own: it runs after that
def call_at_the_end() -> None:
    dist.all_reduce(torch.ones(4))
    print("called at the end", flush=True)


import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


def begin() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.ones(4))


def main() -> None:
    folder, stall_s = pathlib.Path(sys.argv[1]), float(sys.argv[2])
    begin()
    time.sleep(1)  # the recorder's thread opens what it keeps
    dist.destroy_process_group()
    top = max(int(path.name) for path in pathlib.Path("/proc/self/fd").iterdir())
    os.closerange(3, top + 1)
    paths = {}
    while top not in paths and len(paths) < top:  # the recorder may have opened one anew meanwhile
        path = folder / f"own{len(paths)}"
        number = os.open(path, os.O_RDWR | os.O_CREAT)
        os.write(number, CONTENT)
        paths[number] = path
    begin()
    for site in range(300):  # more places in the code than the side file has room for
        exec(f"{chr(10) * site}dist.all_reduce(torch.ones({site + 1}))", {"dist": dist, "torch": torch})
    for _ in range(4):  # more rows than the first segment has
        for _ in range(1_500):
            dist.all_reduce(torch.ones(4))
        time.sleep(0.2)
    time.sleep(1.5 * stall_s)
    ctypes.PyDLL(None).usleep(int(1.5e6 * stall_s))  # keeps the GIL: faulthandler's timer comes
    print("damaged:", [number for number, path in paths.items() if path.read_bytes() != CONTENT], flush=True)
    print("closed:", [number for number in paths if not is_own(number, paths[number])], flush=True)


def is_own(number: int, path: pathlib.Path) -> bool:
    try:
        return os.path.samestat(os.fstat(number), path.stat())
    except OSError:
        return False


if __name__ == "__main__":
    main()
