"""The words of `dualpath generate`; `request` says what they mean."""

from typing import Any

from dualpath_cli import overrides
from dualpath_cli.options import add_device, add_list_option, add_precision

MAX_NEW_TOKENS = 100
BATCH_SIZE = 16


def add_arguments(parser: Any) -> None:
    what = parser.add_argument_group("what is written")
    text = "A run folder, a checkpoint inside one, or an exported file."
    what.add_argument("--ckpt-path", metavar="RUN", help=text)
    text = "Texts to go on from; without any, and without --file, the model begins by itself."
    add_list_option(what, "--prompt", "TEXT", text)
    text = (
        "Prompts instead: .jsonl, also as .gz or .zst, by the field prompt, else question, else "
        "text; any other file, or - for stdin, is one prompt."
    )
    what.add_argument("--file", metavar="FILE", help=text)
    text = "Texts to write for each prompt (default 1)."
    what.add_argument("--num-samples", metavar="N", default="1", help=text)
    text = "Write a JSON object for each text into this file instead of the texts to the terminal."
    what.add_argument("--out", metavar="FILE", help=text)
    _add_ends(parser.add_argument_group("where a text ends"))
    _add_sampling(parser.add_argument_group("how the next token is drawn, as in transformers"))
    _add_savings(parser.add_argument_group("what is left out, of caches and of compute"))
    _add_settings(parser.add_argument_group("how the model runs"))


def _add_ends(group: Any) -> None:
    text = f"Tokens of a text at most (default {MAX_NEW_TOKENS}); also where the window ends."
    group.add_argument("--max-new-tokens", metavar="N", default=str(MAX_NEW_TOKENS), help=text)
    add_list_option(group, "--stop", "TEXT", "End before any of these.")
    text = "Let end-of-text be a token like any other."
    group.add_argument("--ignore-eot", action="store_true", help=text)
    text = "Cut a prompt on the left so that --max-new-tokens fit into the window behind it."
    group.add_argument("--truncate", action="store_true", help=text)


def _add_sampling(group: Any) -> None:
    group.add_argument("--greedy", action="store_true", help="Always take the likeliest token.")
    text = "Divide logits by this; below 1 what is likely gets likelier (default 1)."
    group.add_argument("--temperature", metavar="X", help=text)
    text = "Draw from the K likeliest tokens alone."
    group.add_argument("--top-k", metavar="K", help=text)
    text = "Draw from the likeliest tokens that together have this probability."
    group.add_argument("--top-p", metavar="X", help=text)
    text = "Draw from the tokens that have at least this fraction of the likeliest's probability."
    group.add_argument("--min-p", metavar="X", help=text)
    text = "Divide positive logits of tokens that are in the text by this, multiply negative ones."
    group.add_argument("--repetition-penalty", metavar="X", help=text)
    text = "Each text draws by this, its prompt's number and its own (default 0)."
    group.add_argument("--seed", metavar="N", default="0", help=text)


def _add_savings(group: Any) -> None:
    text = "Keep N keys and values of a deep path's steps: step k writes slot k mod N."
    group.add_argument("--kv-slots", metavar="N", help=text)
    text = "End a token's loop once at most this is left of its step weights."
    group.add_argument("--exit-below", metavar="X", help=text)
    text = "Leave a path of a dual block out for tokens whose gate is below this."
    group.add_argument("--skip-below", metavar="X", help=text)
    text = (
        "Draft up to N tokens with one loop, then verify them with all loops at once: the texts "
        "are distributed as without. One text at a time."
    )
    group.add_argument("--speculate", metavar="N", help=text)


def _add_settings(group: Any) -> None:
    overrides.add_arguments(group)
    text = f"Texts that are written together (default {BATCH_SIZE})."
    group.add_argument("--batch-size", metavar="N", help=text)
    add_precision(group)
    text = "Compile the model, a minute or so, for many texts: small batches are then faster."
    group.add_argument("--compile", action="store_true", help=text)
    add_device(group)
