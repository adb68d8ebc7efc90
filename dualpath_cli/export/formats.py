"""The formats of `dualpath export`: all that the command knows of one. Torch-free.

A new format is an entry here, and the function that it names.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """A format: its words on the command line, and the function that writes it."""

    purpose: str
    """For --help."""
    suffix: str
    """The end of the names of its files; a folder has none."""
    write: str
    """Named `module:function`: gets the Run, its Settings, the Weights, the path to write to and
    the Progress, which it advances by the bytes of the weights written."""
    next: str
    """A command that uses it, with {out} and maybe {own_classes}, the option for them."""
    for_hub: bool = False
    """Whether the hub takes it: the writer then takes the `results` of an evaluation and a
    `license` for its model card."""


FORMATS = {
    "consolidated": Format(
        "one file of safetensors with recipe and tokenizer inside, which all commands take as "
        "their RUN",
        ".safetensors",
        "dualpath_cli.export.consolidated:write",
        "dualpath validate --ckpt-path {out}{own_classes}",
    ),
    "hf": Format(
        "a folder for transformers: configuration, safetensors, tokenizer, the model's code, a "
        "model card",
        "",
        "dualpath_cli.export.hf.folder:write",
        "lm_eval --model hf --model_args pretrained={out},trust_remote_code=True --tasks piqa",
        for_hub=True,
    ),
}
