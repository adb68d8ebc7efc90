"""`dualpath retrofit`: a pretrained model of transformers, written as a dual-path one.

The equations have a pretrained Llama as a special case (`export/hf/pretrained.py`).
Torch and transformers are imported after the first checks.
"""

import json
import re
import shlex
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import path_of, write_text
from dualpath_cli.base.ranges import LONGEST_NAME, Place, check_ranges
from dualpath_cli.base.version import versions
from dualpath_cli.data import hub
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.export.command import check_license, check_out, summary
from dualpath_cli.export.hf.pretrained_files import Files
from dualpath_cli.flops.count import projection_flops
from dualpath_cli.flops.widths import largest_width
from dualpath_cli.recipe.recipes import dump
from dualpath_cli.recipe.settings import Settings, settings_from
from dualpath_cli.report.console import Progress, bytes_of_bytes, plain_console
from dualpath_cli.run.exported_folder import CARD, CONFIG
from dualpath_cli.run.run_folder import RECIPE, VERSIONS, read_run
from dualpath_cli.spec.config import BlockKind, ModelConfig

if TYPE_CHECKING:
    from dualpath_cli.export.hf.pretrained import Pretrained
    from dualpath_cli.model import DualPathLM

EXACT, NEAR = 1e-4, 2e-2
"""The most by which logits may be off, of their norm: by rounding, and with silent
loops."""


@dataclass(frozen=True, kw_only=True)
class Retrofit:
    """Writes a pretrained Llama, Mistral or Qwen3 as a dual-path model that computes
    the same, or nearly the same: an exported folder, which is the RUN of every command
    but compare. New loops begin nearly silent, new paths silent; `fit --run.init_from
    FOLDER` trains them. --core loops over a stretch of layers instead.

      dualpath retrofit --pretrained HuggingFaceTB/SmolLM2-135M --block loop \\
          --loops 4 --out loop4
      dualpath retrofit --pretrained HuggingFaceTB/SmolLM2-135M --core 9-20 \\
          --loops 4 --out core4
    """

    pretrained: Place
    """Folder of transformers with safetensors, OWNER/NAME on the Hugging Face hub, or a
    GGUF file."""
    out: Place
    """Folder to write."""
    block: BlockKind | list[BlockKind] = "loop"
    """wide: layers as they are. loop: each layer is a deep path. dual: each layer gets
    a new path beside it. Or a list with one kind per layer."""
    loops: int | list[int] = 4
    """K, the loops of a deep path; or a list with one number per layer. With --core R,
    how often the core is applied."""
    core: str | None = None
    """FIRST-LAST, both included: the layers, from 0, that are applied R times one after
    the other, with shared weights."""
    injection: Literal["none", "linear"] = "none"
    """Input of the core before each repetition but the first: none, not used again;
    linear, joined to the state by a learned matrix, which starts as the identity on the
    state."""
    damping: float | None = None
    """Initial gain of the repetitions after the first, whose gain is 1; by default
    0.0009, nearly silent. With this option the loss differs from the start, and is
    printed."""
    path: Literal["deep", "wide"] = "deep"
    """Path of a dual block that a pretrained layer becomes; the other path is new."""
    alpha: float = 50
    """Percent of a dual block's FLOPs for its deep path; sets the width of the new
    path."""
    license: str | None = None
    """Licence for the model card, as the hub spells it; by default that of the
    pretrained model's card."""
    overwrite: bool = False
    """Replace an exported folder at --out."""
    given: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_ranges(self, {"alpha": (0.1, 99.9), "damping": (0.001, 1)})
        check_license(self.license)
        if self.core is not None:
            self._check_core(self.core)
            return

        for option in ("injection", "damping"):
            if option in self.given:
                raise UserError(
                    f"--{option} has no effect without --core; leave it out, or give "
                    "--core FIRST-LAST"
                )

        blocks = {self.block} if isinstance(self.block, str) else set(self.block)
        effective = {"loops": ["loop", "dual"], "path": ["dual"], "alpha": ["dual"]}
        for option, choices in effective.items():
            if option in self.given and blocks.isdisjoint(choices):
                raise UserError(
                    f"--{option} has no effect on --block {', '.join(sorted(blocks))}; "
                    f"leave it out, or choose --block {' or '.join(choices)}"
                )

    def _check_core(self, core: str) -> None:
        """Raises UserError for another form, and for options that exclude a core."""
        if not re.fullmatch(r"\d{1,5}-\d{1,5}", core):
            raise UserError(
                f"--core must be the first and the last layer, from 0, such as 9-20, "
                f"not '{core:.60}'"
            )

        if "block" in self.given and self.block != "wide":
            raise UserError(
                "--core keeps the pretrained layers as wide blocks; leave out --block"
            )
        if not isinstance(self.loops, int) or self.loops < 2:
            raise UserError(
                "--loops must be one whole number from 2 on with --core, not "
                f"{self.loops}"
            )
        for option in ("path", "alpha"):
            if option in self.given:
                raise UserError(f"--{option} has no effect with --core; leave it out")


