"""Tokenizers: byte-level BPEs, as text to ids and back; their training, bytes and
identity."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from dualpath_cli.base.errors import UserError, content_fault, did_you_mean
from dualpath_cli.base.files import read_json, read_text, write_text
from dualpath_cli.data.hub import FIRST_ANSWER_SECONDS

if TYPE_CHECKING:
    import tiktoken


TOKENIZER = "tokenizer.json"
END_OF_TEXT = [
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|end▁of▁sentence|>",
]
"""Names that published tokenizers give to end-of-text, the likeliest first."""
MOST_IDS = 1 << 24
"""The most ids: the bytes of each are held in a list."""
_MARK = "end_of_text"  # a key of a special token, which `tokenizers` itself passes over
Definition = dict[str, Any]  # a parsed `tokenizer.json`
GPT2_FINGERPRINT = "785a6e2b7b4c5d3b6aa4dca24531c0e458f52b077052afa73af5991db5e533eb"
_GPT2_MERGES_URL = (
    "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe"
)
_GPT2_MERGES_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
# Bytes that published vocabularies lack: control characters, first bytes of characters
# from U+40000 on (private use alone), and bytes that UTF-8 never has.
_RARE = {*range(1, 32), 127, 0xC0, 0xC1, *range(0xF1, 0x100)} - set(b"\t\n\r")
# Characters that some tokenizers lose or change, in NFC.
_PROBE = "Ünï\u00a0日本\U0001f600\r\n\t  a  b\x00 İ 12345 <|endoftext|> '\ufeff\n"


class Tokenizer:
    """A byte-level BPE with an end-of-text token.

    Special tokens written out in a text are ordinary text. GPT-2 goes through tiktoken,
    every other vocabulary through `tokenizers`; the ids are the same.
    """

    vocab_size: int  # one above the largest id
    eot_id: int  # id of end-of-text
    fingerprint: str  # sha256 of what decides the ids

    def __init__(self, definition: Definition, origin: str = TOKENIZER) -> None:
        """Takes a parsed `tokenizer.json`; `origin` names it in messages."""
        self._origin = origin
        with _one_line(origin):
            _check(definition, origin)
            # Truncation and padding do not belong to a vocabulary; dropout makes ids
            # random.
            self._definition = {**definition, "truncation": None, "padding": None}
            self._definition["model"] = {**definition["model"], "dropout": None}
            self._values = _token_values(definition)
            self._special = {
                t["id"] for t in definition["added_tokens"] if t["special"]
            }
            self._lacking = bytes(_lacking(definition))
            self.vocab_size = len(self._values)
            self.eot_id = _end_of_text(definition, origin)
            self.fingerprint = _fingerprint(definition)
            if self.decode(self.encode(_PROBE)) != _PROBE:
                raise UserError(
                    f"tokenizer '{origin}': does not give back the text that it "
                    "encodes; give a byte-level BPE without prefix space or other "
                    "changes to the text"
                )

    @classmethod
    def load(cls, spec: str | Path) -> "Tokenizer":
        """Loads `gpt2`, a `tokenizer.json`, or a folder with it or vocab.json and
        merges.txt."""
        path = Path(spec)
        if path.is_dir():
            if (path / TOKENIZER).exists():
                definition, config = (
                    read_json(path / TOKENIZER),
                    path / "tokenizer_config.json",
                )
                if config.exists():
                    name_end_of_text(definition, read_json(config).get("eos_token"))
                return cls(definition, str(spec))
            if (path / "vocab.json").exists() and (path / "merges.txt").exists():
                merges = read_text(path / "merges.txt")
                vocab = read_json(path / "vocab.json")
                return cls(definition_from_gpt2_files(vocab, merges), str(spec))
            raise UserError(
                f"tokenizer '{spec}': the folder holds neither tokenizer.json "
                "nor vocab.json with merges.txt"
            )
        if path.exists():
            return cls(read_json(path), str(spec))
        if str(spec) == "gpt2":
            return cls(_download_gpt2(), "gpt2")
        raise UserError(
            f"tokenizer '{spec}' does not exist{did_you_mean(str(spec), ['gpt2'])}; "
            "give gpt2, a tokenizer.json, or a folder with it or with vocab.json and "
            "merges.txt"
        )

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.encode_batch([text])[0].tolist()
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[npt.NDArray[np.uint32]]:
        """Returns the ids of each text, without end-of-text.

        Raises UserError for a text with a byte that the vocabulary lacks.
        """
        if self.fingerprint != GPT2_FINGERPRINT:
            return self._encode_by_tokenizers(texts)
        arrays = []
        for text in texts:
            try:
                arrays.append(
                    self._tiktoken.encode_to_numpy(text, disallowed_special=())
                )
            except ValueError:
                # a run of about a million spaces is too much for its regex
                arrays += self._encode_by_tokenizers([text])
        return arrays

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of ids; end-of-text shows as its name, broken UTF-8 as
        U+FFFD."""
        return b"".join(self._values[id] for id in ids).decode(
            "utf-8", errors="replace"
        )

    def token_values(self) -> list[bytes]:
        """Returns the bytes of each id; a special token's are those of its name."""
        return list(self._values)

    def token_bytes(self) -> list[int]:
        """Returns the number of bytes of text of each id; 0 for special tokens."""
        return [
            0 if id in self._special else len(v) for id, v in enumerate(self._values)
        ]

    def save(self, folder: Path) -> None:
        """Writes `tokenizer.json` into a folder, from which `load` gives an equal
        tokenizer."""
        text = json.dumps(self._definition, ensure_ascii=False, indent=1)
        write_text(folder / TOKENIZER, text)

    def _encode_by_tokenizers(
        self, texts: Sequence[str]
    ) -> list[npt.NDArray[np.uint32]]:
        with _one_line(self._origin):
            for text in texts if self._lacking else ():
                given = text.encode(errors="replace")
                if len(given.translate(None, self._lacking)) < len(given):
                    byte = next(byte for byte in given if byte in self._lacking)
                    raise UserError(
                        f"tokenizer '{self._origin}': its vocabulary lacks the byte "
                        f"0x{byte:02X}, which a text has; remove such characters, or "
                        "give another tokenizer"
                    )
            try:
                encodings = self._tokenizers.encode_batch_fast(
                    texts, add_special_tokens=False
                )
            except TypeError:
                raise UserError(
                    "a text has half of a surrogate pair: not valid Unicode"
                ) from None
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]

    @cached_property
    def _tokenizers(self) -> tokenizers.Tokenizer:
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(self._definition))
        tokenizer.encode_special_tokens = True  # as ordinary text
        return tokenizer

    @cached_property
    def _tiktoken(self) -> "tiktoken.Encoding":
        import tiktoken
        from tiktoken_ext.openai_public import r50k_pat_str

        return tiktoken.Encoding(
            "gpt2",
            pat_str=r50k_pat_str,
            mergeable_ranks={
                v: i for i, v in enumerate(self._values) if i not in self._special
            },
            special_tokens={self._values[self.eot_id].decode(): self.eot_id},
        )


