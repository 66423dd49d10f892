"""What the installed torch records of gloo."""

from __future__ import annotations

import pytest
import torch

GLOO_IS_RECORDED = pytest.mark.skipif(
    not hasattr(torch._C._distributed_c10d, "_dump_fr_trace_json"), reason="this torch has no Flight Recorder for gloo"
)
