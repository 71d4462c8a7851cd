"""The scenarios of the fault lab: what is done to a job, and what is true of it then.

A scenario draws its parameters (host, rank, place, amount) from the run's own random numbers, so a seed tells them all.
Ranks are numbered by host: in the form `4x2` host 1 has the ranks 2 and 3.
"""

from __future__ import annotations

import time

import inject
import lab
from board import Order
from stage import HOSTS, SUSTAINED_ROUNDS, SUSTAINED_S, Expected, Plan, Truth

# What may be said of a hang that a link or a stopped process leaves behind.
_INSIDE = ("ALL_ENTERED_NONE_COMPLETED", "PARTIAL_COMPLETION")
_HANGS = ("RANK_NOT_ENTERED", *_INSIDE)
_AMOUNT_SLOW_S = (0.2, 0.35)


def _link(host, device=lab.USED):
    return (lab.host_name(host), device)


def _rank_on(random, host, per_host):
    return host * per_host + random.randrange(per_host)


def _two_hosts(random):
    return random.sample(range(HOSTS), 2)


def healthy(random, per_host):
    def act(stage):
        stage.baseline()
        stage.sustain()

    return Plan(Truth((Expected(("HEALTHY",), (None,)),)), act, {})


def _flap(random, seconds):
    host, at = random.randrange(HOSTS), random.choice(("switch", "host"))

    def act(stage):
        stage.baseline()
        stage.for_a_while(f"link of h{host} down at the {at}", lambda: inject.link_down(host, at=at), seconds)
        stage.recover()

    truth = Truth((Expected(("SLOW_TRANSFER",), ("LINK_FLAP",), links=(_link(host),)),))
    return Plan(truth, act, {"host": host, "at": at, "seconds": seconds})


def flap_1s(random, per_host):
    return _flap(random, 1.0)


def flap_3s(random, per_host):
    return _flap(random, 3.0)


def link_down(random, per_host):
    host, at = random.randrange(HOSTS), random.choice(("switch", "host"))

    def act(stage):
        stage.baseline()
        stage.inject(f"link of h{host} down at the {at}", lambda: inject.link_down(host, at=at))
        stage.until_over()

    truth = Truth((Expected(_INSIDE, ("LINK_DOWN",), links=(_link(host),)),))
    return Plan(truth, act, {"host": host, "at": at})


def decoy_flap(random, per_host):
    host, at = random.randrange(HOSTS), random.choice(("switch", "host"))

    def act(stage):
        stage.baseline()
        stage.for_a_while(
            f"unused link of h{host} down at the {at}", lambda: inject.link_down(host, lab.SPARE, at=at), 1.0
        )
        stage.sustain()

    truth = Truth((Expected(("HEALTHY",), (None,)),), event=_link(host, lab.SPARE))
    return Plan(truth, act, {"host": host, "at": at})


def _stopped(rank):
    return Expected(_HANGS, ("PROCESS_STOPPED",), ranks=(rank,), details=("STOPPED",))


def decoy_stop(random, per_host):
    host, other = _two_hosts(random)
    rank, wait_s = _rank_on(random, other, per_host), random.uniform(0.0, 1.5)

    def act(stage):
        stage.baseline()
        clear = stage.inject(f"unused link of h{host} down", lambda: inject.link_down(host, lab.SPARE))
        time.sleep(wait_s)
        stage.inject(f"SIGSTOP to rank {rank}", lambda: inject.stop(stage.job.pid(rank)))
        time.sleep(max(0.0, 1.0 - wait_s))
        clear()
        stage.until_over()

    truth = Truth((_stopped(rank),), event=_link(host, lab.SPARE))
    return Plan(truth, act, {"host": host, "rank": rank, "wait_s": wait_s})


def flap_stop(random, per_host):
    host, other = _two_hosts(random)
    rank, during = _rank_on(random, other, per_host), random.random() < 1 / 2

    def act(stage):
        stage.baseline()
        clear = stage.inject(f"link of h{host} down", lambda: inject.link_down(host))
        if during:
            time.sleep(0.3)
            stage.inject(f"SIGSTOP to rank {rank}", lambda: inject.stop(stage.job.pid(rank)))
            time.sleep(0.7)
            clear()
        else:
            time.sleep(1.0)
            clear()
            stage.job.wait_for_rounds(10)
            stage.inject(f"SIGSTOP to rank {rank}", lambda: inject.stop(stage.job.pid(rank)))
        stage.until_over()

    truth = Truth((_stopped(rank),), tolerated=(_link(host),))
    return Plan(truth, act, {"host": host, "rank": rank, "during": during})


