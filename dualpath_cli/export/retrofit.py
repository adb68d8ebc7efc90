"""`dualpath retrofit`: a pretrained model of transformers, written as a dual-path one.

The equations have a pretrained Llama as a special case (`export/hf/pretrained.py`). Options, checks
and the answer are here; torch and transformers come once the words are checked.
"""

import json
import re
import tempfile
import uuid
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from rich.filesize import decimal

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.ranges import LARGEST, Place, Size, check_ranges
from dualpath_cli.base.version import versions
from dualpath_cli.data import hub
from dualpath_cli.export.command import check_license, check_out
from dualpath_cli.flops.count import gate_flops, projection_flops
from dualpath_cli.flops.widths import largest_width
from dualpath_cli.recipe.options import path_of
from dualpath_cli.recipe.recipes import dump
from dualpath_cli.recipe.settings import settings_from
from dualpath_cli.report.console import Progress, bytes_of_bytes, plain_console
from dualpath_cli.run.exported_folder import CARD
from dualpath_cli.run.run_folder import RECIPE, VERSIONS, Run
from dualpath_cli.spec.config import BlockKind, ModelConfig


@dataclass(frozen=True, kw_only=True)
class Retrofit:
    """Writes a pretrained Llama, Mistral or Qwen3 as a dual-path model that computes the same, or
    nearly the same: an exported folder, which is the RUN of every command. Further loops and a new
    path begin nearly silent; `fit --run.init_from FOLDER` trains them.
    """

    pretrained: Place
    """Folder of transformers with safetensors, OWNER/NAME of one on the Hugging Face hub, or a GGUF
    file."""
    out: Place
    """Folder to write."""
    block: BlockKind | list[BlockKind] = "loop"
    """wide: layers as they are. loop: each layer is a deep path. dual: each has a new path beside
    it. Or a list with one kind per layer."""
    loops: int | list[int] = 4
    """K, how often a deep path is applied; or a list with one number per layer."""
    path: Literal["deep", "wide"] = "deep"
    """Path of a dual block that a pretrained layer becomes; the other is new."""
    alpha: float | None = None
    """Percent of a dual block's FLOPs that its deep path gets, from which the width of the new path
    follows. By default 50."""
    budget: Size | None = None
    """Linear FLOPs per token and layer of a dual block, in place of --alpha."""
    license: str | None = None
    """The licence that the model card names, as the hub spells it; by default that of the
    pretrained model's card."""
    overwrite: bool = False
    """Replace the exported folder at --out."""

    def __post_init__(self) -> None:
        check_ranges(self, {"alpha": (0.1, 99.9), "budget": (1, LARGEST)})
        if self.alpha is not None and self.budget is not None:
            raise ValueError("alpha and budget both give the width of the new path; leave one out")
        check_license(self.license)


