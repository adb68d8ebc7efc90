"""The weights of a checkpoint, whatever wrote it, into a model, however it is sharded."""

from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)

from dualpath_cli.model import DualPathLM


def load_weights(model: DualPathLM, checkpoint: Path) -> None:
    """Loads the model's weights from a checkpoint file or a folder of shards.

    `model` may be sharded itself, over any number of ranks, whatever wrote the checkpoint.
    """
    if checkpoint.is_dir():
        wanted = {"state_dict": {f"model.{k}": v for k, v in get_model_state_dict(model).items()}}
        dcp.load(wanted, checkpoint_id=checkpoint)
        weights = {k.removeprefix("model."): v for k, v in wanted["state_dict"].items()}
        set_model_state_dict(model, weights)
        return
    saved = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)["state_dict"]
    weights = {k.removeprefix("model."): v for k, v in saved.items() if k.startswith("model.")}
    set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True))
