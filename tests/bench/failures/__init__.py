"""A benchmark of tools that say why a distributed training failed or hangs, on cases with known truth.

A tool is any program: it reads paths of folders from standard input, one per line, and answers each with one line of
JSON on standard output, before it reads the next:

    {"class": "CUDA out of memory", "culprits": [{"rank": 3, "host": "node-a"}], "not_applicable": "", "why": "..."}

``class`` is a word of the tool's own; ``tools.toml`` maps it to the classes of the truth, and names the command.
No class (empty or missing) means "cannot tell". ``not_applicable`` says why the tool cannot read such a folder.
``culprits`` may have ``rank``, ``host``, ``gpu``, ``bus_id``, ``nic`` and ``peer`` (an address).

``python -m tests.bench.failures`` runs all tools on all cases and prints one table.
"""
