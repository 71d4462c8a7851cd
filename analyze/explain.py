"""What the names of a verdict mean, need, and can be mistaken for: the texts of `roundk explain`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from roundk.analyze.names import Cause, Detail, Structure

KINDS: Final = {
    "structure": "who and where",
    "detail": "a structure said more closely",
    "cause": "why",
}
"""The kinds of names, and the question that each answers."""


@dataclass(frozen=True)
class Meaning:
    """What there is to say about a name.

    Attributes:
        line: It in one line.
        means: What was seen.
        needs: What has to be recorded for it to be said, and what makes it less sure.
        mistaken: What looks alike and is something else.
        then: What to do next.

    An empty text: there is nothing to say.
    """

    line: str
    means: str
    needs: str
    mistaken: str
    then: str


@dataclass(frozen=True)
class Entry:
    """A name of the verdict contract with its meaning; one name may be of two kinds."""

    name: str
    kind: str
    meaning: Meaning


_STRUCTURES: Final = {
    "HEALTHY": Meaning(
        "nothing is open, and the job ended in order",
        "Every recorded call ended, the ranks agree on what they called, and the job ended by itself without an error.",
        "A recording that reaches to the end of the job: the end marker of a run directory, or exit codes.",
        "A job that computed nonsense, or was slow all along with all ranks alike: that shows in no call.",
        "Nothing. If the job was slow all the same, compare its steps with those of an earlier run.",
    ),
    "IN_PROGRESS": Meaning(
        "calls are open, but not for long enough to call it a hang",
        "The source shows a job that lives, and its oldest open call is younger than `--stall-s` (30 s).",
        "A run directory without an end marker, or a live poll. What a dead job left behind is never in progress.",
        "A hang that has only begun; a first step that compiles, or a save, which takes minutes.",
        "Ask again after a minute. The same round, still open, is a hang.",
    ),
    "RANK_NOT_ENTERED": Meaning(
        "ranks wait in a round that this rank never entered",
        "Members of a group wait in a collective (or in a send or receive), this member's call is not there, and it "
        "waits for nobody itself. Blame follows who waits for whom through all groups: this is where it ends. The "
        "detail says what the rank was doing: IDLE, BUSY, DEAD, STOPPED, EXITED_EARLY or SILENT.",
        "The calls of all members, or for an absent one how it ended; a recording of that rank that reaches back "
        "before the round. It is less sure where a recording is incomplete, or where nothing proves that the waiting "
        "lasted.",
        "A rank that is late (STRAGGLER); one that is held up in another group, which makes it a victim; one that "
        "called something else (SKIPPED_CALL); a ring buffer that has overwritten the call.",
        "Look at that rank and only there. Its Python stack says most: take one with `py-spy dump --pid PID` while it "
        "hangs. The timeouts of all the others are echoes.",
    ),
    "DEVICE_STUCK": Meaning(
        "it entered, but its completions stop short of its peers': GPU, stream or driver",
        "The rank handed the same calls to the backend as its peers did, and the counter of what it completed stands "
        "behind theirs in two groups, or in one for over a second while all others got through.",
        "Counters of completed collectives (`pg_status` of Flight Recorder dumps, or watchdog lines) of several "
        "members, of groups without send and receive.",
        "A watchdog that was polled a moment apart (a short lag in one group is not believed); a rank whose "
        "interpreter is locked, so that nobody notes completions: then it enters nothing new either.",
        "Look for Xid lines in the kernel log and at `nvidia-smi -q` of that GPU. Run again without that host before "
        "looking at the code.",
    ),
    "KERNEL_NOT_STARTED": Meaning(
        "everybody entered, and this rank's kernel never started",
        "All members handed the call to the backend. On the others the device began with it; on this one it did not: "
        "something before it on the same stream does not end.",
        "Start times of the device (`TORCH_NCCL_ENABLE_TIMING=1`, or a recording that has them) for this rank and its "
        "peers. Without them a missing start says nothing.",
        "ALL_ENTERED_NONE_COMPLETED, where starts are not recorded; a rank that waits in another group's call on the "
        "same stream, which makes it a victim.",
        "Look at what the rank launched before this call: a compute kernel that does not end, a wait for an event of "
        "another stream. `py-spy dump` and cuda-gdb on the process.",
    ),
    "ALL_ENTERED_NONE_COMPLETED": Meaning(
        "everybody is in the round, and nobody got out",
        "All members entered the same round with calls that agree, and none completed it. The fault lies below: "
        "network, device or library. Which of them, the calls alone cannot tell.",
        "The calls of all members. Only a member that died, was stopped or failed by itself inside is blamed.",
        "A mismatch that was not recorded (uneven sizes of an all_to_all); a member that was stopped inside.",
        "Look at the NCCL log for WARN lines, at link counters of the hosts in the group, and for Xid lines. With "
        "`NCCL_DEBUG=WARN` the next hang tells the peer.",
    ),
    "PARTIAL_COMPLETION": Meaning(
        "everybody is in the round, some got out and some did not",
        "Members completed the round while others still hang in it. In a ring those who hang lie next to each other; "
        "the fault is near them, not necessarily theirs.",
        "Ends of the calls, recorded on all members. Without step counters it cannot be said which link it is.",
        "A broadcast's source or a sender of small messages, which gets out early by design; ends that were not "
        "recorded any more.",
        "Look at the hosts of those who hang and their neighbours: link counters, NCCL WARN lines, Xid lines.",
    ),
    "ORDER_DEADLOCK": Meaning(
        "ranks wait for each other in a circle; no single rank is guilty",
        "Rank A waits in one group for rank B, which waits in another group for rank A, or longer. The order of calls "
        "differs between ranks. A minority with its order is named in the evidence, and not blamed.",
        "The open calls of all ranks of the circle, each in its own group.",
        "One missing rank with many victims, where the chain ends; two sends with nobody receiving.",
        "Give all ranks the same order of groups, or put the sends and receives into one `batch_isend_irecv`. The "
        "lines of code are in the report.",
    ),
    "SIGNATURE_MISMATCH": Meaning(
        "one round, different calls: another operation, size, type, root or reduction",
        "The members of one round did not call the same thing. The detail says what differs: OP, SIZE, DTYPE, ROOT or "
        "REDUCE_OP. The minority is named; of two halves, both sides are named and nobody is blamed.",
        "The arguments of the calls of several members. It is judged at the first round that differs, which may come "
        "long before the one that hangs.",
        "all_to_all, gather and scatter of uneven sizes, which are legal; a sequence that is shifted by a call "
        "(SKIPPED_CALL, EXTRA_CALL), where every later round differs too.",
        "Compare the two call sites and the data that led there: a last batch that is smaller, a branch on data.",
    ),
    "EXTRA_CALL": Meaning(
        "from this round on the rank is ahead: it made a call that its peers did not",
        "The rank's calls match its peers' once a call of its own is left out; or its call sites differ from theirs "
        "from this round on. It hangs in a later round, alone or with the wrong partners.",
        "Call sites, or calls different enough to line up again after the shift; several rounds after it.",
        "SIGNATURE_MISMATCH, where only one round differs; RANK_NOT_ENTERED with everybody else missing.",
        "Look at the call site that is named: a collective inside `if rank == 0`, one iteration too many, a save on "
        "one rank only.",
    ),
    "SKIPPED_CALL": Meaning(
        "from this round on the rank is behind: it left out a call that its peers made",
        "The rank's calls match its peers' once a call of theirs is left out; or its call sites differ from theirs "
        "from this round on. The hang comes later, when the numbers run out.",
        "Call sites, or calls different enough to line up again after the shift; several rounds after it.",
        "RANK_NOT_ENTERED: where all calls look alike, a skipped call shows only as one that is missing at the end.",
        "Look at the condition, `continue` or exception handler around the call that was left out; uneven data is the "
        "usual reason.",
    ),
    "GROUP_MEMBERSHIP_CONFLICT": Meaning(
        "ranks disagree on who is in a group",
        "One name of a group goes with different members on different ranks, and they wait for each other in it.",
        "Member lists as several ranks have them.",
        "Groups that have the same name by design, as every rank's own tensor-parallel group does: their members do "
        "not overlap.",
        "Make all groups on all ranks in the same order; look at the code that computes the member lists.",
    ),
    "P2P_UNPAIRED": Meaning(
        "a send or receive that nobody answers any more",
        "A rank waits in a send or receive, and the other side has left, died, or never made the matching call.",
        "The calls of both sides. A receive from any source waits for all who could send, and blames none of them "
        "unless only one could.",
        "A circle of receives (ORDER_DEADLOCK); a pipeline stage that is late.",
        "Compare the number of sends and receives between these two ranks, by step: the schedules of the stages "
        "disagree.",
    ),
    "STUCK_IN_INIT": Meaning(
        "the process group never came to be",
        "Ranks wait in `init_process_group` or `new_group`: somebody never called it, or everybody did and nobody "
        "came back.",
        "Calls that make groups (a run directory), or log lines of the rendezvous and of NCCL's start.",
        "A slow start: importing torch from a shared file system takes minutes; a wrong world size, where a rank waits "
        "for one that does not exist.",
        "Check MASTER_ADDR, MASTER_PORT, WORLD_SIZE and that the ranks reach each other; NCCL_SOCKET_IFNAME where a "
        "host has several networks. Then the log of who never called it.",
    ),
    "STUCK_OUTSIDE": Meaning(
        "no call is open anywhere, and nothing moves",
        "The ranks are alive, none is inside a collective, and no step ends any more: the job hangs in something that "
        "is not torch.distributed.",
        "A recording that goes on after the last call, with the end of every call.",
        "A long save, a validation on the CPU, a compile: give it time.",
        "Take Python stacks of all ranks (`py-spy dump`): where most of them stand is the place.",
    ),
    "STRAGGLER": Meaning(
        "nothing hangs; one rank comes late again and again",
        "The others spend their time waiting for this rank. It shows without clocks: in a round the last to come "
        "spends the least time inside.",
        "Enter and end of the calls of all members, over several rounds.",
        "A rank that waits for another one in another group; a clock that is off; a slow network, which makes all of "
        "them stay long (SLOW_TRANSFER).",
        "Look at what that rank does before it enters: data loading, garbage collection, a throttled GPU or core. "
        "Swap it with another host and see whether it follows the host.",
    ),
    "ROTATING_STRAGGLER": Meaning(
        "ranks come late in turn; no single one is slow",
        "Now one rank is late and now another, for about as long. That is something that all of them do, each in its "
        "own time.",
        "Enter and end of the calls of all members, with several pauses on more than one rank.",
        "One slow rank (STRAGGLER); a shared file system that stalls everybody at once (SHARED_SLOWDOWN).",
        "Pauses of one length that go round are like garbage collection: `gc.freeze()`, or `gc.collect()` on all ranks "
        "in the same step. Uneven batches show the same picture.",
    ),
    "SLOW_TRANSFER": Meaning(
        "the ranks come together, and the transfer itself takes long",
        "The members enter within moments, and the time from the last enter to the end is long against the same call "
        "earlier, or in groups alike. It names the links, not a rank.",
        "Enter and end of the calls, and a time before that was better or other groups of the same size.",
        "A rank that comes late (STRAGGLER); a transfer that is simply larger.",
        "Look at the counters of the links of that group: retransmits, symbol errors, a port at a lower rate.",
    ),
    "SHARED_SLOWDOWN": Meaning(
        "all ranks became slow together; there is no single culprit",
        "Steps take longer on all ranks at once, and nobody waits for anybody in particular.",
        "Steps or rounds of all ranks before and after.",
        "A straggler in a group that all share.",
        "Look at what all share: storage, power cap, clocks, the switch; the change in the data or the model.",
    ),
    "CONFIG_FINDING": Meaning(
        "a setting of the job explains it",
        "The log or the counters show a setting that makes the job slow or keeps it from starting: transport, GID, "
        "MTU, two ranks on one GPU.",
        "The NCCL log (`NCCL_DEBUG=INFO`) or what the host tells.",
        "A finding that was there all along and has nothing to do with today's trouble: it says what is, not when it "
        "began.",
        "Change the setting that is named and run again.",
    ),
    "ERROR_REPORTED": Meaning(
        "an error in the logs, and no round that tells more",
        "There are no calls to line up. The first local error in time is named; what comes later may be its echo. Who "
        "reports a lost peer is a victim, and the peer it names is the suspect.",
        "Logs with times, of as many ranks as there are.",
        'The first line in the file, which need not be the first in time; watchdog aborts, "connection closed by '
        'remote peer" and completion status 5, which are echoes and never the beginning.',
        "Read the log of the host that is named before that line. Record the next run (`roundk run --`), so that there "
        "are calls.",
    ),
    "METHODS_DISAGREE": Meaning(
        "two ways of looking name different ranks",
        "What the calls say and what another source says cannot both be true of these ranks. Both are in the report.",
        "Two sources that each name somebody.",
        "Two independent faults, which are two verdicts.",
        "Collect what would settle it: the report lists it. Drain nobody on this.",
    ),
    "INSUFFICIENT_EVIDENCE": Meaning(
        "what is recorded does not tell, and the report says what to collect",
        "Something is wrong, and naming somebody would be a guess.",
        "",
        "A healthy job: this one is known to have ended badly, or not known to have ended.",
        "Collect what the report lists. For the next time: `roundk run -- COMMAND`, or "
        "`TORCH_NCCL_TRACE_BUFFER_SIZE=2000` and `TORCH_NCCL_DUMP_ON_TIMEOUT=1`.",
    ),
}

_DETAILS: Final = {
    "IDLE": Meaning(
        "it was alive and in no call; there is no stack of it",
        "The rank showed signs of life while its peers waited, and none of its own calls was open. Where it was in the "
        "program is not known.",
        "Signs of life, or counters, from the time of waiting.",
        "BUSY, of which there is a stack; SILENT, of which there is nothing.",
        "Take its stack while it hangs: `py-spy dump --pid PID`. `roundk run` takes one by itself after `--stall-s`.",
    ),
    "BUSY": Meaning(
        "it was alive, and its Python stack shows where",
        "A stack of the rank's main thread from the time of waiting shows it outside of any call. The sentence names "
        "the innermost line of your code.",
        "A stack taken while others waited. From before that, or from the SIGTERM at the end, it is less sure.",
        "A rank that merely passed that line at that moment: a second stack at the same place settles it.",
        "Look at that line: what does this rank do there that its peers do not, or not for so long?",
    ),
    "DEAD": Meaning(
        "its process ended before anybody gave up",
        "An exception, a signal, an exit code, or a process that was gone, before the first of the others gave up.",
        "Exit records (a run directory, torchrun's or the scheduler's log) or a traceback with the end of its process.",
        "Ranks that ended because their peers gave up: they come later and are victims.",
        "Read the log of that rank around its end. SIGKILL without a word is often the out-of-memory killer: `dmesg`.",
    ),
    "STOPPED": Meaning(
        "its process is stopped (state T)",
        "The process was stopped by a signal or a debugger, and has not been let go on.",
        "Process states, which the launcher of `roundk run` watches.",
        "A process in uninterruptible sleep (state D), which hangs in the kernel.",
        "`kill -CONT PID`, or close the debugger. Find who stopped it: SIGSTOP, SIGTSTP, a suspended container.",
    ),
    "EXITED_EARLY": Meaning(
        "it left in order while the others went on",
        "The rank reached its end, or went on to `destroy_process_group`, while its peers had calls to make.",
        "An orderly goodbye or exit code 0 of that rank.",
        "A rank that was told to leave by an error elsewhere.",
        "Uneven data is the usual reason: count the batches per rank. `Join`, or a common number of steps, helps.",
    ),
    "SILENT": Meaning(
        "it left no sign of life, and nobody saw it end",
        "There is no dump, no line and no exit record of this rank. It may be dead, frozen, or merely not collected.",
        "Data of the others, and none of this rank.",
        "DEAD: silence alone is no proof of that.",
        "Look on its host: is the process there? Collect its log and its dump, and analyze again.",
    ),
    "RAISED": Meaning(
        "its call failed at once, before the backend had it",
        "The rank made the call and torch refused it (a wrong shape, a wrong device), while its peers waited for it.",
        "The call of that rank, failed at once, or its traceback.",
        'The errors of its peers later ("Connection closed by peer"), which are echoes.',
        "Read its traceback: the message says what was wrong with the arguments.",
    ),
    "OP": Meaning(
        "another operation",
        "In one round some members called one operation and some another.",
        "The operations of several members.",
        "A sequence shifted by one call (SKIPPED_CALL, EXTRA_CALL).",
        "Compare the two call sites.",
    ),
    "SIZE": Meaning(
        "another number of elements",
        "In one round of an operation that asks for equal sizes, members passed different ones.",
        "Sizes or shapes of several members.",
        "all_to_all and gathers of lists, where uneven sizes are legal.",
        "Look for what depends on the data: a last, smaller batch (`drop_last`), a padded length, a frozen parameter.",
    ),
    "DTYPE": Meaning(
        "another element type",
        "In one round members passed tensors of different types.",
        "Element types of several members.",
        "",
        "Look for autocast, a loss that is float32 on one rank, an empty batch that makes a default tensor.",
    ),
    "ROOT": Meaning(
        "another root",
        "In one broadcast, reduce, gather or scatter, members named different roots.",
        "The roots of several members.",
        "A group rank taken for a global rank, or the reverse.",
        "`src` and `dst` are global ranks, `group_src` and `group_dst` those of the group: check which one is passed.",
    ),
    "REDUCE_OP": Meaning(
        "another reduction",
        "In one round members asked for different reductions (SUM, AVG, MAX).",
        "Reductions of several members.",
        "",
        "Compare the two call sites.",
    ),
}

_CAUSES: Final = {
    "EXCEPTION": Meaning(
        "an exception ended the rank's program",
        "A traceback of this rank, from before its peers gave up, with the end of its process.",
        "The traceback or the recorder's note of it; its time makes it sure.",
        "The exceptions of the others, raised because this one was gone.",
        "Fix what the message says, at the line that is named.",
    ),
    "PROCESS_KILLED": Meaning(
        "a signal ended the process",
        "The process was ended by a signal, before anybody gave up.",
        "The exit record of its parent, or the stack that a fatal signal leaves.",
        "SIGTERM that a launcher sends to all ranks once one of them has failed.",
        "SIGKILL: look for the out-of-memory killer and the scheduler. SIGSEGV, SIGABRT: read the stack.",
    ),
    "PROCESS_EXITED": Meaning(
        "the process ended by itself",
        "The process ended with an exit code, and nothing says that an exception was the reason.",
        "The exit record of its parent, or its goodbye.",
        "An exit because of a peer's failure, which comes later.",
        "Look for `sys.exit`, for an end of the data on this rank, and at its last log lines.",
    ),
    "OOM_KILLED": Meaning(
        "the kernel or the scheduler killed it for memory",
        "The process was killed, and the kernel log, the cgroup or the scheduler says that it was for memory.",
        "That line; SIGKILL alone does not prove it.",
        "An out-of-memory error of the GPU, which is an exception of the program.",
        "Look at the host's memory: workers of the data loader, pinned memory, a leak over the steps.",
    ),
    "PROCESS_STOPPED": Meaning(
        "the process is stopped (SIGSTOP, a debugger)",
        "Its last known state is T.",
        "Process states from the time of waiting.",
        "A process that hangs in the kernel (state D).",
        "`kill -CONT PID`, and find who stopped it.",
    ),
    "HOST_STALL": Meaning(
        "the rank's Python code stalled at a known line",
        "A stack shows the rank outside of any call while the others wait for it.",
        "A stack from that time, and no call after it; a second stack at the same place makes it sure.",
        "A rank that works and is merely slower (HOST_SLOW).",
        "Look at that line: data loading, a lock, a save, a download, an extension that does not let the GIL go.",
    ),
    "HOST_SLOW": Meaning(
        "the host is slow: processor, memory, disk",
        "The straggler's host shows stolen or waiting time, swapping or a lower clock, and its peers' hosts do not.",
        "Counters of this host and of others, from the same time.",
        "Something that all hosts have (SHARED_SLOWDOWN).",
        "Look at what else runs there, at swap, and at the clocks of its processors.",
    ),
    "LINK_FLAP": Meaning(
        "a link of the stuck group went down and came back",
        "A port that the group uses lost its link before the onset, within the time that the transport retries.",
        "A link event with a time (kernel line, carrier counter) on a port of the group. A counter without a time is "
        "medium at most; the same on healthy hosts counts against it.",
        "A flap on a port that the group does not use; ports that flap on healthy hosts too.",
        "Check cable, transceiver and switch port. A hang after a flap leaves a WARN of NCCL; a stall that recovered "
        "leaves none.",
    ),
    "LINK_DOWN": Meaning(
        "a link is down",
        "A port of the suspect host is down, or NCCL reported it so, before the others lost their connection.",
        "The port's state, a kernel line or NCCL's port error.",
        "The peer's message that the connection is lost: who prints it is the victim.",
        "Check cable, transceiver and switch port of the host that is named.",
    ),
    "LINK_DEGRADED": Meaning(
        "a link works, but badly",
        "While a round is slow or hangs, packets of one host are lost or sent again, or errors of a port that the "
        "group uses (symbol errors, retraining) rise faster than on other hosts and than before, or its rate fell, "
        "without it going down.",
        "Counters sampled over the run, on this host and on others. Who has to send again suffers: without the state "
        "of connections, or an error on a port, no host is named.",
        "The same on many hosts, or all along; rates below the published thresholds; ports that the group does not "
        "use.",
        "Check cable and transceiver; compare width and speed of the port with its peers'.",
    ),
    "TRANSPORT_ERROR": Meaning(
        "a transfer failed in the network layer",
        "NCCL or gloo reported a failed transfer (a completion with status 12 or 13, a connection that was lost) with "
        "nothing before it that explains it.",
        "That line with its status and peer. The peer it names is the suspect; the printer is the victim.",
        'Status 5 (flushed), "connection closed by remote peer": echoes of a peer that was gone already.',
        "Look at the peer that is named: is its process alive, is its port up, does the switch drop?",
    ),
    "CONGESTION": Meaning(
        "the fabric is congested",
        "While a round is slow, data wait for credits or are marked on the ports of several hosts at once, packets "
        "come in another order and are sent again, or round trips take many times what they took, with no link down.",
        "Counters of several hosts from the same time. No port is named; of longer round trips the end that they have "
        "in common.",
        "One bad link that makes its neighbours wait (LINK_DEGRADED). Another order alone: adaptive routing makes it.",
        "Look at the switches: oversubscription, ECN and PFC settings, another job on the same fabric.",
    ),
    "MTU_MISMATCH": Meaning(
        "ends of a path have different MTUs",
        "Small messages pass and large ones hang: packets are not acknowledged, and the ports that the group uses have "
        "different MTUs, TCP counted that its path takes smaller packets, or a port drops packets while it is up.",
        "MTUs of all ends, counters of the path's MTU (TCPMTUPFail, FragFails), drops of a port, or a hang at the "
        "first large message after small ones; and timeouts of TCP beside them.",
        "Different MTUs of a job whose packets arrive; a lossy link.",
        "Set the same MTU on the hosts and on the switches between them.",
    ),
    "NETWORK_CONFIG": Meaning(
        "an address, interface, GID or route is wrong",
        "The job cannot connect, or fails at its start, with errors that a setting explains: a GID index, an interface "
        "that peers cannot reach, a name that does not resolve.",
        "Those log lines, from the start of the job.",
        "A peer that was not there yet; a port that went down later.",
        "Check NCCL_SOCKET_IFNAME, NCCL_IB_HCA, NCCL_IB_GID_INDEX and GLOO_SOCKET_IFNAME on the hosts named.",
    ),
    "TRANSPORT_FALLBACK": Meaning(
        "NCCL runs over a slower transport than it could",
        "NCCL found no InfiniBand or RoCE device and uses TCP sockets. That is slow, and not a hang.",
        "NCCL's INFO lines.",
        "A cluster that has no such network.",
        "Check that the container sees /dev/infiniband and has libibverbs; NCCL_IB_DISABLE, NCCL_IB_HCA, NCCL_NET.",
    ),
    "GPU_FAULT": Meaning(
        "the GPU or its driver reported a fault",
        "An Xid line, an uncorrectable memory error or a CUDA error of that kind, before anybody gave up.",
        "The line with its time; kernel logs of the host.",
        "Xid 45 and CUDA errors after an abort, which are echoes; an illegal access, which is often the program's.",
        "Drain the host if the Xid is one of hardware (48, 64, 74, 79, 95), and run the vendor's diagnosis.",
    ),
    "NVLINK_FAULT": Meaning(
        "NVLink or an NVSwitch reported a fault",
        "An Xid 74, an NVLink error counter or an error that names NVLink, before anybody gave up.",
        "The line or counter with its time. That there is none clears nothing: most hosts do not tell.",
        "A GPU that fell off the bus, with whose links all is well.",
        "`nvidia-smi nvlink -e`, the fabric manager's log; drain the host.",
    ),
    "DUPLICATE_GPU": Meaning(
        "two ranks were given one GPU",
        "NCCL refuses, or hangs, because two ranks of a communicator use the same device.",
        "NCCL's message, or the devices of both ranks.",
        "Containers that each number their GPUs from 0: the bus id tells.",
        "Call `torch.cuda.set_device(LOCAL_RANK)` before anything else; check CUDA_VISIBLE_DEVICES.",
    ),
    "CODE_DIVERGENCE": Meaning(
        "code or data led ranks different ways",
        "The ranks made different calls: the program itself took another branch. It is not the network.",
        "Different calls or call sites in one round.",
        "A rank that died, which makes no more calls.",
        "Compare the two call sites: a condition on the rank or on data, uneven batches, an exception that is caught.",
    ),
    "UNDETERMINED": Meaning(
        "nothing recorded shows why",
        "Who and where may be sure all the same.",
        "",
        'A clean bill: what was not looked at is listed under "Not checked".',
        'Collect what the report lists under "Next"; most often it is a Python stack of the missing rank.',
    ),
}

_TEXTS: Final = (
    ("structure", Structure, _STRUCTURES),
    ("detail", Detail, _DETAILS),
    ("cause", Cause, _CAUSES),
)


def entries() -> tuple[Entry, ...]:
    """All names that a verdict can have, in the order of the contract."""
    return tuple(
        Entry(name.value, kind, texts[name.value]) for kind, names, texts in _TEXTS for name in names if name in texts
    )


def find(name: str) -> tuple[Entry, ...]:
    """The entries of this name, however it is spelled (`rank-not-entered`); empty where there is none."""
    wanted = name.strip().upper().replace("-", "_").replace(" ", "_")
    return tuple(entry for entry in entries() if entry.name == wanted)
