"""Options of commands that run a model without a Trainer: `generate` and `evaluate`.

Torch-free, so that a mistake in them shows at once.
"""

import re
from dataclasses import dataclass
from typing import Literal

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import check_can_write, folder_of, path_of
from dualpath_cli.base.processes import visible_gpus
from dualpath_cli.base.ranges import Place, check_ranges
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Intervention, parse_overrides
from dualpath_cli.spec.own_checks import OwnClasses


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """Where a model runs, and in which precision.

    Raises:
        UserError: for a device that is not here.
    """

    precision: Literal["float32", "bfloat16"] = "float32"
    """Type of matrix products: float32 or bfloat16."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""

    def __post_init__(self) -> None:
        name = self.device
        if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", name):
            raise UserError(
                f"unknown device '{name}'; choose from auto, cpu, cuda, cuda:N"
            )
        if not name.startswith("cuda"):
            return

        gpus = visible_gpus()
        number = int(name.removeprefix("cuda").removeprefix(":") or 0)
        if gpus is not None and number >= gpus:
            raise UserError(
                f"--device {name}: {gpus} such devices are here; give cpu or auto"
            )


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """The option of a command that overrides a model's loops or gates: see
    `parse_overrides`."""

    intervention: tuple[str, ...] = ()
    """Overrides, named as in results: K=3 (steps of every deep path), R=2 (repetitions
    of a core), gates=1,0, shuffled, shuffled:7, experts=1, experts=random:7,
    halting=0.1, skip=0.1, kv_slots=1, layers=0,2."""


def read_overrides(options: Overrides, *forced: str) -> Intervention | None:
    """Reads `--intervention`, after the words that another option stands for; None
    without an override."""
    change = parse_overrides([*forced, *options.intervention])
    if change is not None and change.tokens is not None:
        raise UserError(
            f"--intervention tokens={change.tokens}: only `dualpath ablate --suite "
            "token-classes` tags classes of tokens"
        )
    return change


@dataclass(frozen=True)
class Sampling:
    """Changes of probabilities before an id is drawn, as in transformers; by default
    none.

    Raises:
        ValueError: for a number out of its range.
    """

    temperature: float = 1.0
    """Divide logits by this: below 1, likely tokens become likelier."""
    top_k: int | None = None
    """Draw from the K likeliest tokens, with ties at the last; 0 is off."""
    top_p: float = 1.0
    """Draw from the likeliest tokens that together have this probability."""
    greedy: bool = False
    """Always take the likeliest token."""

    def __post_init__(self) -> None:
        if self.temperature == 0:
            raise ValueError(
                "temperature must be above 0, not 0; --greedy takes the likeliest"
            )
        ranges = {"temperature": (1e-6, 1e6), "top_k": (0, 1 << 24), "top_p": (1e-9, 1)}
        check_ranges(self, ranges)


@dataclass(frozen=True, kw_only=True)
class Generate(DeviceOptions, OwnClasses, Overrides, Sampling):
    """Continues prompts, or writes texts without a prompt, with sampling as in
    transformers.

    Keys and values of every loop are kept. --intervention kv_slots=1 keeps fewer;
    halting=0.1 and skip=0.1 save compute.

      dualpath generate --ckpt-path runs/quickstart/default --prompt '3 + 4 =' \\
          --max-new-tokens 20
    """

    ckpt_path: Place
    """Run folder, a checkpoint inside one, or an exported folder."""
    prompt: tuple[str, ...] = ()
    """Texts to continue; without --prompt and --file, the model writes from nothing."""
    file: Place | None = None
    """File of prompts instead: .jsonl, also .gz or .zst, with a field prompt, question
    or text (the first present is taken); any other file, or - for stdin, is one
    prompt."""
    num_samples: int = 1
    """Texts for each prompt."""
    loops: int | None = None
    """Forced loops of every deep path; the same as --intervention K=N."""
    out: Place | None = None
    """Write a JSON object for each text into this file instead of the texts to the
    terminal."""
    max_new_tokens: int = 100
    """The most new tokens of a text; it also ends where the model's window is full."""
    stop: tuple[str, ...] = ()
    """End a text before any of these strings."""
    seed: int = 0
    """Seed; each text draws by the seed, its prompt's number and its sample's
    number."""
    speculate: int | None = None
    """Draft up to N tokens with one loop, and one repetition of a core, then verify the
    draft with all loops at once. Texts have the same distribution as without drafts.
    One text at a time."""
    batch_size: int | None = None
    """Texts in a batch; by default 16, or 1 with --speculate."""
    compile: bool = False
    """Compile the model: takes up to a minute, and makes small batches faster."""

    def __post_init__(self) -> None:
        for mixin in (Sampling, DeviceOptions):
            mixin.__post_init__(self)
        check_ranges(
            self,
            {
                "num_samples": (1, 1 << 24),
                "loops": (1, 1000),
                "max_new_tokens": (1, 1 << 24),
                "seed": (0, (1 << 62) - 1),
                "speculate": (1, 1000),
                "batch_size": (1, 1 << 16),
            },
        )
        if self.prompt and self.file is not None:
            raise UserError("--prompt and --file exclude each other")
        if "" in self.stop:
            raise UserError("--stop '' would end every text at once; give a text")
        if self.greedy:
            self._check_greedy()
        if self.speculate and self.batch_size not in (None, 1):
            raise UserError(
                "--speculate writes one text at a time: leave out --batch-size"
            )

    def _check_greedy(self) -> None:
        for name in ("temperature", "top_k", "top_p"):
            default = getattr(Sampling, name)
            if getattr(self, name) not in (0, default):
                option = name.replace("_", "-")
                raise UserError(
                    f"--greedy takes the likeliest token: leave out --{option}"
                )

        if self.num_samples > 1:
            raise UserError(
                f"--greedy would write the same text {self.num_samples:,} times; leave "
                "out --greedy or --num-samples"
            )

    @property
    def change(self) -> Intervention | None:
        """The overrides; None without one."""
        forced = [] if self.loops is None else [f"K={self.loops}"]
        return read_overrides(self, *forced)

    @property
    def texts_at_once(self) -> int:
        """The number of texts in a batch."""
        if self.batch_size is not None:
            return self.batch_size
        return 1 if self.speculate else 16


