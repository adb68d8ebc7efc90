"""DualPathConfig: ModelConfig as transformers keeps it, in `config.json`.

In an exported folder this file and its imports from this project are one file,
`configuration_dualpath.py`.
"""

import dataclasses
from typing import Any

from transformers import PretrainedConfig

from dualpath_cli.spec.config import RENAMED, ModelConfig


class DualPathConfig(PretrainedConfig):
    """The fields of ModelConfig, under their own names and under transformers'
    names."""

    model_type = "dualpath"
    keys_to_ignore_at_inference = ["cache", "past_key_values"]
    attribute_map = {
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "num_key_value_heads": "n_kv_heads",
        "max_position_embeddings": "max_seq_len",
    }

    def __init__(self, **kwargs: Any) -> None:
        """Takes fields of ModelConfig and of PretrainedConfig.

        Raises ValueError if the fields make no model.
        """
        known = {
            ours: kwargs.pop(theirs)
            for theirs, ours in self.attribute_map.items()
            if theirs in kwargs
        }
        known |= {
            ours: kwargs.pop(name) for ours, name in RENAMED.items() if name in kwargs
        }
        if "tie_word_embeddings" in kwargs:
            known["tie_embeddings"] = kwargs.pop("tie_word_embeddings")
        names = [field.name for field in dataclasses.fields(ModelConfig)]
        known |= {name: kwargs.pop(name) for name in names if name in kwargs}
        if known.get("d_ffn") is None and known.get("d_ffn_wide") is None:
            # transformers makes a configuration of defaults to compare with.
            known |= {"d_ffn": 2048, "d_ffn_wide": 4096}
        model = ModelConfig(**known)
        self.use_cache = kwargs.pop("use_cache", True)
        kwargs["tie_word_embeddings"] = model.tie_embeddings
        super().__init__(**kwargs)
        for name in names:
            setattr(self, RENAMED.get(name, name), getattr(model, name))

    @property
    def model(self) -> ModelConfig:
        names = [field.name for field in dataclasses.fields(ModelConfig)]
        return ModelConfig(
            **{name: getattr(self, RENAMED.get(name, name)) for name in names}
        )

    def to_dict(self) -> dict[str, Any]:
        """`to_dict` of transformers, with the name that PEFT's prompt tuning reads."""
        return super().to_dict() | {"num_attention_heads": self.n_heads}
