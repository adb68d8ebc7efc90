"""Tokenizers: byte-level BPEs, as text to ids and back, and their training."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from dualpath_cli.base.errors import UserError, content_fault, did_you_mean
from dualpath_cli.base.files import read_json, read_text, write_text
from dualpath_cli.base.output import joined_lines
from dualpath_cli.data.hub import FIRST_ANSWER_SECONDS
from dualpath_cli.data.tokenizer_json import (
    BYTE_OF_CHARACTER,
    END_OF_TEXT,
    Definition,
    check_definition,
    end_of_text_id,
    fingerprint_of,
    lacking_bytes,
    name_end_of_text,
    special_ids,
    token_values,
)

if TYPE_CHECKING:
    import tiktoken

TOKENIZER = "tokenizer.json"

GPT2_FINGERPRINT = "785a6e2b7b4c5d3b6aa4dca24531c0e458f52b077052afa73af5991db5e533eb"
_GPT2_MERGES_URL = (
    "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe"
)
_GPT2_MERGES_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"

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
        with _explaining_errors(origin):
            check_definition(definition, origin)

            # Truncation and padding do not belong to a vocabulary; dropout makes ids
            # random.
            self._definition = {**definition, "truncation": None, "padding": None}
            self._definition["model"] = {**definition["model"], "dropout": None}

            self._values = token_values(definition)
            self._special = special_ids(definition)
            self._lacking = bytes(lacking_bytes(definition))
            self.vocab_size = len(self._values)
            self.eot_id = end_of_text_id(definition, origin)
            self.fingerprint = fingerprint_of(definition)

            if self.decode(self.encode(_PROBE)) != _PROBE:
                raise UserError(
                    f"tokenizer '{origin}': does not give back the text that it "
                    "encodes; give a byte-level BPE without prefix space or other "
                    "changes to the text"
                )

    @classmethod
    def load(cls, spec: str | Path) -> "Tokenizer":
        """Loads `gpt2`, a `tokenizer.json`, or a folder.

        A folder has a `tokenizer.json`, or GPT-2's vocab.json and merges.txt.
        """
        path = Path(spec)
        if path.is_dir():
            return cls(_read_folder(path, str(spec)), str(spec))
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
        """Returns the ids of a text, without end-of-text."""
        ids: list[int] = self.encode_batch([text])[0].tolist()
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[npt.NDArray[np.uint32]]:
        """Returns the ids of each text, without end-of-text.

        Raises UserError for a text with a byte that the vocabulary lacks.
        """
        if self.fingerprint != GPT2_FINGERPRINT:
            return self._encode_by_tokenizers(texts)

        encode = self._tiktoken.encode_to_numpy
        arrays = []
        for text in texts:
            try:
                arrays.append(encode(text, disallowed_special=()))
            except ValueError:
                # a run of about a million spaces is too much for its regex
                arrays += self._encode_by_tokenizers([text])
        return arrays

    def lacking_byte(self, text: str) -> int | None:
        """The first byte of a text that the vocabulary lacks; None if it has all."""
        if not self._lacking:
            return None

        encoded = text.encode(errors="replace")
        if len(encoded.translate(None, self._lacking)) == len(encoded):
            return None
        return next(byte for byte in encoded if byte in self._lacking)

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of ids.

        End-of-text shows as its name, broken UTF-8 as U+FFFD.
        """
        encoded = b"".join(self._values[id] for id in ids)
        return encoded.decode("utf-8", errors="replace")

    def token_values(self) -> list[bytes]:
        """Returns the bytes of each id; a special token's are those of its name."""
        return list(self._values)

    def token_bytes(self) -> list[int]:
        """Returns the number of bytes of text of each id; 0 for special tokens."""
        return [
            0 if id in self._special else len(value)
            for id, value in enumerate(self._values)
        ]

    def save(self, folder: Path) -> None:
        """Writes `tokenizer.json`, from which `load` makes an equal tokenizer."""
        text = json.dumps(self._definition, ensure_ascii=False, indent=1)
        write_text(folder / TOKENIZER, text)

    def _encode_by_tokenizers(
        self, texts: Sequence[str]
    ) -> list[npt.NDArray[np.uint32]]:
        with _explaining_errors(self._origin):
            self._check_bytes(texts)
            try:
                encodings = self._tokenizers.encode_batch_fast(
                    texts, add_special_tokens=False
                )
            except TypeError:
                raise UserError(
                    "a text has half of a surrogate pair: not valid Unicode"
                ) from None

        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]

    def _check_bytes(self, texts: Sequence[str]) -> None:
        """Raises UserError for a byte that the vocabulary lacks."""
        for text in texts:
            byte = self.lacking_byte(text)
            if byte is not None:
                raise UserError(
                    f"tokenizer '{self._origin}': its vocabulary lacks the byte "
                    f"0x{byte:02X}, which a text has; remove such characters, or "
                    "give another tokenizer"
                )

    @cached_property
    def _tokenizers(self) -> tokenizers.Tokenizer:
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(self._definition))
        tokenizer.encode_special_tokens = True  # as ordinary text
        return tokenizer

    @cached_property
    def _tiktoken(self) -> "tiktoken.Encoding":
        import tiktoken
        from tiktoken_ext.openai_public import r50k_pat_str

        ranks = {
            value: id
            for id, value in enumerate(self._values)
            if id not in self._special
        }
        end_of_text = self._values[self.eot_id].decode()
        return tiktoken.Encoding(
            "gpt2",
            pat_str=r50k_pat_str,
            mergeable_ranks=ranks,
            special_tokens={end_of_text: self.eot_id},
        )