@contextmanager
def _one_line(origin: str) -> Iterator[None]:
    """Turns an error of `tokenizers` into a UserError about a tokenizer."""
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        # Bare Exception, or a panic of Rust for an expression that takes too many
        # steps.
        if (
            not isinstance(error, Exception)
            and type(error).__name__ != "PanicException"
        ):
            raise
        reason = " ".join(content_fault(error).split())
        raise UserError(f"tokenizer '{origin}': cannot be used ({reason})") from None


def _download_gpt2() -> Definition:
    from tiktoken.load import read_file_cached

    try:
        # tiktoken itself waits without end for a silent server
        with ThreadPool(1) as pool:
            asked = pool.apply_async(
                read_file_cached, (_GPT2_MERGES_URL, _GPT2_MERGES_SHA256)
            )
            merges = asked.get(FIRST_ANSWER_SECONDS).decode()
    except Exception as error:
        # requests' errors, hash mismatch, a cache that is not writable
        raise UserError(
            "tokenizer 'gpt2': its vocabulary cannot be downloaded "
            f"({type(error).__name__}); check the network, or train one by `dualpath "
            "tokenizer --source NAME=FILES --vocab-size 8192 --out data/bpe8192` and "
            "give data/bpe8192 instead of gpt2, or give a folder with GPT-2's "
            "vocab.json and merges.txt"
        ) from None
    # GPT-2's ids: the 256 bytes in the alphabet's order, then one per merge, then
    # end-of-text.
    tokens = list(byte_of_character())
    tokens += [line.replace(" ", "") for line in merges.splitlines()[1:] if line]
    tokens.append("<|endoftext|>")
    vocab = {token: id for id, token in enumerate(tokens)}
    return definition_from_gpt2_files(vocab, merges)


