"""Real optimizers in trainings whose steps are not one backward and one optimizer's step each."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.attach.test_attached import steps_of
from tests.command import diag_process

LOADED = """
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
for optimizer in (torch.optim.AdamW(model.parameters()), torch.optim.SGD(model.parameters(), lr=0.01)):
    for _ in range(5):
        state = get_optimizer_state_dict(model, optimizer)
        set_optimizer_state_dict(model, optimizer, state)
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""

NO_BACKWARD = """
sgd = torch.optim.SGD(model.parameters(), lr=0.01)
for (batch,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(12, 4))):
    gradients = torch.autograd.grad(model(batch).sum(), list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), gradients):
        parameter.grad = gradient
    sgd.step()
"""

# The gradient penalty calls autograd.grad in the critic's forward.
WGAN_GP = """
critic = torch.nn.Linear(4, 1)
d, g = torch.optim.Adam(critic.parameters()), torch.optim.Adam(model.parameters())
for number in range(1, 101):
    mixed = torch.randn(4, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    d.zero_grad()
    (critic(batch).mean() + (gradient.norm() - 1) ** 2).backward()
    d.step()
    if number % 5 == 0:
        g.zero_grad()
        critic(model(batch).expand(4, 4)).mean().backward()
        g.step()
"""


@pytest.mark.parametrize(
    ("training", "steps"),
    [
        pytest.param(LOADED, 10, marks=pytest.mark.matrix),
        pytest.param(NO_BACKWARD, 10, marks=pytest.mark.matrix),
        (WGAN_GP, 16 + 1 + 16),
    ],
)
def test_steps(tmp_path: Path, training: str, steps: int) -> None:
    script, run = tmp_path / "train.py", tmp_path / "run"
    script.write_text("import torch\nmodel, batch = torch.nn.Linear(4, 1), torch.ones(4, 4)\n" + training)
    done = diag_process("run", "--no-trace", "--out", run, "--", sys.executable, script)
    assert done.returncode == 0, done.stderr
    assert len(steps_of(run)) == steps