def check_change(
    options: Generate, change: Intervention | None, model: ModelConfig
) -> None:
    """Raises UserError for an intervention that excludes --compile or --speculate."""
    needs_cache = options.compile or options.speculate
    if needs_cache and change is not None and change.needs_whole_text:
        option = "--compile" if options.compile else "--speculate"
        raise UserError(f"{option} needs a cache, and {change.name} excludes a cache")

    if options.speculate:
        _check_drafts(change, model)


def _check_drafts(change: Intervention | None, model: ModelConfig) -> None:
    """Refuses drafts that cannot be verified, or are useless."""
    if change is not None and change.kv_slots is not None:
        raise UserError(
            "--speculate excludes kv_slots: a draft would overwrite the slots of "
            "earlier tokens"
        )

    forced = None if change is None else change.core_loops
    if (forced or model.core_loops) > 1:
        return

    for number, layer in enumerate(model.layers):
        if layer.block == "wide":
            continue
        in_layer = None if change is None else change.within(number)
        forced = None if in_layer is None else in_layer.loops
        if (forced or layer.loops) > 1:
            return
    raise UserError(
        "--speculate drafts with one loop, but only one loop is run; leave out "
        "--speculate"
    )


def check_writable(out: str) -> None:
    """Raises UserError unless --out is the path of a new file that can be written."""
    path = path_of("--out", out)
    if path.suffix != ".jsonl":
        raise UserError(
            f"--out '{out}' must end in .jsonl: one JSON object a line is written"
        )
    if path.exists():
        raise UserError(
            f"--out '{out}' exists already; remove the file, or give another name"
        )

    folder_of("--out", path.parent)
    # A folder without permission is refused now, not after the texts are written.
    check_can_write(path)
