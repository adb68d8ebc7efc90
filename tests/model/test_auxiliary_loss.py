"""A feed-forward may add a loss of its own, once for each time that it is applied."""

import pytest
import torch
from torch import nn

from dualpath_cli.model import AuxiliaryLoss, DualPathLM
from dualpath_cli.model.block import DualPathBlock
from dualpath_cli.model.layer_pass import SublayerPass
from dualpath_cli.recipe.settings import OptimSettings
from dualpath_cli.training.module import DualPathModule
from tests.model.small_models import SMALL, TARGETS, TOKENS, same_weights, small, with_weights


class Balanced(nn.Module):
    """A feed-forward with a loss: the mean square of the scale that it puts on its input."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([0.5]))

    def forward(self, x_BTD: torch.Tensor, here: SublayerPass) -> torch.Tensor:
        if here.auxiliary is not None:
            here.auxiliary.loss = here.auxiliary.loss + self.scale.square().mean()
        return self.scale * x_BTD


def with_balanced(model: DualPathLM) -> tuple[DualPathLM, list[Balanced]]:
    """The model with a `Balanced` in both paths of its first block."""
    block = model.blocks[0]
    assert isinstance(block, DualPathBlock)
    balanced = [Balanced().to(model.embed.weight.dtype) for _ in range(2)]
    block.deep.sublayer.ffn, block.wide.sublayer.ffn = balanced
    return model, balanced


def test_a_model_without_such_losses_adds_nothing():
    auxiliary = AuxiliaryLoss()
    DualPathLM(small(block=["dual", "loop"]))(TOKENS, TARGETS, auxiliary=auxiliary)
    assert auxiliary.total == 0.0


@pytest.mark.parametrize("compiled", [False, True])
def test_every_loop_adds_its_term_and_the_gradient_arrives(compiled):
    model, (deep, wide) = with_balanced(with_weights(small(n_layers=1)))
    if compiled:
        for block in model.blocks:
            block.compile(backend="eager", fullgraph=True)
    auxiliary = AuxiliaryLoss()
    model(TOKENS, TARGETS, auxiliary=auxiliary)
    assert auxiliary.total.item() == pytest.approx((SMALL.loops + 1) * 0.25, rel=1e-6)
    auxiliary.total.backward()
    # The derivative of K s^2 at s = 0.5 is K.
    assert (deep.scale.grad.item(), wide.scale.grad.item()) == (SMALL.loops, 1.0)


def test_training_minimises_it_and_logs_the_loss_without_it():
    module = DualPathModule(
        SMALL, OptimSettings(), [1] * SMALL.vocab_size, [], seed=0, compile_blocks=False
    )
    module.configure_model()
    assert same_weights(module.model, DualPathLM(SMALL, seed=0))
    plain = module.training_step((TOKENS, TARGETS), 0)
    assert torch.equal(plain, module.model(TOKENS, TARGETS).mean())
    module.train_loss.reset()
    with_balanced(module.model)
    loss = module.training_step((TOKENS, TARGETS), 0)
    nats = module.model(TOKENS, TARGETS).mean()
    assert (loss - nats).item() == pytest.approx((SMALL.loops + 1) * 0.25, rel=1e-5)
    assert module.train_loss.compute()["loss"].item() == pytest.approx(nats.item(), rel=1e-6)
