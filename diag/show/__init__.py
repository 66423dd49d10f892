"""What a result shows (``page``), and what draws it: text, notebook, JSON."""

# What a redacted report hides, and what it keeps: text of the report and of the command's help.
REDACTED = "Host names, user names, paths, addresses, run and job ids are replaced by pseudonyms, one for each name."
KEPT = (
    "Kept: what was trained (the model's size and shape, strategy, backend, versions), the names of devices, modules "
    "and kernels, ranks, steps, and all numbers."
)
