"""Sentences with fields, in one place: what is printed is found by searching this file for a part of it; what is said
of several runs, `diag/words/comparison.py`.

A field is a number with its unit, a name, or a clause that is a template itself; a verb is never a field. The title of
a finding that is one string, whatever the run, stays in its diagnosis.
"""

from __future__ import annotations

import re
from functools import cached_property
from string import Formatter
from typing import NamedTuple


class Sentence(str):
    """A text with named fields in braces. ``sentence(field=value)`` fills in all of them."""

    def __call__(self, **fields: object) -> str:
        return self.format(**fields)

    @cached_property
    def fields(self) -> tuple[str, ...]:
        return tuple(name for _, name, _, _ in Formatter().parse(self) if name)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Matches the texts that it makes, without its full stop at the end."""
        parts: list[str] = []
        for text, name, _, _ in Formatter().parse(self):
            again = f"(?P<{name}>" in "".join(parts)
            field = f"(?P={name})" if again else f"(?P<{name}>.*?)"
            parts += [re.escape(text), field if name is not None else ""]
        return re.compile("".join(parts).removesuffix(r"\.") + r"\.?", re.DOTALL)

    def read(self, text: str) -> dict[str, str]:
        """The fields of a text that it made; none of any other text."""
        match = self.pattern.fullmatch(text)
        return match.groupdict() if match is not None else {}


class OneOrMany(NamedTuple):
    """A sentence about one rank, and about several, each as it is printed."""

    one: Sentence
    many: Sentence

    def __call__(self, ranks: int, /, **fields: object) -> str:
        return (self.one if ranks == 1 else self.many)(**fields)


HEALTHY = Sentence("Healthy: compute-bound, {step}; nothing removable costs more than {most} of it.")
IN_DANGER = Sentence("{finding}. The speed is {verdict}")
NOTHING_STANDS_OUT = Sentence("No phase and no rank stands out, {step}.")
NOTHING_STANDS_OUT_UNSEPARATED = Sentence(
    "No phase and no rank stands out, {step}; communication cannot be separated from computation."
)
NO_DIAGNOSIS = Sentence("{bound}-bound ({share} of {step}): no diagnosis explains it.")
MIXED = Sentence("Mixed: {first}; and {second}.")
BOUND = Sentence("{bound} ({share} of {step}): {finding}.")
BOUND_BY_SEVERAL = Sentence("{bound} ({share} of {step}, the largest cause {largest}): {finding}.")
BOUND_UNPROFILED = Sentence("{bound} ({unprofiled}).")
WITHOUT_PROFILER = Sentence("about {share} of {step} a step, in {steps} without the profiler")
WHILE_PROFILED = Sentence("In profiled steps: {finding} ({share} of {step}).")
UNDETERMINED = Sentence("Undetermined: {why}. Next: {next_step}.")
EACH_RANK_BY_ITSELF = Sentence("{finding}. Each rank by itself: {verdict}")
NO_OPERATOR_RUNS = Sentence("No operator runs for {share} of the time: that is Python, or waiting.")
BY_PHASES_ALONE = Sentence(
    "This is based on the durations of the phases alone: no collectives connect the ranks' timelines."
)

SLOWER_SINCE = Sentence("{since}{moment}: {by} slower, {after} instead of {before} a step{why}.")
FASTER_SINCE = Sentence("{since}{moment}: {by} faster, {after} instead of {before} a step{why}.")
SINCE_STEP = Sentence("Since step {step}")
IN_STEPS = Sentence("Steps {first} to {last}")
BECAUSE_OF_RANKS = Sentence(", because of {ranks}{hosts} ({cause})")
NO_MORE_BECAUSE_OF_RANKS = Sentence(", without the delay by {ranks}{hosts} ({cause})")
BECAUSE_OF = Sentence(", because of {cause} on all ranks")
NO_MORE_BECAUSE_OF = Sentence(", because of less {cause}")
UNKNOWN_WHY = Sentence("; the cause is not known")
IT_COST = Sentence(" It cost {lost}, {hours}.")
GOODPUT = Sentence("Goodput {share}: of {wall}, {new} became new steps{rest}.")
STALLED = Sentence("Step {step}{moment}: stalled for {lost}{why} ({hours}).")
STUCK = Sentence("After step {step}{moment}: stuck for {lost}{why} ({hours}).")
STALLED_BECAUSE_OF = Sentence(", the others waited for {ranks}{hosts}")
STALL_NOT_COUNTED = Sentence("Step {step} stalled for {lost}{why}: it is not counted.")
STALLS_NOT_COUNTED = Sentence("{count} stalled, {lost} in all, and are not counted; the longest was step {step}{why}.")
KEPT = Sentence("Steps {first} to {last}{moment} are kept in full ({why})")
RESTARTED = Sentence("Restart {number}{moment}{ended}: {down} without a step; {repeated} ({hours}).")
HOST_AT_FAULT = Sentence("{host} was at fault in {runs} ({names}): {hours} in incidents because of it.")
REPEATED = Sentence("{steps} trained again, {time}")
REPEATED_NOTHING = Sentence("no step trained again")

FOLLOWED = Sentence(
    "rank {rank} is late, {reason}: {before} a step by {fine}, {known} by {coarse}, which explain it; the answer "
    "follows {coarse}"
)
ACCOUNTS_DIFFER = Sentence("{fine} show a {its} bottleneck, {coarse} {other}")
ONE_ACCOUNT_ALONE = Sentence("only {account} show a {bottleneck} bottleneck")
THE_OTHER_DOES_NOT = Sentence("{fine} show a {bottleneck} bottleneck, {coarse} do not")
ACCOUNTS_NAME_OTHERS = Sentence("{fine} point to {its}, {coarse} to {other}")

EVERY_OTHER_RANK_WAITS = Sentence(", and every other rank waits for {them}")
OTHER_RANKS_WAIT = Sentence(", and {count} other ranks wait for {them}")
ONE_OTHER_RANK_WAITS = Sentence(", and 1 other rank waits for {them}")

PATH_OF_STEPS = Sentence("The critical path of a step is, on average, {parts}.")
PATH_OF_WINDOW = Sentence("The critical path of the window is {parts}.")
LONGEST_OF_PATH = Sentence("Critical path: {parts}")
PART_OF_PATH = Sentence("{ms} ms of {part}")
PART_OF_PATH_ON_ONE_RANK = Sentence("{ms} ms of {part} ({share} of it on rank {rank})")

GAINS_ARE_PREDICTED = Sentence("Gains are predicted by replaying the recorded steps with the change.")
GAINS_ARE_PREDICTED_WITHIN = Sentence(
    "Gains are predicted by replaying the recorded steps with the change; the replay without a change is off by "
    "{error}."
)
SAVES = Sentence("Saves {likely} {per}, {share} of it (between {low} and {high}){against}")
MAY_SAVE = Sentence(
    "Saves {likely} {per}, {share} of it (between {low} and {high}; it may save nothing: `diag tune` measures it)"
    "{against}"
)
TUNE_MEASURES_IT = Sentence("`diag tune` measures it")
LESS_THAN_THE_FINDING = Sentence(", less than the {cost} of the finding: {why}")
MORE_THAN_THE_FINDING = Sentence(", more than the {cost} of the finding: {why}")
ANOTHER_RANK_IS_LAST = Sentence("another rank is then the last to arrive")
A_PART_IS_REMOVED = Sentence("the change removes a part of it")
EVERY_CAUSE_IS_REMOVED = Sentence("every other cause that makes {ranks} late is removed as well")
OTHER_COSTS_FALL = Sentence("other costs fall as well")
MEMORY_IS_NEARLY_FULL = Sentence("Device memory is nearly full on {ranks}{together}")
ALLOCATIONS_WERE_RETRIED = Sentence("Allocations were retried on {ranks}: each retry frees the whole cache")
MEMORY_IS_FREE = Sentence("{free} of {capacity} are free on the fullest device: nothing has to become smaller.")
PEAK_IS_SIMULATED = Sentence(
    "By a simulation of every allocation of the step with the change. Without a change it gives {peak}; measured were "
    "{measured} ({error} apart)."
)
PEAK_IS_BOUNDED = Sentence(
    "Not measured: what is not the model's states by formula counts as activations, so each frees at most that."
)
PEAK_IS_NOT_KNOWN = Sentence("What would lower the peak is not known: what is allocated at it was not recorded.")
LEAVE_HEADROOM = Sentence("Leave headroom: {changes}.")
INSTEAD_OF = Sentence("{change} ({peak} instead of {before}{risk})")
FREES = Sentence("{change} (frees {most}{freed}{risk})")
MORE_MEMORY = Sentence("{size} more memory for parameters and gradients")
# ``options``: of the bundled trainer, joined by "or"; ``diag tune`` reads them.
WITH_OPTIONS = Sentence("{action} Bundled trainer: {options}.")
LESS_MEMORY = Sentence("{size} less memory for parameters and gradients")

RANKS_USED = Sentence("{used} of {ranks}.")
LOWER_CONFIDENCE = Sentence("The confidence is lower because of: {reasons}.")
RANKS_OF_ONE_CLOCK = Sentence("{used} of {ranks}, one clock.")
RANKS_NOT_ALIGNED = Sentence("{used} of {ranks}, clocks not aligned.")
RANKS_ALIGNED = Sentence("{used} of {ranks}, clocks aligned to ± {uncertainty}.")
RANKS_ALIGNED_AFTER_DRIFT = Sentence(
    "{used} of {ranks}, clocks aligned to ± {uncertainty} after a drift of {drift} ppm between them was removed."
)

RANKS_WAIT_FOR_A_CORE = OneOrMany(
    Sentence("{ranks} waits for a CPU core: {cost}{others_wait}"),
    Sentence("{ranks} wait for a CPU core: {cost}{others_wait}"),
)
SOME_RANK_WAITS_FOR_A_CORE = Sentence("{which} waits for a CPU core: {cost} ({waits})")
TRAINING_WAITS_FOR_CORES = Sentence(
    "The training waits for CPU cores: {cost}: its threads are ready to run but have no core"
)
ALL_RANKS_WAIT_FOR_CORES = Sentence(
    "All ranks wait for CPU cores: {cost}: their threads are ready to run but have no core"
)
RANKS_ARE_BLOCKED = OneOrMany(
    Sentence("{ranks} is blocked{place}: {cost}{others_wait}"),
    Sentence("{ranks} are blocked{place}: {cost}{others_wait}"),
)
BLOCKED_RANK_CHANGES = Sentence("Ranks are blocked{place}, a different one from step to step: {cost} ({waits})")
BLOCKED_RANK_IS_UNCERTAIN = Sentence("One rank is blocked{place}, but which rank is uncertain: {cost} ({waits})")
TRAINING_IS_BLOCKED = Sentence("The training is blocked{place}: {cost}")
ALL_RANKS_ARE_BLOCKED = Sentence("All ranks are blocked{place}: {cost}")
OTHERS_WAITED = Sentence("others waited {waits}")
OTHERS_WAITED_AND_ALL_ALIKE = Sentence("others waited {waits}; all ranks alike lose {common}")
NEARLY_ALL_IN_ONE_STEP = Sentence(", nearly all of it in step {step}")
NEARLY_ALL_IN_FEW_STEPS = Sentence(", nearly all of it in {count} steps from {first} to {last}")
OTHERS_WAITED_AT_ONCE = Sentence("others waited {waits}, partly at the same time")

EXPOSED_COMMUNICATION = Sentence("Exposed communication takes {cost}: {why}")
OTHER_EXPOSED_COMMUNICATION = Sentence("Other exposed communication takes {cost}: {why}")
LOADER_OF_RANKS_IS_SLOW = Sentence("The data loader of {ranks} is slow: {cost}{others_wait}")
LOADER_OF_ALL_IS_SLOW = Sentence("The data loader is slower than the training: {cost}")
RANKS_ARE_SLOWER = OneOrMany(
    Sentence("{ranks} is slower than {others} in {place}{load}: {cost}"),
    Sentence("{ranks} are slower than {others} in {place}{load}: {cost}"),
)
ONE_RANK_IS_SLOWER = Sentence("One rank is slower than {others}, but which rank is uncertain: {cost}")
ONE_RANK_IS_SLOWER_MOSTLY = OneOrMany(
    Sentence(
        "One rank is slower than {others}, but which rank is uncertain: {cost}. {ranks} was last in {count} of "
        "{affected} affected steps; others waited {waits}"
    ),
    Sentence(
        "One rank is slower than {others}, but which rank is uncertain: {cost}. {ranks} were last in {count} of "
        "{affected} affected steps; others waited {waits}"
    ),
)
ONE_RANK_IS_SLOWER_AT_MOST = Sentence(
    "One rank is slower than {others}, but which rank is uncertain: {cost}. The same rank was last in at most "
    "{count} of {affected} affected steps; others waited {waits}"
)
HOSTS_LAUNCH_LATER = OneOrMany(
    Sentence("{ranks} launches its kernels later than the others: {cost}"),
    Sentence("{ranks} launch their kernels later than the others: {cost}"),
)
HOSTS_LAUNCH_LATER_MOSTLY = OneOrMany(
    Sentence("{ranks} launches its kernels later than the others, last in {count} of {calls} collectives: {cost}"),
    Sentence("{ranks} launch their kernels later than the others, last in {count} of {calls} collectives: {cost}"),
)
RANKS_ARRIVE_LATER = OneOrMany(
    Sentence("{ranks} arrives later than the others, cause not determined: {cost}"),
    Sentence("{ranks} arrive later than the others, cause not determined: {cost}"),
)
RANKS_ARRIVE_LAST = OneOrMany(
    Sentence(
        "{ranks} arrives last at the collectives: waiting for it is {share} of the other ranks' time in collectives"
    ),
    Sentence(
        "{ranks} arrive last at the collectives: waiting for them is {share} of the other ranks' time in collectives"
    ),
)
RANKS_RECEIVE_MORE = OneOrMany(
    Sentence(
        "Expert imbalance: {ranks} receives {times} times the mean in the all-to-alls and computes longer, and the "
        "others wait: {cost}"
    ),
    Sentence(
        "Expert imbalance: {ranks} receive {times} times the mean in the all-to-alls and compute longer, and the "
        "others wait: {cost}"
    ),
)
ANOTHER_RANK_RECEIVES_MORE = Sentence(
    "Expert imbalance: the ranks wait for the one that receives most in the all-to-alls, a different one from "
    "dispatch to dispatch: {cost}"
)
LOAD_OR_THE_RANK = OneOrMany(
    Sentence(
        "{ranks} is slower than the others and received {times} times the mean in the all-to-alls{part}; whether the "
        "load is the reason or the rank itself is slow is not decided: {cost}"
    ),
    Sentence(
        "{ranks} are slower than the others and received {times} times the mean in the all-to-alls{part}; whether the "
        "load is the reason or the ranks themselves are slow is not decided: {cost}"
    ),
)
LOAD_EXPLAINS = Sentence(", which explains about {share} of the lateness")
COLLECTIVES_WAIT = OneOrMany(
    Sentence("Collectives wait {cost}, probably for {ranks}, which was not recorded"),
    Sentence("Collectives wait {cost}, probably for {ranks}, which were not recorded"),
)
RESULTS_ARRIVE_LATER = OneOrMany(
    Sentence("{ranks} gets its results later than the others"),
    Sentence("{ranks} get their results later than the others"),
)
ONE_LOADER_IS_SLOW = Sentence(
    "The data loader of one rank is too slow, but which rank is uncertain: {cost}. {ranks} waited longest in {count} "
    "of {affected} steps; others waited {waits}"
)
LOADERS_AT_THEIR_LIMIT = OneOrMany(
    Sentence(
        "The data loaders of all ranks are too slow: {cost}. {ranks} waits longest, but the other ranks' loaders are "
        "at their limit, too"
    ),
    Sentence(
        "The data loaders of all ranks are too slow: {cost}. {ranks} wait longest, but the other ranks' loaders are at "
        "their limit, too"
    ),
)
SLOWEST_RANK_CHANGES = Sentence(
    "The slowest rank changes from step to step (load imbalance): {cost}; others waited {waits}"
)
SIZES_DIFFER = OneOrMany(
    Sentence("In {calls} collective {ranks} passed a different size from the other ranks{group}"),
    Sentence("In {calls} collectives {ranks} passed a different size from the other ranks{group}"),
)
OF_THE_GROUP = Sentence(" of the {group}")

CAUSES_RULED_OUT = Sentence("{causes} ruled out.")
CAUSES_RULED_OUT_OR_UNSEEN = Sentence("{causes} ruled out, {unseen} not looked for: {why}.")
RULED_OUT_OR_UNSEEN = Sentence("{causes} ruled out, {unseen} not looked for.")
AND_MORE_REASONS = Sentence("{reason}, and {more}")
MORE_BEHIND_THE_ANSWER = Sentence("More: {options}, or -v for all. In the browser: {dashboard}")
MORE_IN_SHORT = Sentence("More: -v. In the browser: {dashboard}")
MORE_WITHOUT_A_PATH = Sentence("More: -v. Browser: diag dashboard")
MORE_NOTES = Sentence("{notes} on the data: --checked")
MORE_THAT_IS_NOT_READ = Sentence("{what} on files that were not read in full: -v")
MORE_NOTES_ON_BOTH = Sentence("{notes} on the data of the two runs: -v")
MORE_BEHIND_THE_COMPARISON = Sentence("More: --evidence --tables. Both in the browser: diag dashboard")
MORE_BEHIND_THE_TRIAGE = Sentence("All lines, stacks and what was ruled out: {command}")
MORE_BEHIND_THE_TUNING = Sentence("More: diag tune --show {folder} -v.")
IN_THE_BROWSER = Sentence("In the browser: diag dashboard {folder}")
TUNING_STOPPED = Sentence("Stopped: {why}.")
ALSO_ADVISED = Sentence("Also advised, but not an option of `diag run`: {changes}.")
MORE_CHANGES = Sentence("and {changes} more")
MORE_BEHIND_THE_PLAN = Sentence("More: {options}, or -v for all.")

IDLE_BY_LAUNCHES = Sentence(
    "The device is idle for {cost} because the host launches kernels more slowly than the device runs them"
)
IDLE_BY_SYNC = Sentence("The device is idle for {cost} because the host synchronises with it and then launches late")
IDLE_BY_ALLOCATOR = Sentence("The device is idle for {cost} because cudaMalloc and cudaFree run inside the step")
IDLE_WHILE_HOST_RUNS = Sentence("The device is idle for {cost} while the host runs {name}")
IDLE_WHILE_NOTHING_RUNS = Sentence("The device is idle for {cost} while the host launches nothing")
RANKS_SHARE_A_GPU = Sentence("{ranks} share one GPU")
RANKS_SHARE_GPUS = Sentence("{ranks} share one GPU, and so do ranks on {gpus} more")
RANKS_TAKE_TURNS = Sentence(
    "{sharing}: {cost} of communication, waiting for each other and pauses may be nothing but turns on it"
)
OTHERS_USE_THE_GPU = OneOrMany(
    Sentence("The GPU of {ranks} is also used by {processes} besides the ranks of this run"),
    Sentence("The GPUs of {ranks} are also used besides the ranks of this run, one of them by {processes}"),
)
CONTEXTS_ON_THE_GPU = OneOrMany(
    Sentence("The GPU of {ranks} also holds contexts of {processes}: of other ranks, or of another job"),
    Sentence(
        "The GPUs of {ranks} also hold contexts of others, one of them of {processes}: of ranks, or of another job"
    ),
)
IDLE_ALTHOUGH_LAUNCHED = Sentence(
    "The device is idle for {cost} although its next work had been launched: it waits for an event, another stream "
    "or work that is not in this trace"
)
IDLE_WITHOUT_LAUNCH = Sentence(
    "The device is idle for {cost}, and the trace does not show when its next work was launched: what it waits for is "
    "unknown"
)
ONE_STALL_WHILE_HOST_RUNS = Sentence(
    "The device is idle for {cost} in one stall of the host while the host runs {name}; whether it happens in every "
    "step is unknown"
)
ONE_STALL_WHILE_NOTHING_RUNS = Sentence(
    "The device is idle for {cost} in one stall of the host while the host launches nothing; whether it happens in "
    "every step is unknown"
)
DEVICES_ARE_THROTTLED = OneOrMany(
    Sentence("The GPU of {ranks} is throttled ({why}): {cost}{others_wait}"),
    Sentence("The GPUs of {ranks} are throttled ({why}): {cost}{others_wait}"),
)
PCIE_IS_DEGRADED = OneOrMany(
    Sentence("The PCIe link of {ranks} is degraded: {signs}"),
    Sentence("The PCIe links of {ranks} are degraded: {signs}"),
)
PCIE_IS_BELOW_MAXIMUM = OneOrMany(
    Sentence("The PCIe link of {ranks} runs below the maximum: {signs}"),
    Sentence("The PCIe links of all ranks run below the maximum: {signs}"),
)
NVLINK_IS_DEGRADED = Sentence("The NVLinks of {ranks} are degraded: {signs}")
XGMI_IS_DEGRADED = Sentence("The XGMI links of {ranks} are degraded: {signs}")