def byte_of_character() -> dict[str, int]:
    """Returns GPT-2's alphabet: the character for each byte, itself or one from U+0100
    on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + n): byte for n, byte in enumerate(others)
    }


def definition_from_gpt2_files(vocab: dict[str, int], merges: str) -> Definition:
    """Builds the definition that GPT-2's `vocab.json` and `merges.txt` stand for."""
    pairs = [
        (left, right)
        for left, _, right in (line.partition(" ") for line in merges.splitlines())
        if right and left != "#version:"
    ]
    try:
        model = models.BPE(vocab=vocab, merges=pairs)
    except Exception as error:  # the library raises bare Exception
        raise UserError(
            f"tokenizer: merges.txt does not fit vocab.json: {error}"
        ) from None
    tokenizer = _tokenizer(model)
    tokenizer.add_special_tokens([name for name in END_OF_TEXT if name in vocab][:1])
    definition: Definition = json.loads(tokenizer.to_str())
    return definition


def train_bpe(texts: Iterable[str], vocab_size: int) -> str:
    """Trains a BPE of up to `vocab_size` entries, end-of-text first; equal texts, equal
    JSON."""
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


def _check(definition: Definition, origin: str) -> None:
    """Checks what `_PROBE` does not show: that every byte is a token, and the
    normaliser's kind.

    NFC, which texts are in, passes.
    """
    model, normalizer = definition["model"], definition.get("normalizer")
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        reason = "it marks parts of words"  # on which `tokenizers` may panic
    elif missing := _lacking(definition) - _RARE:
        reason = f"its vocabulary lacks {len(missing)} of the 256 bytes"
    elif normalizer is not None and normalizer.get("type") != "NFC":
        reason = f"its normaliser {normalizer.get('type')} changes the text"
    else:
        return
    raise UserError(
        f"tokenizer '{origin}': {reason}; give a byte-level BPE such as GPT-2's, "
        "which can write any text"
    )


def _lacking(definition: Definition) -> set[int]:
    """Returns the bytes that are no entry of a vocabulary."""
    vocab = definition["model"]["vocab"]
    return {
        byte
        for character, byte in byte_of_character().items()
        if character not in vocab
    }


def name_end_of_text(definition: Definition, name: Any) -> None:
    """Marks the special token that a model's configuration names as the end of a text.

    A known name, of `END_OF_TEXT`, takes precedence: the configuration of a chat model
    names the end of a turn, but its documents ended with the known token.
    """
    name = name.get("content") if isinstance(name, dict) else name
    special = [
        token for token in definition.get("added_tokens", ()) if token.get("special")
    ]
    if not any(token.get("content") in END_OF_TEXT for token in special):
        for token in special:
            if token.get("content") == name:
                token[_MARK] = True


def _end_of_text(definition: Definition, origin: str) -> int:
    """Returns the id of end-of-text: a known name, the only special token, or the
    marked one."""
    special = {
        t["content"]: t["id"] for t in definition["added_tokens"] if t["special"]
    }
    for name in END_OF_TEXT:
        if name in special:
            return int(special[name])
    marked = [t["id"] for t in definition["added_tokens"] if t.get(_MARK)]
    if len(special) == 1 or marked:
        return int(marked[0] if marked else next(iter(special.values())))
    raise UserError(
        f"tokenizer '{origin}': no special token is known to end a text "
        f"(special: {', '.join(special) or 'none'}); name one of them {END_OF_TEXT[0]}"
    )


def _token_values(definition: Definition) -> list[bytes]:
    """Returns the bytes of each id; unused ids have none."""
    byte = byte_of_character()
    added = {t["id"]: t["content"] for t in definition["added_tokens"]}
    vocab: dict[str, int] = definition["model"]["vocab"]
    largest = max([*vocab.values(), *added])
    if largest >= MOST_IDS:
        raise ValueError(f"its id {largest} is above {MOST_IDS - 1}")
    values = [b""] * (largest + 1)
    for token, id in vocab.items():
        if id not in added:
            values[id] = bytes(byte[c] for c in token)
    for id, content in added.items():
        values[id] = content.encode()
    return values


def _fingerprint(definition: Definition) -> str:
    """Returns the sha256 of what decides the ids of a text, however the file is
    written."""
    model = definition["model"]
    merges = [m.split(" ") if isinstance(m, str) else m for m in model["merges"]]
    added = [
        # A special token's other flags never matter: text is read as ordinary text.
        {k: t[k] for k in ("id", "content", _MARK) if k in t}
        if t["special"]
        else {
            k: t[k]
            for k in ("id", "content", "lstrip", "rstrip", "single_word", "normalized")
        }
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
