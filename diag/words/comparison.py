"""Sentences with fields on how runs differ, which no answer on one run needs."""

from __future__ import annotations

from .sentences import Sentence

SAME_STEP_TIME = Sentence(
    "No significant difference in step time: {before} before, {after} after, {likely} ({low} to {high})."
)
PARTS_CHANGED_IN_SAME_STEP = Sentence("But its parts changed: {parts}.")
STEP_IS_LONGER = Sentence("The step is {share} longer: {before} before, {after} after, {likely} ({low} to {high}).")
STEP_IS_TIMES_AS_LONG = Sentence(
    "The step is {times} as long: {before} before, {after} after, {likely} ({low} to {high})."
)
STEP_IS_SHORTER = Sentence("The step is {share} shorter: {before} before, {after} after, {likely} ({low} to {high}).")
DIFFERENCE_IS_IN = Sentence("The difference is in {parts}.")
DIFFERENCE_IS_IN_PART_OFFSET = Sentence("The difference is in {parts}, partly offset by {others}.")
OTHERS_MAY_USE_THE_CORES = Sentence(
    "Other programs on the host may be the reason: repeat both runs while nothing else runs there, before a setting is "
    "judged by this."
)
HOST_WAS_BUSIER = Sentence(
    "The host was busier {longer} ({busy} threads were ready to run on {cores}, {calm} {shorter}), so the difference "
    "cannot be laid to {settings}: repeat both runs while nothing else runs there."
)
REPEATS_DIFFER = Sentence(
    "Over the repeats the step is {share} {longer}: {before}, {after}, {difference} ({interval})."
)
REPEATS_DO_NOT_DIFFER = Sentence(
    "Over the repeats there is no significant difference: {before}, {after}, {difference} ({interval})."
)
REPEATS_VARY = Sentence(
    "{runs} of the same settings take {low} to {high} a step, {mean} in the mean ({interval}): a difference between "
    "two of them is no effect of a setting."
)
HOW_RUNS_COMPARE = Sentence(
    "Critical paths of {steps} counted steps. The 95% intervals come from the steps of both runs; two runs of one "
    "configuration differ by more than that: repeat a run to confirm a small difference."
)
