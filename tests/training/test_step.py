"""A run's steps are those of a plain loop: next tokens, each document by itself,
clipped gradients, AdamW at the rate of the step."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dualpath_cli.data.order import SampleOrder
from dualpath_cli.model import DualPathLM
from dualpath_cli.recipe.schedule import learning_rate
from dualpath_cli.recipe.settings import settings_from
from dualpath_cli.run.run_folder import read_recipe
from tests.data_prep.conftest import tokens_of
from tests.training.tiny_run import SEQ_LEN, rows, weights

SEQUENCES, STEPS = 4, 6
END = 259  # end of text in the tests' tokenizer
CLIP = 0.5
ADAMW: dict[str, Any] = {"betas": [0.8, 0.9], "eps": 1e-3, "weight_decay": 0.2}
"""With a large epsilon, by which the size of a gradient matters."""


def batches(data: Path) -> list[Tensor]:
    """The sequences of each step, (SEQUENCES, SEQ_LEN + 1), of data in one chunk."""
    blocks = torch.tensor(tokens_of(data)).split(SEQ_LEN + 1)
    whole = [block for block in blocks if len(block) == SEQ_LEN + 1]
    order = SampleOrder([len(whole)], seed=1)
    places = [order.at(position)[1] for position in range(STEPS * SEQUENCES)]
    read = torch.stack([whole[place] for place in places])
    return list(read.split(SEQUENCES))


def documents_of(sequence: Tensor) -> list[Tensor]:
    """A sequence cut before each end-of-text among its inputs; the token after a cut is
    the last target before it, too."""
    cuts = [place for place in range(1, SEQ_LEN) if sequence[place] == END]
    begins, ends = [0, *cuts], [*cuts, SEQ_LEN]
    return [sequence[begin : end + 1] for begin, end in zip(begins, ends, strict=True)]


def loss_of(model: DualPathLM, parts: list[Tensor]) -> Tensor:
    """The mean cross-entropy of the next token, of each part by itself."""
    logits = torch.cat([model(part[None, :-1])[0] for part in parts])
    return F.cross_entropy(logits, torch.cat([part[1:] for part in parts]))


@pytest.mark.parametrize("document_start", [None, END])
def test_a_run_is_a_plain_loop_over_the_next_tokens_of_its_data(
    document_start, fit, texts
):
    run = fit(model={"document_start": document_start}, optim=ADAMW | {"clip": CLIP})
    settings = settings_from(read_recipe(run))
    model = DualPathLM(replace(settings.model, document_start=None), seed=1)
    decays = {"params": [p for n, p in model.named_parameters() if "embed" not in n]}
    rests = {"params": [model.embed.weight], "weight_decay": 0.0}
    optimizer = torch.optim.AdamW([decays, rests], **ADAMW)

    metrics = rows(run / "metrics.csv")
    cuts = 0
    for step, sequences in enumerate(batches(texts / "train")):
        parts = list(sequences)
        if document_start is not None:
            parts = [part for sequence in sequences for part in documents_of(sequence)]
        cuts += len(parts) - SEQUENCES

        optimizer.zero_grad()
        loss = loss_of(model, parts)
        loss.backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm().item()
        assert norm > CLIP, "else nothing is clipped"
        for gradient in gradients:
            gradient.mul_(CLIP / norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, STEPS, settings.optim)
        optimizer.step()

        logged = [float(metrics[step][name]) for name in ("loss", "grad_norm")]
        assert logged == pytest.approx([loss.item(), norm], rel=1e-5)
    assert (cuts > 0) == (document_start is not None)

    trained = weights(run)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(
            trained[f"model.{name}"], parameter.detach(), rtol=1e-4, atol=1e-6
        )
