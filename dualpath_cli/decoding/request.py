"""`Generate`: the options of `dualpath generate`, its prompts, and their checks without torch.

Prompts are words, rows of a file, a whole text, or none.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualpath_cli.base.errors import UserError, did_you_mean
from dualpath_cli.base.ranges import Place, check_ranges
from dualpath_cli.base.system import replacing
from dualpath_cli.data.documents import format_of
from dualpath_cli.data.rows import BadRow, kind_of, read_rows
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.decoding.sampling import Sampling
from dualpath_cli.recipe.options import (
    Overrides,
    OwnClasses,
    Where,
    folder_of,
    path_of,
    read_overrides,
)
from dualpath_cli.run.trained import Trained, find
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Intervention

KEYS = ("prompt", "question", "text")
"""Fields that may hold a row's prompt; the first one present does."""


@dataclass(frozen=True)
class Prompt:
    """The beginning of a text, which a model continues."""

    text: str
    place: str  # its origin, for messages: an option's number, a line of a file, stdin


def read_prompts(words: Sequence[str], file: str | None) -> list[Prompt]:
    """Reads `--prompt` and `--file`; without either there is one prompt, which is empty."""
    if file == "-":
        try:
            return [_valid(sys.stdin.read(), "stdin")]
        except UnicodeDecodeError as error:
            raise UserError(f"stdin is no UTF-8 at byte {error.start}") from None
    if file is not None:
        return list(_of_file(Path(file)))
    if not words:
        return [Prompt("", "the empty prompt")]
    return [_valid(text, f"--prompt, number {n},") for n, text in enumerate(words, 1)]


def _valid(text: str, place: str) -> Prompt:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{place} is no valid Unicode") from None
    return Prompt(text, place)


def _of_file(path: Path) -> Iterator[Prompt]:
    if path.is_dir():
        raise UserError(f"--file '{path}' is a folder; give a file, or - for stdin")
    if not path.exists():
        others = path.parent.iterdir() if path.parent.is_dir() else ()
        near = did_you_mean(path.name, (other.name for other in others))
        raise UserError(f"--file '{path}' is no file{near or '; give one, or - for stdin'}")
    kind = kind_of(path)
    if kind == ".parquet":
        raise UserError(f"--file '{path}': give prompts as .jsonl, .jsonl.gz or .jsonl.zst")
    empty = True
    for rows in read_rows(path, (), (), lambda count: None, 1 << 20):
        for number, row in rows.parsed():
            try:
                yield _of_row(row, kind, rows.place(number))
            except BadRow as problem:
                raise UserError(f"{rows.place(number)}: {problem}") from None
            empty = False
    if empty:
        raise UserError(f"--file '{path}' holds no prompt")


def _of_row(row: dict[str, Any] | BadRow, kind: str, place: str) -> Prompt:
    if isinstance(row, BadRow):
        raise row
    key = next((key for key in KEYS if key in row), None)
    if key is None:
        raise BadRow(f"no field {', '.join(KEYS[:-1])} or {KEYS[-1]} (fields: {', '.join(row)})")
    return Prompt(format_of("", kind, key).render(row), place)


def ids_of(
    prompts: Sequence[Prompt], tokenizer: Tokenizer, window: int, most_new: int, truncate: bool
) -> list[list[int]]:
    """The ids of each prompt, with end-of-text before them, as before every text in training.

    With `truncate` a long prompt loses its beginning, so that `most_new` ids fit behind it.
    """
    if truncate and most_new >= window:
        raise UserError(
            f"--truncate: --max-new-tokens {most_new:,} leave nothing of the model's window of "
            f"{window:,} tokens to prompts"
        )
    found = []
    encoded = tokenizer.encode_batch([prompt.text for prompt in prompts])
    for prompt, text_ids in zip(prompts, encoded, strict=True):
        ids = text_ids.tolist()
        if truncate:
            ids = ids[max(0, len(ids) - (window - most_new)) :]
        if 1 + len(ids) > window:
            raise UserError(
                f"{prompt.place} has {len(ids):,} tokens, the model's window has room for "
                f"{window - 1:,}; shorten it, or give --truncate"
            )
        found.append([tokenizer.eot_id, *ids])
    return found


@dataclass(frozen=True, kw_only=True)
class Generate(Where, OwnClasses, Overrides, Sampling):
    """Continues prompts, or begins texts by itself, with sampling as in transformers.

    Keys and values of every loop are kept; --intervention kv_slots=1, halting=0.1 or skip=0.1
    leave some of them, or some compute, out.
    """

    ckpt_path: Place
    """Run folder, a checkpoint inside one, or an exported folder."""
    prompt: tuple[str, ...] = ()
    """Texts to continue; without any, and without --file, the model begins by itself."""
    file: Place | None = None
    """Prompts instead: .jsonl, also as .gz or .zst, by the field prompt, else question, else text;
    any other file, or - for stdin, is one prompt."""
    num_samples: int = 1
    """Texts for each prompt."""
    out: Place | None = None
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
        return self.batch_size or (1 if self.speculate else 16)

    def read(
        self,
    ) -> tuple[Trained, Tokenizer, Intervention | None, list[tuple[Prompt, list[int]]]]:
        """Finds the model, its tokenizer and override, and the prompts with their ids."""
        if self.out is not None:
            _check_writable(self.out)
        change = read_overrides(self)
        trained = find(self.ckpt_path, own_classes=self.own_classes)
        trained.check(change)
        model = trained.settings.model
        if change is not None and change.needs_whole_text and (self.compile or self.speculate):
            option = "--compile" if self.compile else "--speculate"
            raise UserError(f"{option} goes with a cache, and {change.name} goes without one")
        if self.speculate:
            _check_drafts(change, model)
        prompts = read_prompts(self.prompt, self.file)
        tokenizer, window = trained.tokenizer(), model.max_seq_len
        ids = ids_of(prompts, tokenizer, window, self.max_new_tokens, self.truncate)
        return trained, tokenizer, change, list(zip(prompts, ids, strict=True))


def _check_drafts(change: Intervention | None, model: ModelConfig) -> None:
    """Refuses drafts that cannot be verified, or have no use."""
    if change is not None and change.kv_slots is not None:
        raise UserError(
            "--speculate goes without kv_slots: what a draft took the slots of would be lost"
        )
    deep = [(n, layer.loops) for n, layer in enumerate(model.layers) if layer.block != "wide"]
    forced = [(change and change.within(n), loops) for n, loops in deep]
    if all(((own and own.loops) or loops) == 1 for own, loops in forced):
        raise UserError("--speculate drafts with one loop, and there is no more to verify with")


def _check_writable(out: str) -> None:
    path = path_of("--out", out)
    if path.suffix != ".jsonl":
        raise UserError(f"--out '{out}' must end in .jsonl: it gets a JSON object a line")
    if path.exists():
        raise UserError(f"--out '{out}' is there already; remove it, or give another name")
    folder_of("--out", path.parent).mkdir(parents=True, exist_ok=True)
    with suppress(LookupError), replacing(path):  # refused now, not once the texts are there
        raise LookupError
