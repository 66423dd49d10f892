"""HolisticTraceAnalysis on a folder or a file: what its users call to learn where the time went."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from hta.trace_analysis import TraceAnalysis

logging.disable(logging.WARNING)
path = Path(sys.argv[1])
if path.is_dir():
    analysis = TraceAnalysis(trace_dir=str(path))
else:
    analysis = TraceAnalysis(trace_files={0: str(path)}, trace_dir=str(path.parent))
ranks = sorted(analysis.t.traces)
analysis.get_temporal_breakdown(visualize=False)
analysis.get_comm_comp_overlap(visualize=False)
analysis.get_gpu_kernel_breakdown(visualize=False)
analysis.get_idle_time_breakdown(ranks=ranks, visualize=False)
print(len(ranks), "ranks")
