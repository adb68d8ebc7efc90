"""DualPathConfig: ModelConfig as transformers keeps it, in `config.json`.

In an exported folder this file and its imports from this project are one file,
`configuration_dualpath.py`.
"""

import dataclasses
from typing import Any

from transformers import PretrainedConfig

from dualpath_cli.spec.config import RENAMED, ModelConfig


class DualPathConfig(PretrainedConfig):
    """The fields of ModelConfig, under our names and those of transformers."""

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
        names = [field.name for field in dataclasses.fields(ModelConfig)]

        # The field of each spelling: of transformers, of config.json, our own. Of
        # several spellings that are given, the last in this order counts.
        field_of = {**self.attribute_map, "tie_word_embeddings": "tie_embeddings"}
        field_of |= {written: name for name, written in RENAMED.items()}
        field_of |= {name: name for name in names}
        values = {}
        for spelling, name in field_of.items():
            if spelling in kwargs:
                values[name] = kwargs.pop(spelling)

        # transformers makes a configuration of defaults to compare with.
        if values.keys().isdisjoint(("d_ffn", "d_ffn_wide")):
            values |= {"d_ffn": 2048, "d_ffn_wide": 4096}
        model = ModelConfig(**values)

        self.use_cache = kwargs.pop("use_cache", True)
        kwargs["tie_word_embeddings"] = model.tie_embeddings
        super().__init__(**kwargs)
        for name in names:
            setattr(self, RENAMED.get(name, name), getattr(model, name))

    @property
    def model(self) -> ModelConfig:
        values = {}
        for field in dataclasses.fields(ModelConfig):
            values[field.name] = getattr(self, RENAMED.get(field.name, field.name))
        return ModelConfig(**values)

    def to_dict(self) -> dict[str, Any]:
        """`to_dict` of transformers, with the name that PEFT's prompt tuning reads."""
        return super().to_dict() | {"num_attention_heads": self.n_heads}
