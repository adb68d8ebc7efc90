"""Byte-level BPE as a `tokenizer.json` describes it: its training, bytes, identity, demands."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from dualpath_cli.errors import UserError

END_OF_TEXT = ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|end▁of▁sentence|>"]
"""Names that published tokenizers give to end-of-text, the likeliest first."""

Definition = dict[str, Any]
"""A parsed `tokenizer.json`."""


def byte_of_character() -> dict[str, int]:
    """Returns GPT-2's alphabet: the character that a vocabulary writes for each byte.

    Printable bytes stand for themselves, the other 68 for the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + n): byte for n, byte in enumerate(others)
    }


def definition_from_gpt2_files(vocab: dict[str, int], merges: str) -> Definition:
    """Builds the definition that GPT-2's `vocab.json` and `merges.txt` stand for.

    Raises UserError where the two do not fit together or end-of-text is missing.
    """
    pairs = [
        (left, right)
        for left, _, right in (line.partition(" ") for line in merges.splitlines())
        if right and left != "#version:"
    ]
    try:
        model = models.BPE(vocab=vocab, merges=pairs)
    except Exception as error:  # the library raises bare Exception
        raise UserError(f"tokenizer: merges.txt does not fit vocab.json: {error}") from None
    tokenizer = _tokenizer(model)
    tokenizer.add_special_tokens([name for name in END_OF_TEXT if name in vocab][:1])
    definition: Definition = json.loads(tokenizer.to_str())
    return definition


def train(texts: Iterable[str], vocab_size: int) -> str:
    """Trains a BPE and returns its `tokenizer.json`; equal texts give an equal one.

    It has `vocab_size` entries, or fewer where no more pairs are left to merge. End-of-text is the
    first one.
    """
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=END_OF_TEXT[:1],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer = _tokenizer(models.BPE())
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str(pretty=True)


def _tokenizer(model: models.BPE) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def check(definition: Definition, origin: str) -> None:
    """Raises UserError unless the definition is a byte-level BPE that keeps every byte of a text.

    Unicode normalisation to NFC is let pass: texts are then counted as normalised.
    """
    model = definition.get("model") or {}
    normalizer = definition.get("normalizer")
    if model.get("type") != "BPE":
        reason = f"its model is {model.get('type')}"
    elif "ByteLevel" not in {step.get("type") for step in _pre_tokenizers(definition)}:
        reason = "its pre-tokenizer does not go by bytes"
    elif model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        reason = "it marks parts of words"  # on which `tokenizers` may panic
    elif missing := [c for c in byte_of_character() if c not in model["vocab"]]:
        reason = f"its vocabulary lacks {len(missing)} of the 256 bytes"
    elif normalizer is not None and normalizer.get("type") != "NFC":
        reason = f"its normaliser {normalizer.get('type')} changes the text"
    else:
        return
    raise UserError(
        f"tokenizer '{origin}': {reason}; give a byte-level BPE such as GPT-2's, "
        "which can write any text"
    )


def end_of_text(definition: Definition, origin: str) -> int:
    """Returns the id of end-of-text: a known name, or the only special token there is.

    Raises UserError where neither settles it.
    """
    special = {t["content"]: t["id"] for t in definition["added_tokens"] if t["special"]}
    for name in END_OF_TEXT:
        if name in special:
            return int(special[name])
    if len(special) == 1:
        return int(next(iter(special.values())))
    raise UserError(
        f"tokenizer '{origin}': no special token is known to end a text "
        f"(special: {', '.join(special) or 'none'}); name one of them {END_OF_TEXT[0]}"
    )


def token_values(definition: Definition) -> list[bytes]:
    """Returns the bytes of each id; unused ids have none."""
    byte = byte_of_character()
    added = {t["id"]: t["content"] for t in definition["added_tokens"]}
    vocab: dict[str, int] = definition["model"]["vocab"]
    values = [b""] * (max([*vocab.values(), *added]) + 1)
    for token, id in vocab.items():
        if id not in added:
            values[id] = bytes(byte[c] for c in token)
    for id, content in added.items():
        values[id] = content.encode()
    return values


def fingerprint(definition: Definition) -> str:
    """Returns the sha256 of what decides the ids of a text, however the file is written.

    Equal for GPT-2 from a `tokenizer.json` and from `vocab.json` with `merges.txt`.
    """
    model = definition["model"]
    merges = [m.split(" ") if isinstance(m, str) else m for m in model["merges"]]
    added = [
        # A special token's other flags never matter: text is read as ordinary text.
        {k: t[k] for k in ("id", "content")}
        if t["special"]
        else {k: t[k] for k in ("id", "content", "lstrip", "rstrip", "single_word", "normalized")}
        for t in sorted(definition["added_tokens"], key=lambda t: t["id"])
    ]
    content = {
        "vocab": sorted(model["vocab"].items(), key=lambda item: item[1]),
        "merges": merges,
        "ignore_merges": bool(model.get("ignore_merges")),
        "normalizer": definition.get("normalizer"),
        # `trim_offsets` concerns offsets, not ids.
        "pre_tokenizer": [
            {k: v for k, v in step.items() if k != "trim_offsets"}
            for step in _pre_tokenizers(definition)
        ],
        "added_tokens": added,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _pre_tokenizers(definition: Definition) -> list[dict[str, Any]]:
    first = definition.get("pre_tokenizer") or {}
    return first["pretokenizers"] if first.get("type") == "Sequence" else [first]