def stop_3s(random, per_host):
    rank = random.randrange(HOSTS * per_host)

    def act(stage):
        stage.baseline()
        stage.for_a_while(f"SIGSTOP to rank {rank}", lambda: inject.stop(stage.job.pid(rank)), 3.0)
        stage.recover()

    truth = Truth((Expected(("STRAGGLER",), ("PROCESS_STOPPED", "HOST_STALL"), ranks=(rank,)),))
    return Plan(truth, act, {"rank": rank})


def stop(random, per_host):
    rank = random.randrange(HOSTS * per_host)

    def act(stage):
        stage.baseline()
        stage.inject(f"SIGSTOP to rank {rank}", lambda: inject.stop(stage.job.pid(rank)))
        stage.until_over()

    return Plan(Truth((_stopped(rank),)), act, {"rank": rank})


def kill(random, per_host):
    rank = random.randrange(HOSTS * per_host)

    def act(stage):
        stage.baseline()
        stage.inject(f"SIGKILL to rank {rank}", lambda: inject.kill(stage.job.pid(rank)))
        stage.until_over()

    truth = Truth((Expected(_HANGS, ("PROCESS_KILLED",), ranks=(rank,), details=("DEAD",)),))
    return Plan(truth, act, {"rank": rank})


def half_cpu(random, per_host):
    rank, turn_s = random.randrange(HOSTS * per_host), random.uniform(0.2, 0.35)

    def act(stage):
        stage.baseline()
        clear = stage.inject(f"half the CPU for rank {rank}", lambda: inject.half_cpu(stage.job.pid(rank), turn_s))
        try:
            stage.for_rounds(SUSTAINED_S, SUSTAINED_ROUNDS)
        finally:
            clear()
        stage.job.finish()

    truth = Truth((Expected(("STRAGGLER",), ("HOST_SLOW", "HOST_STALL", "PROCESS_STOPPED"), ranks=(rank,)),))
    return Plan(truth, act, {"rank": rank, "turn_s": turn_s}, job={"pause_s": (0.1, 0.12)})


def sleep_3s(random, per_host):
    rank = random.randrange(HOSTS * per_host)

    def act(stage):
        stage.baseline()
        stage.inject(f"rank {rank} sleeps 3 s", lambda: stage.job.order(rank, Order.SLEEP, 3.0))
        time.sleep(3.0)
        stage.recover()

    truth = Truth((Expected(("STRAGGLER",), ("HOST_STALL",), ranks=(rank,)),))
    return Plan(truth, act, {"rank": rank})


def never(random, per_host):
    rank = random.randrange(HOSTS * per_host)

    def act(stage):
        stage.baseline()
        stage.inject(f"rank {rank} sleeps for good", lambda: stage.job.order(rank, Order.NEVER))
        stage.until_over()

    truth = Truth((Expected(("RANK_NOT_ENTERED",), ("HOST_STALL",), ranks=(rank,), details=("BUSY", "IDLE")),))
    return Plan(truth, act, {"rank": rank})


def skip(random, per_host):
    rank = random.randrange(HOSTS * per_host)

    def act(stage):
        stage.baseline()
        stage.inject(f"rank {rank} skips a call", lambda: stage.job.order(rank, Order.SKIP))
        stage.until_over()

    return Plan(Truth((Expected(("SKIPPED_CALL",), ("CODE_DIVERGENCE",), ranks=(rank,)),)), act, {"rank": rank})


def _slow_link(host, causes=("LINK_DEGRADED", "CONGESTION")):
    return Expected(("SLOW_TRANSFER",), causes, links=(_link(host),))


def _bad_wire(random, what, **rules):
    host = random.randrange(HOSTS)

    def act(stage):
        stage.baseline()
        stage.inject(f"{what} at h{host}", lambda: _set_wire(stage, rules))
        stage.sustain()

    # The wire is slower than a veth pair: less data, so that a healthy round takes as long as elsewhere.
    return Plan(Truth((_slow_link(host),)), act, {"host": host, **rules}, network={"wired": host}, job={"mib": 1})


def _set_wire(stage, rules):
    stage.network.wire.set(**rules)
    return stage.network.wire.set


def loss(random, per_host):
    if random.random() < 1 / 2:
        return _bad_wire(random, "loss", loss=random.uniform(0.05, 0.1))
    host, percent = random.randrange(HOSTS), random.uniform(6, 12)

    def act(stage):
        stage.baseline()
        stage.inject(f"{percent:.1f} % loss at h{host}", lambda: inject.loss(host, percent))
        stage.sustain()

    return Plan(Truth((_slow_link(host),)), act, {"host": host, "percent": percent})


