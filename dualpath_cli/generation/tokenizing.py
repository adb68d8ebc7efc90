"""A run's tokenizer, and prompts as the ids that a model goes on from; torch-free."""

from collections.abc import Sequence

from dualpath_cli.config import ModelConfig
from dualpath_cli.errors import UserError
from dualpath_cli.generation.prompts import Prompt
from dualpath_cli.run_folder import TOKENIZER, Run
from dualpath_cli.text.tokenizer import Tokenizer


def load_tokenizer(run: Run, config: ModelConfig) -> Tokenizer:
    """The tokenizer of a run's training data. Raises UserError where the model lacks ids of it."""
    tokenizer = Tokenizer.load(run.folder / TOKENIZER)
    ids, rows = tokenizer.vocab_size, config.vocab_size
    if ids > rows:
        raise UserError(f"'{run.folder}': the tokenizer has {ids:,} ids, the model {rows:,}")
    return tokenizer


def ids_of(
    prompts: Sequence[Prompt], tokenizer: Tokenizer, window: int, most_new: int, truncate: bool
) -> list[list[int]]:
    """The ids of each prompt after end-of-text, which stands before every text in training.

    With `truncate` a long prompt loses its beginning, so that `most_new` ids fit behind it.

    Raises:
        UserError: for a prompt that leaves no room in the window.
    """
    if truncate and most_new >= window:
        raise UserError(
            f"--truncate: --max_new_tokens {most_new:,} leave nothing of the model's window of "
            f"{window:,} tokens to prompts"
        )
    found = []
    for prompt, text_ids in zip(
        prompts, tokenizer.encode_batch([prompt.text for prompt in prompts]), strict=True
    ):
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
