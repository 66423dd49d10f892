"""DeepSpeed's engine with ZeRO-2 and its own loader, as its users write it."""

from __future__ import annotations

import deepspeed
import torch
from planted import BATCH, STEPS, TORCH_OPTIMIZER, WIDTH, Samples, compile_nothing, parser, seconds_a_sample, slow_down
from torch import nn


def main() -> None:
    options = parser()
    options.add_argument("--local_rank", type=int, default=0)  # from DeepSpeed's launcher
    given = options.parse_args()
    compile_nothing(deepspeed)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(WIDTH, WIDTH), *[nn.Linear(WIDTH, WIDTH) for _ in range(4)])
    slow_down(model, given)
    deepspeed.init_distributed()
    ranks = deepspeed.comm.get_world_size()
    engine, _, loader, _ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters()),
        training_data=Samples(STEPS * BATCH * given.accumulate * ranks, seconds_a_sample(given)),
        config={
            "train_micro_batch_size_per_gpu": BATCH,
            "gradient_accumulation_steps": given.accumulate,
            "gradient_clipping": 1.0,
            "zero_optimization": {"stage": 2},
            **TORCH_OPTIMIZER,
            "steps_per_print": 8,
        },
    )
    for count, batch in enumerate(loader, 1):
        loss = nn.functional.cross_entropy(engine(batch).flatten(0, 1), batch.flatten())
        engine.backward(loss)
        engine.step()
        step = count // given.accumulate
        if given.save_every and count % given.accumulate == 0 and step % given.save_every == 0:
            engine.save_checkpoint(given.folder)
    engine.destroy()
    deepspeed.comm.destroy_process_group()


if __name__ == "__main__":
    main()
