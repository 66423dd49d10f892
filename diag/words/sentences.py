"""Sentences with fields, in one place: what is printed is found by searching this file for a part of it.

A field is a number with its unit, a name, or a clause that is a template itself. Titles of findings that are one string
stay in their diagnosis.
"""

from __future__ import annotations

import re
from functools import cached_property
from string import Formatter


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


# -- the headline of a verdict -----------------------------------------------------------------------------------------

HEALTHY = Sentence("Healthy: compute-bound, {step}; nothing removable costs more than {most} of it.")
NOTHING_STANDS_OUT = Sentence("No phase and no rank stands out, {step}.")
NOTHING_STANDS_OUT_UNSEPARATED = Sentence(
    "No phase and no rank stands out, {step}; communication cannot be separated from computation."
)
NO_DIAGNOSIS = Sentence("{bound}-bound ({share} of {step}): no diagnosis explains it.")
MIXED = Sentence("Mixed: {first}; and {second}.")
BOUND = Sentence("{bound} ({share} of {step}): {finding}.")
BOUND_BY_SEVERAL = Sentence("{bound} ({share} of {step}, the largest cause {largest}): {finding}.")
UNDETERMINED = Sentence("Undetermined: {why}. Next: {next_step}.")
EACH_RANK_BY_ITSELF = Sentence("{finding}. Each rank by itself: {verdict}")
NO_OPERATOR_RUNS = Sentence("No operator runs for {share} of the time: that is Python, or waiting.")
BY_PHASES_ALONE = Sentence(
    "This is based on the durations of the phases alone: no collectives connect the ranks' timelines."
)

# -- two accounts of a run ---------------------------------------------------------------------------------------------

FOLLOWED = Sentence(
    "rank {rank} is late, {reason}: {before} a step by {fine}, {known} by {coarse}, which explain it; the answer "
    "follows {coarse}"
)
ACCOUNTS_DIFFER = Sentence("{fine} show a {its} bottleneck, {coarse} {other}")
ONE_ACCOUNT_ALONE = Sentence("only {account} show a {bottleneck} bottleneck")
THE_OTHER_DOES_NOT = Sentence("{fine} show a {bottleneck} bottleneck, {coarse} do not")
ACCOUNTS_NAME_OTHERS = Sentence("{fine} point to {its}, {coarse} to {other}")

# -- who waits ---------------------------------------------------------------------------------------------------------

EVERY_OTHER_RANK_WAITS = Sentence(", and every other rank waits for {them}")
OTHER_RANKS_WAIT = Sentence(", and {count} other ranks wait for {them}")
ONE_OTHER_RANK_WAITS = Sentence(", and 1 other rank waits for {them}")

# -- the critical path -------------------------------------------------------------------------------------------------

PATH_OF_STEPS = Sentence("The critical path of a step is, on average, {parts}.")
PATH_OF_WINDOW = Sentence("The critical path of the window is {parts}.")
PART_OF_PATH = Sentence("{ms} ms of {part}")
PART_OF_PATH_ON_ONE_RANK = Sentence("{ms} ms of {part} ({share} of it on rank {rank})")

# -- advice ------------------------------------------------------------------------------------------------------------

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
MAY_SAVE_NOTHING = Sentence("it may save nothing: `diag tune` measures it")
LESS_THAN_THE_FINDING = Sentence(", less than the {cost} of the finding: {why}")
MORE_THAN_THE_FINDING = Sentence(", more than the {cost} of the finding: {why}")
ANOTHER_RANK_IS_LAST = Sentence("another rank is then the last to arrive")
A_PART_IS_REMOVED = Sentence("the change removes a part of it")
EVERY_CAUSE_IS_REMOVED = Sentence("every other cause that makes {ranks} late is removed as well")
OTHER_COSTS_FALL = Sentence("other costs fall as well")
MORE_MEMORY = Sentence("{size} more memory for parameters and gradients")
# ``options``: of the bundled trainer, joined by "or"; ``diag tune`` reads them.
WITH_OPTIONS = Sentence("{action} Bundled trainer: {options}.")
LESS_MEMORY = Sentence("{size} less memory for parameters and gradients")

# -- what an answer rests on -------------------------------------------------------------------------------------------

