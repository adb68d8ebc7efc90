"""The options of `dualpath generate`, and their checks; imports nothing slow."""

from contextlib import suppress
from dataclasses import dataclass

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import replacing
from dualpath_cli.base.ranges import Place, check_ranges
from dualpath_cli.recipe.options import (
    Overrides,
    OwnClasses,
    Sampling,
    Where,
    folder_of,
    path_of,
)
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Intervention


@dataclass(frozen=True, kw_only=True)
class Generate(Where, OwnClasses, Overrides, Sampling):
    """Continues prompts, or writes texts without a prompt, with sampling as in
    transformers.

    Keys and values of every loop are kept. --intervention kv_slots=1 keeps fewer;
    halting=0.1 and skip=0.1 save compute.
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
    out: Place | None = None
    """Write a JSON object for each text into this file instead of the texts to the
    terminal."""
    max_new_tokens: int = 100
    """Most new tokens of a text; a text also ends at the end of the model's window."""
    stop: tuple[str, ...] = ()
    """End a text before any of these strings."""
    seed: int = 0
    """Seed; each text draws by the seed, its prompt's number and its sample's
    number."""
    speculate: int | None = None
    """Draft up to N tokens with one loop, then verify the draft with all loops at once.
    Texts have the same distribution as without drafts. One text at a time."""
    batch_size: int | None = None
    """Texts in a batch; by default 16, or 1 with --speculate."""
    compile: bool = False
    """Compile the model: takes about a minute, and makes small batches faster."""

    def __post_init__(self) -> None:
        for mixin in (Sampling, Overrides, Where):
            mixin.__post_init__(self)
        check_ranges(
            self,
            {
                "num_samples": (1, 1 << 24),
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

    for number, layer in enumerate(model.layers):
        if layer.block == "wide":
            continue
        in_layer = None if change is None else change.within(number)
        forced = None if in_layer is None else in_layer.loops
        if (forced or layer.loops) > 1:
            return
    raise UserError("--speculate drafts with one loop, and needs more loops to verify")


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

    folder_of("--out", path.parent).mkdir(parents=True, exist_ok=True)
    # A folder without permission is refused now, not after the texts are written.
    with suppress(LookupError), replacing(path):
        raise LookupError
