"""A run's model, loaded without Lightning, and the device that it goes to."""

import torch
from torch import nn

from dualpath_cli.config import ModelConfig
from dualpath_cli.errors import UserError
from dualpath_cli.model import DualPathLM
from dualpath_cli.run.trained import Trained
from dualpath_cli.training.state.loading import load_weights


def device_of(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    device = torch.device("cuda:0" if name == "cuda" else name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        there = torch.cuda.device_count()
        raise UserError(f"--device {name}: this machine has {there} such devices; give cpu or auto")
    return device


def autocast_of(precision: str) -> torch.dtype | None:
    """The type of matrix products; None: that of the weights."""
    return torch.bfloat16 if precision == "bfloat16" else None


def load_model(trained: Trained, device: torch.device) -> DualPathLM:
    model = empty_model(trained.settings.model)
    load_weights(model, trained.run.checkpoint)
    return model.to(device).eval().requires_grad_(False)


def empty_model(config: ModelConfig) -> DualPathLM:
    """A model on the CPU whose weights are yet to be filled in."""
    with torch.device("meta"):
        model = DualPathLM(config)
    model.to_empty(device="cpu")
    model.tie_weights()
    return model


def round_weights(model: DualPathLM, dtype: torch.dtype) -> None:
    """Rounds the weights of matrix products to autocast's type, in place.

    That halves their memory, and autocast would round them alike in every pass. A tied head stays:
    it is the embedding, with which the residual stream begins.
    """
    for name, module in model.named_modules():
        tied = model.config.tie_embeddings and module is model.head
        decides = {"gate", "router"} & set(name.split("."))
        if type(module) is nn.Linear and not tied and not decides:
            module.to(dtype)