RANKS_USED = Sentence("{used} of {ranks}.")
LOWER_CONFIDENCE = Sentence("The confidence is lower because of: {reasons}.")
RANKS_OF_ONE_CLOCK = Sentence("{used} of {ranks}, one clock.")
RANKS_NOT_ALIGNED = Sentence("{used} of {ranks}, clocks not aligned.")
RANKS_ALIGNED = Sentence("{used} of {ranks}, clocks aligned to ± {uncertainty}.")
RANKS_ALIGNED_AFTER_DRIFT = Sentence(
    "{used} of {ranks}, clocks aligned to ± {uncertainty} after a drift of {drift} ppm between them was removed."
)

# -- two runs ----------------------------------------------------------------------------------------------------------

SAME_STEP_TIME = Sentence(
    "No significant difference in step time: {before} before, {after} after, {likely} ({low} to {high})."
)
STEP_IS_LONGER = Sentence("The step is {share} longer: {before} before, {after} after, {likely} ({low} to {high}).")
STEP_IS_SHORTER = Sentence("The step is {share} shorter: {before} before, {after} after, {likely} ({low} to {high}).")
DIFFERENCE_IS_IN = Sentence("The difference is in {parts}.")
DIFFERENCE_IS_IN_PART_OFFSET = Sentence("The difference is in {parts}, partly offset by {others}.")
HOW_RUNS_COMPARE = Sentence(
    "Critical paths of {steps} counted steps. The 95% intervals come from the steps of both runs; two runs of one "
    "configuration differ by more than that: repeat a run to confirm a small difference."
)

# -- findings about CPU cores and blocked threads ----------------------------------------------------------------------

RANKS_WAIT_FOR_A_CORE = Sentence("{ranks} {wait} for a CPU core: {cost}{others_wait}")
SOME_RANK_WAITS_FOR_A_CORE = Sentence("{which} waits for a CPU core: {cost} ({waits})")
TRAINING_WAITS_FOR_CORES = Sentence(
    "The training waits for CPU cores: {cost}: its threads are ready to run but have no core"
)
ALL_RANKS_WAIT_FOR_CORES = Sentence(
    "All ranks wait for CPU cores: {cost}: their threads are ready to run but have no core"
)
RANKS_ARE_BLOCKED = Sentence("{ranks} {are} blocked{place}: {cost}{others_wait}")
BLOCKED_RANK_CHANGES = Sentence("Ranks are blocked{place}, a different one from step to step: {cost} ({waits})")
BLOCKED_RANK_IS_UNCERTAIN = Sentence("One rank is blocked{place}, but which rank is uncertain: {cost} ({waits})")
TRAINING_IS_BLOCKED = Sentence("The training is blocked{place}: {cost}")
ALL_RANKS_ARE_BLOCKED = Sentence("All ranks are blocked{place}: {cost}")
OTHERS_WAITED = Sentence("others waited {waits}")
OTHERS_WAITED_AND_ALL_ALIKE = Sentence("others waited {waits}; all ranks alike lose {common}")
OTHERS_WAITED_AT_ONCE = Sentence("others waited {waits}, partly at the same time")

# -- findings about late ranks and loaders -----------------------------------------------------------------------------

EXPOSED_COMMUNICATION = Sentence("Exposed communication takes {cost}: {why}")
OTHER_EXPOSED_COMMUNICATION = Sentence("Other exposed communication takes {cost}: {why}")
LOADER_OF_RANKS_IS_SLOW = Sentence("The data loader of {ranks} is slow: {cost}{others_wait}")
LOADER_OF_ALL_IS_SLOW = Sentence("The data loader is slower than the training: {cost}")
RANKS_ARE_SLOWER = Sentence("{ranks} {are} slower than {others} in {place}{load}: {cost}")
SLOWEST_RANK_CHANGES = Sentence(
    "The slowest rank changes from step to step (load imbalance): {cost}; others waited {waits}"
)

# -- what stands behind an answer --------------------------------------------------------------------------------------

ALL_LOOKED_FOR = Sentence("{absent} other causes were looked for and not found.")
SOME_NOT_LOOKED_FOR = Sentence(
    "{absent} other causes were looked for and not found; {unseen} could not be looked for: {why}."
)
AND_MORE_REASONS = Sentence("{reason}, and {more}")
MORE_BEHIND_THE_ANSWER = Sentence("More: {options}, or -v for all. In the browser: {dashboard}")
