"""NVIDIA Resiliency Extension, restart agent without a language model (``--disable-l1``), for the benchmark.

It reads one log of a job: the files of a folder are joined in the order of their names. Its answer is the primary
failure of its result; the rank and the node are those that it gives that failure.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from nvidia_resiliency_ext.attribution.restart_agent import (
    RestartAgentRequest,
    agent_runtime,
    attempt_records,
    pipeline,
)


def answer(folder: Path) -> dict[str, object]:
    """The answer for one folder."""
    texts = [path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()]
    texts = [text for text in texts if text and b"\0" not in text]
    if not texts:
        return {"not_applicable": "no text"}
    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        log.write(b"\n".join(text.strip(b"\n") for text in texts) + b"\n")
        log.flush()
        runtime = agent_runtime.RestartAgentRuntime(  # as its command line makes it with --disable-l1
            pipeline.RestartAgent(evidence_extractor=None),
            attempt_record_store=attempt_records.InMemoryAttemptRecordStore(),
        )
        run = runtime.analyze_one(RestartAgentRequest(log_path=log.name, job_id="job", cycle_id=1))
    found = run.result.to_payload().get("primary_failure") or {}
    culprit = {"host": found.get("node") or ""}
    if str(found.get("rank") or "").isdigit():
        culprit["rank"] = int(found["rank"])
    named = any(value not in ("", None) for value in culprit.values())
    return {
        "class": found.get("failure_class") or "no primary failure",
        "culprits": [culprit] if named else [],
        "why": found.get("signature") or "",
    }


if __name__ == "__main__":
    for given in sys.stdin:
        print(json.dumps(answer(Path(given.strip()))), flush=True)
