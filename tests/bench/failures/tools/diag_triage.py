"""``diag triage`` for the benchmark: folders in, answers in the truth's own classes out."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4]))

from diag.hang.api import triage

NAMES = ("rank", "host", "gpu", "bus_id", "nic", "peer")

for folder in sys.stdin:
    answer = triage([folder.strip()])
    culprits = [{name: getattr(one, name) for name in NAMES} for one in answer.culprits]
    print(json.dumps({"class": answer.fault_class, "culprits": culprits, "why": answer.headline}), flush=True)
