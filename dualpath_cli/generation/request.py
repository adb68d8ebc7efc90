"""`Generate`: the options of `dualpath generate`, and their checks without torch."""

from dataclasses import dataclass

from dualpath_cli.config import ModelConfig
from dualpath_cli.decoding.sampling import Sampling
from dualpath_cli.errors import UserError
from dualpath_cli.generation.prompts import Prompt, ids_of, read_prompts
from dualpath_cli.intervention import Intervention
from dualpath_cli.options import Overrides, OwnClasses, Where, folder_of, path_of, read_overrides
from dualpath_cli.ranges import check_ranges
from dualpath_cli.run.trained import Trained, find
from dualpath_cli.text.tokenizer import Tokenizer

WRITTEN = ("prompt", "number", "sample", "text", "new_tokens", "end")
"""Keys of a line of `--out`, beside those of the prompt's row."""
BATCH_SIZE = 16


@dataclass(frozen=True)
class Generate(Where, OwnClasses, Overrides, Sampling):
    """Continues prompts, or begins texts by itself, with sampling as in transformers.

    Keys and values of every loop are kept; --kv-slots, --exit-below and --skip-below leave some of
    them, or some compute, out.
    """

    ckpt_path: str | None = None
    """Run folder, a checkpoint inside one, or an exported file."""
    prompt: tuple[str, ...] = ()
    """Texts to continue; without any, and without --file, the model begins by itself."""
    file: str | None = None
    """Prompts instead: .jsonl, also as .gz or .zst, by the field prompt, else question, else text;
    any other file, or - for stdin, is one prompt."""
    num_samples: int = 1
    """Texts for each prompt."""
    out: str | None = None
    """Write a JSON object for each text into this file instead of the texts to the terminal."""
    max_new_tokens: int = 100
    """Longest text; it also ends where the model's window ends."""
    stop: tuple[str, ...] = ()
    """End before any of these texts."""
    ignore_eot: bool = False
    """Let end-of-text be a token like any other."""
    truncate: bool = False
    """Cut a prompt on the left so that --max-new-tokens fit into the window behind it."""
    seed: int = 0
    """Each text draws by this, its prompt's number and its own."""
    kv_slots: int | None = None
    """Keep N keys and values of a deep path's steps: step k writes slot k mod N."""
    exit_below: float | None = None
    """End a token's loop once at most this is left of its step weights."""
    skip_below: float | None = None
    """Leave a path of a dual block out for tokens whose gate is below this."""
    speculate: int | None = None
    """Draft up to N tokens with one loop, then verify them with all loops at once: the texts are
    distributed as without. One text at a time."""
    batch_size: int | None = None
    """Texts that are written together; by default 16, or 1 with --speculate."""
    compile: bool = False
    """Compile the model, a minute or so, for many texts: small batches are then faster."""

    def __post_init__(self) -> None:
        for mixin in (Sampling, Overrides, Where):
            mixin.__post_init__(self)
        check_ranges(self, {
            "num_samples": (1, 1 << 24), "max_new_tokens": (1, 1 << 24), "seed": (0, (1 << 62) - 1),
            "speculate": (1, 1000), "batch_size": (1, 1 << 16),
        })  # fmt: skip
        if self.ckpt_path is None:
            raise UserError(
                "generate needs --ckpt-path RUN: a run folder or a checkpoint inside one"
            )
        if self.prompt and self.file is not None:
            raise UserError("--prompt and --file exclude each other")
        if "" in self.stop:
            raise UserError("--stop '' would end every text at once; give a text")
        for name in ("temperature", "top_k", "top_p", "min_p"):
            if self.greedy and getattr(self, name) not in (0, getattr(Sampling, name)):
                option = name.replace("_", "-")
                raise UserError(f"--greedy takes the likeliest token: leave out --{option}")
        if self.greedy and self.num_samples > 1:
            raise UserError(
                f"--greedy would write the same text {self.num_samples:,} times; leave out one of "
                "both"
            )
        if self.speculate and self.batch_size not in (None, 1):
            raise UserError("--speculate writes one text at a time: leave out --batch-size")

    @property
    def together(self) -> int:
        """How many texts are written together."""
        return self.batch_size or (1 if self.speculate else BATCH_SIZE)

    def read(
        self,
    ) -> tuple[Trained, Tokenizer, Intervention | None, list[tuple[Prompt, list[int]]]]:
        """Finds the model, its tokenizer and override, and the prompts with their ids.

        Raises UserError where they do not go together, and where `--out` cannot be written.
        """
        _check_writable(self.out)
        change = read_overrides(self)
        assert self.ckpt_path is not None
        trained = find(self.ckpt_path)
        trained.check(change)
        model = trained.settings.model
        if change is not None and change.needs_whole_text and (self.compile or self.speculate):
            option = "--compile" if self.compile else "--speculate"
            raise UserError(f"{option} goes with a cache, and {change.name} goes without one")
        if self.speculate:
            _check_drafts(change, model)
        prompts = read_prompts(self.prompt, self.file, () if self.out is None else WRITTEN)
        tokenizer, window = trained.tokenizer(), model.max_seq_len
        ids = ids_of(prompts, tokenizer, window, self.max_new_tokens, self.truncate)
        return trained, tokenizer, change, list(zip(prompts, ids, strict=True))


def _check_drafts(change: Intervention | None, model: ModelConfig) -> None:
    """Raises UserError where drafts cannot be verified, or have no use."""
    if change is not None and change.kv_slots is not None:
        raise UserError(
            "--speculate goes without --kv-slots: what a draft took the slots of would be lost"
        )
    deep = [(n, layer.loops) for n, layer in enumerate(model.layers) if layer.block != "wide"]
    forced = [(change and change.within(n), loops) for n, loops in deep]
    if all(((own and own.loops) or loops) == 1 for own, loops in forced):
        raise UserError("--speculate drafts with one loop, and there is no more to verify with")


def _check_writable(out: str | None) -> None:
    if out is None:
        return
    path = path_of("--out", out)
    if path.suffix != ".jsonl":
        raise UserError(f"--out '{out}' must end in .jsonl: it gets a JSON object a line")
    if path.exists():
        raise UserError(f"--out '{out}' is there already; remove it, or give another name")
    folder_of("--out", path.parent).mkdir(parents=True, exist_ok=True)
    probe = path.with_name(f"{path.name}.partial")  # refused now, not once the texts are there
    probe.touch()
    probe.unlink()
