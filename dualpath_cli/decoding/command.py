"""`dualpath generate`: options, their checks, prompts; torch is imported after the
checks."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dualpath_cli.base.errors import UserError, did_you_mean
from dualpath_cli.base.files import folder_of, path_of, replacing
from dualpath_cli.base.ranges import Place, check_ranges
from dualpath_cli.data.documents import format_of
from dualpath_cli.data.rows import BadRow, kind_of, read_rows
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.decoding.options import (
    DeviceOptions,
    Overrides,
    Sampling,
    read_overrides,
)
from dualpath_cli.run.trained import find_trained
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.spec.own_checks import OwnClasses


@dataclass(frozen=True, kw_only=True)
class Generate(DeviceOptions, OwnClasses, Overrides, Sampling):
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
        for mixin in (Sampling, Overrides, DeviceOptions):
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
        for name in ("temperature", "top_k", "top_p"):
            if self.greedy and getattr(self, name) not in (0, getattr(Sampling, name)):
                option = name.replace("_", "-")
                raise UserError(
                    f"--greedy takes the likeliest token: leave out --{option}"
                )
        if self.greedy and self.num_samples > 1:
            raise UserError(
                f"--greedy would write the same text {self.num_samples:,} times; leave "
                "out --greedy or --num-samples"
            )
        if self.speculate and self.batch_size not in (None, 1):
            raise UserError(
                "--speculate writes one text at a time: leave out --batch-size"
            )

    @property
    def together(self) -> int:
        return self.batch_size or (1 if self.speculate else 16)


def run(options: Generate) -> str:
    """Generates texts; returns the path of their file, or nothing if they are
    printed."""
    if options.out is not None:
        _check_writable(options.out)
    change = read_overrides(options)
    trained = find_trained(options.ckpt_path, own_classes=options.own_classes)
    trained.check(change)
    if (
        change is not None
        and change.needs_whole_text
        and (options.compile or options.speculate)
    ):
        option = "--compile" if options.compile else "--speculate"
        raise UserError(f"{option} needs a cache, and {change.name} excludes a cache")
    if options.speculate:
        _check_drafts(change, trained.settings.model)
    prompts = read_prompts(options.prompt, options.file)
    tokenizer = trained.run.tokenizer
    encoded = ids_of(prompts, tokenizer, trained.settings.model.max_seq_len)
    from dualpath_cli.decoding import texts
    from dualpath_cli.decoding.decoder import Decoder, join_products
    from dualpath_cli.decoding.writing import DRAFT
    from dualpath_cli.run.weights import (
        autocast_of,
        device_of,
        load_model,
        round_weights,
    )

    model, autocast = (
        load_model(trained, device_of(options.device)),
        autocast_of(options.precision),
    )
    if autocast is not None:
        round_weights(model, autocast)
    join_products(model)
    draft = DRAFT if options.speculate else None
    decoder = Decoder(model, change, autocast, compiled=options.compile, draft=draft)
    asked = [
        texts.Text(prompt.text, ids, number, sample)
        for number, (prompt, ids) in enumerate(zip(prompts, encoded, strict=True), 1)
        for sample in range(1, options.num_samples + 1)
    ]
    texts.write(options, decoder, tokenizer, asked)
    return options.out or ""


def _check_drafts(change: Intervention | None, model: ModelConfig) -> None:
    """Refuses drafts that cannot be verified, or are useless."""
    if change is not None and change.kv_slots is not None:
        raise UserError(
            "--speculate excludes kv_slots: a draft would overwrite the slots of "
            "earlier tokens"
        )
    deep = [
        (n, layer.loops)
        for n, layer in enumerate(model.layers)
        if layer.block != "wide"
    ]
    forced = [(change and change.within(n), loops) for n, loops in deep]
    if all(((own and own.loops) or loops) == 1 for own, loops in forced):
        raise UserError(
            "--speculate drafts with one loop, and needs more loops to verify"
        )


def _check_writable(out: str) -> None:
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
    # refused now, not after the texts are written
    with suppress(LookupError), replacing(path):
        raise LookupError


KEYS = ("prompt", "question", "text")
"""Fields that may hold a row's prompt; the first present field is taken."""


class Prompt(NamedTuple):
    text: str
    place: str  # its origin, for messages: an option's number, a line of a file, stdin


def read_prompts(words: Sequence[str], file: str | None) -> list[Prompt]:
    """Reads `--prompt` and `--file`; without either there is one empty prompt."""
    if file == "-":
        try:
            return [_valid(sys.stdin.read(), "stdin")]
        except UnicodeDecodeError as error:
            raise UserError(f"stdin is no UTF-8 at byte {error.start}") from None
    if file is not None:
        return _of_file(Path(file))
    if not words:
        return [Prompt("", "the empty prompt")]
    return [_valid(text, f"--prompt, number {n},") for n, text in enumerate(words, 1)]


def _valid(text: str, place: str) -> Prompt:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{place} is no valid Unicode") from None
    return Prompt(text, place)


def _of_file(path: Path) -> list[Prompt]:
    if path.is_dir() or not path.exists():
        others = path.parent.iterdir() if path.parent.is_dir() else ()
        near = did_you_mean(path.name, (other.name for other in others))
        raise UserError(
            f"--file '{path}' is no file{near or '; give one, or - for stdin'}"
        )
    if kind_of(path) == ".parquet":
        raise UserError(
            f"--file '{path}': give prompts as .jsonl, .jsonl.gz or .jsonl.zst"
        )
    prompts = [
        _of_row(row, rows.place(number))
        for rows in read_rows(path, (), (), lambda count: None, 1 << 20)
        for number, row in rows.parsed()
    ]
    if not prompts:
        raise UserError(f"--file '{path}' holds no prompt")
    return prompts


def _of_row(row: dict[str, Any] | BadRow, place: str) -> Prompt:
    try:
        if isinstance(row, BadRow):
            raise row
        key = next((key for key in KEYS if key in row), None)
        if key is None:
            raise BadRow(
                f"no field {', '.join(KEYS[:-1])} or {KEYS[-1]} (fields: "
                f"{', '.join(row)})"
            )
        return Prompt(format_of("", "", key).render(row), place)
    except BadRow as problem:
        raise UserError(f"{place}: {problem}") from None


def ids_of(
    prompts: Sequence[Prompt], tokenizer: Tokenizer, window: int
) -> list[list[int]]:
    """The ids of each prompt after an end-of-text id, as before every text in
    training."""
    found = [
        ids.tolist()
        for ids in tokenizer.encode_batch([prompt.text for prompt in prompts])
    ]
    for prompt, ids in zip(prompts, found, strict=True):
        if 1 + len(ids) > window:
            raise UserError(
                f"{prompt.place} has {len(ids):,} tokens, the model's window has room "
                f"for {window - 1:,}; shorten the prompt"
            )
    return [[tokenizer.eot_id, *ids] for ids in found]