def run(options: Retrofit) -> str:
    """Writes the folder, and returns what was written as text."""
    place, gguf = _found(options.pretrained)
    out = check_out(path_of("--out", options.out), place, options.overwrite)
    try:
        from dualpath_cli.export.hf import folder, pretrained

        if gguf is not None:
            import_module("gguf")
    except ImportError as error:
        raise UserError(f"retrofit needs {error.name}: pip install 'dualpath[retrofit]'") from None
    shown = f"--pretrained '{options.pretrained}'"
    given = pretrained.Pretrained(place, gguf, shown)
    changes: dict[str, Any] = {"block": options.block, "loops": options.loops}
    try:
        config = with_new_path(replace(given.config, **changes), options)
    except ValueError as error:  # a list of another length; a head size that no block can have
        raise UserError(f"{shown}: {error}") from None
    tokenizer, license = given.tokenizer(), options.license or given.license()
    named = {"recipe": _name(options), "name": "retrofit"}
    settings = settings_from({"model": asdict(config), "run": named})
    facts = versions() | {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "id": uuid.uuid4().hex,
        "step": 0,
        "model": settings.as_recipe()["model"],
        "tokenizer": tokenizer.fingerprint,
        "retrofit": {"pretrained": options.pretrained, "sha256": given.sha256()},
    }  # fmt: skip
    weights = folder.Weights.held(given.model(config, options.path))
    with tempfile.TemporaryDirectory() as text:
        begun = Path(text)  # what a run folder has beside its checkpoints
        tokenizer.save(begun)
        (begun / RECIPE).write_text(dump(settings.as_recipe()))
        (begun / VERSIONS).write_text(json.dumps(facts))
        with Progress(plain_console(), "writing", bytes_of_bytes, weights.bytes) as progress:
            run = Run(begun, begun, 0)
            folder.write(run, settings, weights, out, progress, license=license)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    return (
        f"{settings.run.recipe}/{settings.run.name}: {weights.parameters / 1e6:,.1f}M parameters, "
        f"{decimal(size)}\n{out}\n"
        f"next: dualpath validate --ckpt-path {out} --data.val.NAME FILE\n"
        f"or:   dualpath fit --config {out}/{RECIPE} --config RECIPE --run.init_from {out}"
    )


def with_new_path(config: ModelConfig, options: Retrofit) -> ModelConfig:
    """Gives the new path of each dual block its width, beside a pretrained one.

    Raises UserError where share or budget leave it none.
    """
    new, known = ("d_ffn_wide", "d_ffn") if options.path == "deep" else ("d_ffn", "d_ffn_wide")
    d, width = config.d_model, getattr(config, known)
    projections = projection_flops(d, config.n_heads, config.n_kv_heads)
    alpha = Fraction(str(50 if options.alpha is None else options.alpha)) / 100
    share = alpha if known == "d_ffn" else 1 - alpha  # of the pretrained path
    widths = []
    for layer in config.layers:
        if layer.block != "dual":
            widths.append(width)
            continue
        times, own = (layer.loops, 1) if known == "d_ffn" else (1, layer.loops)
        spent = times * (projections + 6 * d * config.effective_width(width))
        if options.budget is None:
            rest = spent / share - spent
        else:
            rest = Fraction(options.budget - gate_flops(config) - spent)
        exact = (rest / own - projections) / (6 * d)
        widths.append(largest_width(exact, config.ffn_multiple_of))
        if widths[-1] < 1:
            least = spent + own * (projections + 6 * d * config.ffn_multiple_of)
            raise UserError(
                f"--{'alpha' if options.budget is None else 'budget'} leaves the new path of a "
                f"dual block nothing for an FFN; --budget {least + gate_flops(config)} would do"
            )
    new_widths: Any = widths[0] if len(set(widths)) == 1 else widths
    return replace(config, **{new: new_widths})


def _found(given: str) -> tuple[Path, str | None]:
    """The folder of a pretrained model, and the name of the GGUF file in it that is meant."""
    path, shown = Path(given), f"--pretrained '{given}'"
    if path.is_dir():
        return path, None
    if path.is_file():
        if path.suffix != ".gguf":
            raise UserError(f"{shown} is a file, but no GGUF; give its folder")
        return path.parent, path.name
    if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", given):
        raise UserError(f"{shown} does not exist; give a folder, a GGUF file, or OWNER/NAME")
    api = hub.connect(shown)
    with hub.explained(shown, f"{api.endpoint}/{given}", api):
        files = ["*.json", "*.safetensors", CARD]
        return Path(api.snapshot_download(given, allow_patterns=files)), None


def _name(options: Retrofit) -> str:
    """The model's name, with its kind of block, as the recipe's: `SmolLM2-135M-loop`."""
    name = re.sub(r"[^\w.-]+", "-", Path(options.pretrained).resolve().name.removesuffix(".gguf"))
    return f"{name}-{options.block}" if isinstance(options.block, str) else f"{name}-mixed"
