"""Models too large to build on every rank: made on the meta device, sharded, and only then given memory and weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from diag.collectors.trainer.model import build
from diag.collectors.trainer.options import PRESETS, TrainerOptions
from diag.collectors.trainer.strategies import create
from tests.forked import call_ranks
from tests.ports import rendezvous

SHAPE = replace(PRESETS["tiny"], deferred=True)


def train_a_step(rank: int, rendezvous: str) -> None:
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
    options = TrainerOptions()
    decoder = build(SHAPE, options.seed)
    assert all(p.device.type == "meta" for p in decoder.parameters())
    model = create(options, torch.device("cpu")).wrap(decoder)
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor)
        shard = parameter.to_local()
        assert shard.device.type == "cpu", name
        assert torch.isfinite(shard).all(), name
        if shard.dim() > 1:
            assert 0.001 < float(shard.std()) < 1, name
            other = [torch.empty_like(shard) for _ in range(2)]
            dist.all_gather(other, shard)
            assert not torch.equal(other[0], other[1]), f"{name}: both ranks drew the same numbers"
    tokens = torch.randint(0, SHAPE.vocab, (2, 17))
    loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    assert 4 < float(loss) < 8, "about ln(vocabulary), as of weights that know nothing"
    assert all(p.grad is not None for p in model.parameters())
    dist.barrier()
    dist.destroy_process_group()


def test_a_deferred_model_is_initialised_shard_by_shard(tmp_path: Path) -> None:
    call_ranks(train_a_step, rendezvous(tmp_path))
