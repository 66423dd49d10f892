"""Checkpoints: everything that a resume needs, written by all ranks together, atomically.

<folder>/latest                            the name of the newest complete checkpoint
<folder>/step-00000012/manifest.json       written last: what was saved, and every other file with its size
<folder>/step-00000012/rank-00003.json     the states of a rank's random number generators
<folder>/step-00000012/.metadata, __3_0.distcp   torch.distributed.checkpoint: model and optimizer
<folder>/.step-00000016.1f3a.draft/        being written
"""