def retrofit(options: Retrofit) -> str:
    # Checked before a download.
    out = path_of("--out", options.out)
    out = check_out(out, Path(options.pretrained), options.overwrite)
    folder, gguf = _find_pretrained(options.pretrained)
    source = _open(options, folder, gguf)

    config = _configuration(source, options)
    tokenizer = source.tokenizer()
    license = options.license or source.license()
    run_names = {"recipe": _name(options), "name": "retrofit"}
    recipe = settings_from({"model": asdict(config), "run": run_names})

    model = source.model(config, options.path, options.damping)
    comparison = _compare(source, model, tokenizer, options.damping)
    around = source.around_texts(tokenizer)

    facts = versions() | {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "id": uuid.uuid4().hex,
        "step": 0,
        "model": recipe.as_recipe()["model"],
        "tokenizer": tokenizer.fingerprint,
        "retrofit": {
            "pretrained": options.pretrained,
            "sha256": source.sha256(),
            **comparison,
            "around_texts": around,
        },
    }
    # Nothing is written before all checks have passed.
    parameters = _write_model(model, recipe, tokenizer, facts, out, license)

    quoted = shlex.quote(str(out))
    recipe_in_folder = shlex.quote(f"{out}/{RECIPE}")
    return (
        f"{summary(f'{recipe.run.recipe}/retrofit', parameters, out)}\n"
        f"{_shown(comparison)}"
        f"{_other_tokens(around, tokenizer)}"
        f"next: dualpath validate --ckpt-path {quoted} --data.val.NAME FILE\n"
        f"or:   dualpath fit --config RECIPE --config {recipe_in_folder} "
        f"--run.init_from {quoted} --data.path DATA --model.max_seq_len LENGTH"
    )


def _open(options: Retrofit, folder: Path, gguf: str | None) -> "Pretrained":
    """Checks the files before the slow imports."""
    try:
        if gguf is not None:
            import_module("gguf")
        files = Files(folder, gguf, f"--pretrained '{options.pretrained}'")
        from dualpath_cli.export.hf.pretrained import Pretrained
    except ImportError as error:
        raise UserError(
            f"retrofit needs {error.name}: in the clone, pip install '.[retrofit]'"
        ) from None

    return Pretrained(files)


def _configuration(source: "Pretrained", options: Retrofit) -> ModelConfig:
    changes: dict[str, Any] = {"block": options.block, "loops": options.loops}
    if options.core is not None:
        changes = {
            "block": "wide",
            "loops": 1,
            "core": [int(layer) for layer in options.core.split("-")],
            "core_loops": options.loops,
            "injection": options.injection,
        }

    try:
        return with_new_path(replace(source.config, **changes), options)
    except ValueError as error:
        # a list of another length; a head size that no block can have
        raise UserError(f"{source.shown}: {error}") from None


def _compare(
    source: "Pretrained",
    model: "DualPathLM",
    tokenizer: Tokenizer,
    damping: float | None,
) -> dict[str, Any]:
    """How far the model is from the pretrained one, for `versions.json`.

    Raises UserError for a model that does not compute what the pretrained one does; a
    damped core with one repetition does.
    """
    config = model.config
    repeats = config.core_loops > 1 and damping is None
    most = NEAR if config.most_loops > 1 or repeats else EXACT

    difference = source.difference(model, None if damping is None else 1)
    if not difference <= most:  # also nan
        raise UserError(
            f"{source.shown}: the logits would differ from those of transformers by "
            f"{difference:.1e} of their norm, more than {most:.0e}; a setting in "
            f"{CONFIG} changes what transformers computes, and no block has that"
        )

    if damping is None:
        return {"difference": difference}

    from dualpath_cli.export.hf.pretrained import losses_of_core

    before, after = losses_of_core(model, tokenizer.eot_id)
    return {
        "difference": difference,
        "damping": damping,
        "loss": {"pretrained": before, "damped": after},
    }


def _shown(comparison: Mapping[str, Any]) -> str:
    """The lines of the answer about the comparison with the pretrained model."""
    size = f"{comparison['difference']:.1e} of their norm"
    differ = f"differ from those of transformers by {size}"
    if "damping" not in comparison:
        return f"logits {differ}\n"

    loss = comparison["loss"]
    return (
        f"logits with one repetition {differ}\n"
        "loss on text that the pretrained model generated: "
        f"{loss['damped']:.3f} nats a token; of the pretrained model itself: "
        f"{loss['pretrained']:.3f}\n"
    )


