"""`dualpath generate`: prompts, the model, its texts. Checks come before torch."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dualpath_cli.base.errors import UserError, did_you_mean
from dualpath_cli.data.documents import format_of
from dualpath_cli.data.rows import BadRow, Rows, kind_of, read_rows
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.decoding.options import (
    Generate,
    check_change,
    check_writable,
)
from dualpath_cli.run.trained import find_trained


def generate(options: Generate) -> str:
    """Generates texts; returns the path of their file, or nothing if they are
    printed."""
    if options.out is not None:
        check_writable(options.out)
    change = options.change
    trained = find_trained(options.ckpt_path, own_classes=options.own_classes)
    trained.check(change)
    model_config = trained.settings.model
    check_change(options, change, model_config)

    prompts = read_prompts(options.prompt, options.file)
    tokenizer = trained.run.tokenizer
    encoded = encode_prompts(prompts, tokenizer, model_config.max_seq_len)

    # Mistakes were found above, before the slow imports.
    from dualpath_cli.decoding.decoder import Decoder, join_products
    from dualpath_cli.decoding.texts import GeneratedText, generate_texts
    from dualpath_cli.decoding.writing import draft_of
    from dualpath_cli.run.weights import (
        autocast_of,
        device_of,
        load_model,
        round_weights,
    )

    model = load_model(trained, device_of(options.device))
    autocast = autocast_of(options.precision)
    if autocast is not None:
        # Else each pass would round them again.
        round_weights(model, autocast)
    join_products(model)
    draft = draft_of(model_config) if options.speculate else None
    decoder = Decoder(model, change, autocast, compiled=options.compile, draft=draft)

    samples = range(1, options.num_samples + 1)
    texts = [
        GeneratedText(prompt.text, ids, number, sample)
        for number, (prompt, ids) in enumerate(zip(prompts, encoded, strict=True), 1)
        for sample in samples
    ]
    generate_texts(options, decoder, tokenizer, texts)
    return options.out or ""


KEYS = ("prompt", "question", "text")
"""Fields that may hold a row's prompt; the first present field is taken."""


class Prompt(NamedTuple):
    text: str
    place: str  # its origin, for messages: an option's number, a line of a file, stdin


def read_prompts(texts: Sequence[str], file: str | None) -> list[Prompt]:
    """Reads `--prompt` and `--file`; without either there is one empty prompt."""
    if file == "-":
        return [_read_stdin()]
    if file is not None:
        return _read_prompt_file(Path(file))
    if not texts:
        return [Prompt("", "the empty prompt")]

    return [
        _checked_prompt(text, f"--prompt, number {number},")
        for number, text in enumerate(texts, 1)
    ]


def _checked_prompt(text: str, place: str) -> Prompt:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{place} is not valid Unicode") from None
    return Prompt(text, place)


def _read_stdin() -> Prompt:
    """Stdin as one prompt: its bytes are read as those of a file."""
    if sys.stdin is None:
        raise UserError("--file -: stdin is closed; give a file, or --prompt")

    content = Rows("stdin", ".txt", 1, [sys.stdin.buffer.read()])
    ((_, row),) = content.parsed()
    return _prompt_of_row(row, "stdin")


def _read_prompt_file(path: Path) -> list[Prompt]:
    if path.is_dir() or not path.exists():
        siblings = path.parent.iterdir() if path.parent.is_dir() else ()
        files = [other.name for other in siblings if other.is_file()]
        near = did_you_mean(path.name, files)
        way_out = near or "; give one, or - for stdin"
        raise UserError(f"--file '{path}' is not a file{way_out}")
    if kind_of(path) == ".parquet":
        raise UserError(
            f"--file '{path}': give prompts as .jsonl, .jsonl.gz or .jsonl.zst"
        )

    prompts = [
        _prompt_of_row(row, rows.place(number))
        for rows in read_rows(path, (), (), lambda count: None, 1 << 20)
        for number, row in rows.parsed()
    ]
    if not prompts:
        raise UserError(f"--file '{path}' holds no prompt")
    return prompts


def _prompt_of_row(row: dict[str, Any] | BadRow, place: str) -> Prompt:
    try:
        if isinstance(row, BadRow):
            raise row
        for key in KEYS:
            if key in row:
                return Prompt(format_of("", "", key).render(row), place)

        keys = f"{', '.join(KEYS[:-1])} or {KEYS[-1]}"
        raise BadRow(f"no field {keys} (fields: {', '.join(row)})")
    except BadRow as problem:
        raise UserError(f"{place}: {problem}") from None


def encode_prompts(
    prompts: Sequence[Prompt], tokenizer: Tokenizer, window: int
) -> list[list[int]]:
    """The ids of each prompt after an end-of-text id, as before every text in
    training.

    Raises UserError for a prompt that leaves no room in the model's window.
    """
    encoded = []
    all_ids = tokenizer.encode_batch([prompt.text for prompt in prompts])
    for prompt, ids in zip(prompts, all_ids, strict=True):
        if 1 + len(ids) > window:
            raise UserError(
                f"{prompt.place} has {len(ids):,} tokens, the model's window has room "
                f"for {window - 1:,}; shorten the prompt"
            )
        encoded.append([tokenizer.eot_id, *ids.tolist()])

    return encoded
