"""A parsed `tokenizer.json`: the bytes of its ids, its end-of-text, its identity.

It is the file of Hugging Face's `tokenizers`. Functions here compute only: they neither
read files nor encode.
"""

import hashlib
import json
from typing import Any

from dualpath_cli.base.errors import UserError

Definition = dict[str, Any]  # a parsed `tokenizer.json`

END_OF_TEXT = [
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|end▁of▁sentence|>",
]
"""Names that published tokenizers give to end-of-text, the likeliest first."""

MOST_IDS = 1 << 24
"""The most ids: the bytes of each are kept in a list."""

_MARK = "end_of_text"  # a key of a special token, which `tokenizers` itself passes over

_RARE_BYTES = {*range(1, 32), 127, 0xC0, 0xC1, *range(0xF1, 0x100)} - set(b"\t\n\r")
"""Bytes that published vocabularies lack: control characters, first bytes of characters
from U+40000 on (private use only), and bytes that UTF-8 never has."""

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_OF_CHARACTER = {chr(byte): byte for byte in _PRINTABLE}
BYTE_OF_CHARACTER |= {chr(0x100 + n): byte for n, byte in enumerate(_OTHERS)}
"""GPT-2's alphabet: the byte for each character. A printable byte is its own character,
the others are those from U+0100 on."""


def lacking_bytes(definition: Definition) -> set[int]:
    """Returns the bytes that are not an entry of a vocabulary."""
    vocab = definition["model"]["vocab"]
    alphabet = BYTE_OF_CHARACTER.items()
    return {byte for character, byte in alphabet if character not in vocab}


def check_definition(definition: Definition, origin: str) -> None:
    """Raises UserError for a tokenizer that cannot write any text.

    That every byte is a token, the kind of the normaliser, and added tokens that take
    the spaces beside them, do not show when a text is encoded. NFC, which texts are in,
    passes. `origin` names the tokenizer.
    """
    model = definition["model"]
    # Special ones are read as ordinary text.
    greedy = [
        token["content"]
        for token in definition["added_tokens"]
        if not token["special"] and (token["lstrip"] or token["rstrip"])
    ]
    normalizer = definition.get("normalizer")
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        reason = "it marks parts of words"  # on which `tokenizers` may panic
    elif missing := lacking_bytes(definition) - _RARE_BYTES:
        reason = f"its vocabulary lacks {len(missing)} of the 256 bytes"
    elif normalizer is not None and normalizer.get("type") != "NFC":
        reason = f"its normaliser {normalizer.get('type')} changes the text"
    elif greedy:
        reason = f"its token '{greedy[0]}' takes the spaces beside it"
    else:
        return

    raise UserError(
        f"tokenizer '{origin}': {reason}; give a byte-level BPE such as GPT-2's, "
        "which can write any text"
    )


def name_end_of_text(definition: Definition, name: Any) -> None:
    """Marks the special token that a model's configuration names as the end of a text.

    A known name, of `END_OF_TEXT`, takes precedence: the configuration of a chat model
    names the end of a turn, but its documents ended with the known token.
    """
    if isinstance(name, dict):
        name = name.get("content")
    added = definition.get("added_tokens", ())
    special = [token for token in added if token.get("special")]
    if any(token.get("content") in END_OF_TEXT for token in special):
        return

    for token in special:
        if token.get("content") == name:
            token[_MARK] = True


def end_of_text_id(definition: Definition, origin: str) -> int:
    """Returns the id of end-of-text.

    It is a known name, else the marked token, else the only special one. Raises
    UserError without any of them.
    """
    added = definition["added_tokens"]
    special = {token["content"]: token["id"] for token in added if token["special"]}
    for name in END_OF_TEXT:
        if name in special:
            return int(special[name])

    marked = [token["id"] for token in added if token.get(_MARK)]
    if marked:
        return int(marked[0])
    if len(special) == 1:
        return int(next(iter(special.values())))

    raise UserError(
        f"tokenizer '{origin}': no special token is known to end a text "
        f"(special: {', '.join(special) or 'none'}); name one of them {END_OF_TEXT[0]}"
    )


def special_ids(definition: Definition) -> set[int]:
    """Returns the ids of special tokens."""
    return {token["id"] for token in definition["added_tokens"] if token["special"]}


def token_values(definition: Definition) -> list[bytes]:
    """Returns the bytes of each id; unused ids have none."""
    added = {token["id"]: token["content"] for token in definition["added_tokens"]}
    vocab: dict[str, int] = definition["model"]["vocab"]
    largest = max([*vocab.values(), *added])
    if largest >= MOST_IDS:
        raise ValueError(f"its id {largest} is above {MOST_IDS - 1}")

    values = [b""] * (largest + 1)
    for token, id in vocab.items():
        if id not in added:
            values[id] = bytes(BYTE_OF_CHARACTER[character] for character in token)
    for id, content in added.items():
        values[id] = content.encode()
    return values


def fingerprint_of(definition: Definition) -> str:
    """Returns the sha256 of all that decides the ids of a text.

    It does not depend on how the file is written.
    """
    model = definition["model"]
    merges = [
        merge.split(" ") if isinstance(merge, str) else merge
        for merge in model["merges"]
    ]
    added = sorted(definition["added_tokens"], key=lambda token: token["id"])
    content = {
        "vocab": sorted(model["vocab"].items(), key=lambda item: item[1]),
        "merges": merges,
        "ignore_merges": bool(model.get("ignore_merges")),
        "normalizer": definition.get("normalizer"),
        "pre_tokenizer": _pre_tokenizers(definition),
        "added_tokens": [_deciding_part(token) for token in added],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _deciding_part(token: dict[str, Any]) -> dict[str, Any]:
    """The keys of an added token that decide ids."""
    if token["special"]:
        # Its other flags never matter: text is read as ordinary text.
        return {key: token[key] for key in ("id", "content", _MARK) if key in token}

    flags = ("lstrip", "rstrip", "single_word", "normalized")
    return {key: token[key] for key in ("id", "content", *flags)}


def _pre_tokenizers(definition: Definition) -> list[dict[str, Any]]:
    """The steps that cut a text before the merges."""
    first = definition.get("pre_tokenizer") or {}
    is_sequence = first.get("type") == "Sequence"
    steps = first["pretokenizers"] if is_sequence else [first]
    # `trim_offsets` concerns offsets, not ids.
    return [
        {key: value for key, value in step.items() if key != "trim_offsets"}
        for step in steps
    ]