def _write_model(
    model: "DualPathLM",
    recipe: Settings,
    tokenizer: Tokenizer,
    facts: Mapping[str, Any],
    out: Path,
    license: str | None,
) -> int:
    """Writes the exported folder; returns the number of parameters."""
    from dualpath_cli.export.hf.folder import Weights, write_folder

    weights = Weights.of_model(model)
    with tempfile.TemporaryDirectory() as text:
        begun = Path(text)  # the files of a run folder, without checkpoints
        tokenizer.save(begun)
        # Only the model and the names: over a recipe, the rest stays the recipe's.
        run_names = {"recipe": recipe.run.recipe, "name": recipe.run.name}
        write_text(begun / RECIPE, dump({"model": facts["model"], "run": run_names}))
        write_text(begun / VERSIONS, json.dumps(facts))

        console = plain_console()
        with Progress(console, "writing", bytes_of_bytes, weights.bytes) as progress:
            run = read_run(begun, begun, 0)
            write_folder(run, recipe, weights, out, progress, license=license)
    return weights.parameters


def _other_tokens(around: dict[str, Any], tokenizer: Tokenizer) -> str:
    """A line about tokens that only transformers puts around texts, if there are
    any."""
    end = tokenizer.token_values()[tokenizer.eot_id].decode()
    others = set(around["ends"])
    if around["bos"]:
        others.add(around["bos"][0])
    others.discard(end)
    if not others and around["chat_template"] is None:
        return ""

    template = "with" if around["chat_template"] else "without"
    line = (
        f"transformers reads the folder {template} a chat template; dualpath begins "
        f"and ends texts by {end}"
    )
    if others:
        line += f", not by {', '.join(sorted(others))}"
    return line + "\n"


def with_new_path(config: ModelConfig, options: Retrofit) -> ModelConfig:
    """The model with the width of each dual block's new path, by --alpha.

    Raises UserError if the share is too small for any FFN.
    """
    deep = options.path == "deep"
    d = config.d_model
    width = config.d_ffn if deep else config.d_ffn_wide
    assert isinstance(width, int)
    projections = projection_flops(d, config.n_heads, config.n_kv_heads)
    deep_share = Fraction(str(options.alpha)) / 100
    share = deep_share if deep else 1 - deep_share  # of the pretrained path

    widths = []
    for layer in config.layers:
        if layer.block != "dual":
            widths.append(width)
            continue
        # The new path gets the rest of the FLOPs, and spends them in each of its loops.
        times, new_times = (layer.loops, 1) if deep else (1, layer.loops)
        flops = times * (projections + 6 * d * config.effective_width(width))
        new_flops = flops * (1 - share) / share / new_times
        ffn_width = (new_flops - projections) / (6 * d)
        widths.append(largest_width(ffn_width, config.ffn_multiple_of))

    if min(widths) < 1:
        other = "smaller" if deep else "larger"
        raise UserError(
            f"--alpha {options.alpha:g} leaves the new path no FFN; give a {other} one"
        )

    new_widths: Any = widths[0] if len(set(widths)) == 1 else widths
    return replace(config, **{"d_ffn_wide" if deep else "d_ffn": new_widths})


def _find_pretrained(given: str) -> tuple[Path, str | None]:
    """The folder of a pretrained model; of a GGUF file, the file's name in it."""
    path = Path(given)
    shown = f"--pretrained '{given}'"
    if path.is_dir():
        return path, None
    if path.is_file() and path.suffix == ".gguf":
        return path.parent, path.name

    if path.exists():
        kind = "pipe, a socket or a device"
        if path.is_file():
            kind = "file, but not a GGUF file"
        raise UserError(f"{shown} is a {kind}; give its folder")
    if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", given):
        raise UserError(
            f"{shown} does not exist; give a folder, a GGUF file, or OWNER/NAME"
        )

    api = hub.hub_client()
    with hub.explaining_errors(shown, f"{api.endpoint}/{given}", api):
        files = ["*.json", "merges.txt", "*.jinja", "*.safetensors", CARD]
        return Path(api.snapshot_download(given, allow_patterns=files)), None


def _name(options: Retrofit) -> str:
    """The recipe's name: the pretrained model's and the block (`SmolLM2-135M-loop`)."""
    file = Path(options.pretrained).resolve().name
    name = re.sub(r"[^\w.-]+", "-", file.removesuffix(".gguf"))
    block = options.block if isinstance(options.block, str) else "mixed"
    ending = f"-{block if options.core is None else 'core'}"

    # A folder's name may be longer than a recipe's.
    longest = LONGEST_NAME - len(ending)
    return name.encode()[:longest].decode(errors="ignore") + ending
