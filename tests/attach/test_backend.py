"""The backend that the manifest names, where a training names none or one for each kind of device."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from diag.collectors.attach.life import backend_in_use


@pytest.mark.parametrize("named", [None, "gloo", "cpu:gloo", "cpu:gloo,cuda:gloo"])
def test_the_backend_of_the_device_in_use(named: str | None) -> None:
    assert backend_in_use() is None
    dist.init_process_group(named, store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert backend_in_use() == "gloo"
    finally:
        dist.destroy_process_group()