def delay(random, per_host):
    return _bad_wire(random, "delay", delay_ms=random.uniform(15, 30))


def jitter(random, per_host):
    return _bad_wire(random, "jitter", jitter_ms=random.uniform(10, 25))


def reorder(random, per_host):
    return _bad_wire(random, "reordering", reorder=random.uniform(0.1, 0.2), hold_ms=random.uniform(10, 20))


def rate(random, per_host):
    host, mbit, at = random.randrange(HOSTS), random.randint(60, 120), random.choice(("switch", "host"))

    def act(stage):
        stage.baseline()
        stage.inject(f"{mbit} Mbit/s at the {at} of h{host}", lambda: inject.rate_limit(host, mbit, at=at))
        stage.sustain()

    return Plan(Truth((_slow_link(host),)), act, {"host": host, "mbit": mbit, "at": at})


_CUT = ("LINK_DOWN", "LINK_DEGRADED", "TRANSPORT_ERROR")


def one_way(random, per_host):
    # In gloo's ring a rank sends to the one before it: only these directions carry the job's data.
    source = random.randrange(HOSTS)
    target = (source - 1) % HOSTS

    def act(stage):
        stage.baseline()
        stage.inject(f"h{source} to h{target} cut", lambda: inject.one_way(source, target))
        stage.until_over()

    truth = Truth((Expected(_INSIDE, _CUT, links=(_link(source), _link(target))),))
    return Plan(truth, act, {"source": source, "target": target})


def black_hole(random, per_host):
    host = random.randrange(HOSTS)

    def act(stage):
        stage.baseline()
        stage.inject(f"port of h{host} drops everything", lambda: inject.black_hole(host))
        stage.until_over()

    truth = Truth((Expected(_INSIDE, _CUT, links=_ends_at(host)),))
    return Plan(truth, act, {"host": host})


def _ends_at(host):
    """The ends of the edges over a host's cable: the host's own, and its neighbours' in the ring."""
    return tuple(_link(one % HOSTS) for one in (host, host - 1, host + 1))


def mtu(random, per_host):
    host, form = random.randrange(HOSTS), random.choice(("from the start", "at the switch", "at the host"))

    def act(stage):
        if form == "from the start":
            stage.begin()
        else:
            stage.baseline()
            at = form.split()[-1]
            stage.inject(f"MTU 1500 instead of 9000 {form} of h{host}", lambda: inject.mtu(host, 1500, at=at))
        stage.until_over()

    truth = Truth((Expected(_INSIDE, ("MTU_MISMATCH",), links=_ends_at(host)),))
    network = {"mtu": 9000, "segmentation": False, "small": host if form == "from the start" else None}
    return Plan(truth, act, {"host": host, "form": form}, network=network)


def slow_both(random, per_host):
    host, other = _two_hosts(random)
    rank, mbit, amount_s = _rank_on(random, other, per_host), random.randint(60, 120), random.uniform(*_AMOUNT_SLOW_S)

    def act(stage):
        stage.baseline()
        stage.inject(f"{mbit} Mbit/s to h{host}", lambda: inject.rate_limit(host, mbit))
        stage.inject(f"rank {rank} is {amount_s:.2f} s slower", lambda: stage.job.order(rank, Order.SLOW, amount_s))
        stage.sustain()

    straggler = Expected(("STRAGGLER",), ("HOST_STALL", "HOST_SLOW"), ranks=(rank,))
    truth = Truth((straggler, _slow_link(host)), any_order=True)
    return Plan(truth, act, {"host": host, "rank": rank, "mbit": mbit, "amount_s": amount_s})


def slow_rank(random, per_host):
    rank, amount_s = random.randrange(HOSTS * per_host), random.uniform(*_AMOUNT_SLOW_S)

    def act(stage):
        stage.baseline()
        stage.inject(f"rank {rank} is {amount_s:.2f} s slower", lambda: stage.job.order(rank, Order.SLOW, amount_s))
        stage.sustain()

    truth = Truth((Expected(("STRAGGLER",), ("HOST_STALL", "HOST_SLOW"), ranks=(rank,)),))
    return Plan(truth, act, {"rank": rank, "amount_s": amount_s})


ALL = {
    scenario.__name__: scenario
    for scenario in (
        healthy,
        flap_1s,
        flap_3s,
        link_down,
        decoy_flap,
        decoy_stop,
        flap_stop,
        stop_3s,
        stop,
        kill,
        half_cpu,
        sleep_3s,
        never,
        skip,
        loss,
        delay,
        jitter,
        rate,
        reorder,
        one_way,
        black_hole,
        mtu,
        slow_rank,
        slow_both,
    )
}