@contextmanager
def _explaining_errors(origin: str) -> Iterator[None]:
    """Turns an error of `tokenizers` into a UserError about a tokenizer."""
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        # Bare Exception, or a panic of Rust for an expression that takes too many
        # steps.
        is_panic = type(error).__name__ == "PanicException"
        if not isinstance(error, Exception) and not is_panic:
            raise

        reason = joined_lines(content_fault(error))
        raise UserError(f"tokenizer '{origin}': cannot be used ({reason})") from None


def _read_folder(folder: Path, origin: str) -> Definition:
    """Reads the tokenizer of a folder, of `transformers` or of GPT-2.

    Beside a tokenizer.json, `transformers` names its end-of-text.
    """
    if (folder / TOKENIZER).exists():
        definition = read_json(folder / TOKENIZER)
        config = folder / "tokenizer_config.json"
        if config.exists():
            name = read_json(config).get("eos_token")
            with _explaining_errors(origin):
                name_end_of_text(definition, name)
        return definition

    vocab = folder / "vocab.json"
    merges = folder / "merges.txt"
    if vocab.exists() and merges.exists():
        text = read_text(merges)
        return definition_from_gpt2_files(read_json(vocab), text)

    raise UserError(
        f"tokenizer '{origin}': the folder holds neither tokenizer.json "
        "nor vocab.json with merges.txt"
    )


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
    tokens = list(BYTE_OF_CHARACTER)
    tokens += [line.replace(" ", "") for line in merges.splitlines()[1:] if line]
    tokens.append("<|endoftext|>")
    vocab = {token: id for id, token in enumerate(tokens)}
    return definition_from_gpt2_files(vocab, merges)


def definition_from_gpt2_files(vocab: dict[str, int], merges: str) -> Definition:
    """Builds the definition that GPT-2's `vocab.json` and `merges.txt` stand for."""
    pairs = []
    for line in merges.splitlines():
        left, _, right = line.partition(" ")
        if right and left != "#version:":
            pairs.append((left, right))

    try:
        model = models.BPE(vocab=vocab, merges=pairs)
    except Exception as error:  # the library raises bare Exception
        raise UserError(
            f"tokenizer: merges.txt does not fit vocab.json: {joined_lines(error)}"
        ) from None

    tokenizer = _byte_level(model)
    tokenizer.add_special_tokens([name for name in END_OF_TEXT if name in vocab][:1])
    definition: Definition = json.loads(tokenizer.to_str())
    return definition


def train_bpe(texts: Iterable[str], vocab_size: int) -> str:
    """Trains a BPE of up to `vocab_size` entries, end-of-text first.

    Returns its `tokenizer.json`, the same for equal texts.
    """
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=END_OF_TEXT[:1],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer = _byte_level(models.BPE())
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str(pretty=True)


def _byte_level(model: models.BPE) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
