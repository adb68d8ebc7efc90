"""Tokenizer: one byte-level BPE, as text to ids and back, whichever library does the work."""

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import tokenizers

from dualpath_cli.errors import UserError, did_you_mean, of_content
from dualpath_cli.files import read_json, read_text, write_text
from dualpath_cli.text import byte_level
from dualpath_cli.text.byte_level import Definition
from dualpath_cli.text.deadline import FIRST_ANSWER_SECONDS, within

if TYPE_CHECKING:
    import tiktoken

TOKENIZER = "tokenizer.json"
GPT2_FINGERPRINT = "785a6e2b7b4c5d3b6aa4dca24531c0e458f52b077052afa73af5991db5e533eb"
_GPT2_MERGES_URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe"
_GPT2_MERGES_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
# Characters that careless tokenizers lose or change, in NFC.
_PROBE = "Ünï\u00a0日本\U0001f600\r\n\t  a  b\x00 İ 12345 <|endoftext|> '\ufeff\n"


class Tokenizer:
    """A byte-level BPE with an end-of-text token.

    Special tokens written out in a text are ordinary text. GPT-2 goes through tiktoken, every
    other vocabulary through `tokenizers`; the ids are the same.
    """

    vocab_size: int
    """One above the largest id."""
    eot_id: int
    """Id of end-of-text."""
    fingerprint: str
    """sha256 of what decides the ids."""

    def __init__(self, definition: Definition, origin: str = TOKENIZER) -> None:
        """Takes a parsed `tokenizer.json`; `origin` names it in messages.

        Raises UserError unless it is a byte-level BPE, with an end-of-text token, that gives back
        every byte of a text.
        """
        try:
            self._read(definition, origin)
        except UserError:
            raise
        except BaseException as error:
            # `tokenizers` raises bare Exception, or what Rust panics with; a damaged file any.
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            reason = of_content(error) if isinstance(error, Exception) else str(error)
            raise UserError(
                f"tokenizer '{origin}': cannot be used ({' '.join(reason.split())})"
            ) from None

    def _read(self, definition: Definition, origin: str) -> None:
        byte_level.check(definition, origin)
        # Neither cutting nor padding belongs to a vocabulary; dropout would make ids random.
        self._definition = {**definition, "truncation": None, "padding": None}
        self._definition["model"] = {**definition["model"], "dropout": None}
        self._values = byte_level.token_values(definition)
        self._special = {t["id"] for t in definition["added_tokens"] if t["special"]}
        self.vocab_size = len(self._values)
        self.eot_id = byte_level.end_of_text(definition, origin)
        self.fingerprint = byte_level.fingerprint(definition)
        if self.decode(self.encode(_PROBE)) != _PROBE:
            raise UserError(
                f"tokenizer '{origin}': does not give back the text that it encodes; "
                "give a byte-level BPE without prefix space or other changes to the text"
            )

    @classmethod
    def load(cls, spec: str | Path) -> "Tokenizer":
        """Loads `gpt2`, a `tokenizer.json`, or a folder with it or `vocab.json` + `merges.txt`.

        `gpt2` is fetched once by tiktoken, into its cache (TIKTOKEN_CACHE_DIR). Raises UserError
        where there is no such file, it cannot be used, or the network cannot be reached.
        """
        path = Path(spec)
        if path.is_dir():
            if (path / TOKENIZER).exists():
                return cls(read_json(path / TOKENIZER), str(spec))
            if (path / "vocab.json").exists() and (path / "merges.txt").exists():
                merges = read_text(path / "merges.txt")
                vocab = read_json(path / "vocab.json")
                return cls(byte_level.definition_from_gpt2_files(vocab, merges), str(spec))
            raise UserError(
                f"tokenizer '{spec}': the folder holds neither tokenizer.json "
                "nor vocab.json with merges.txt"
            )
        if path.exists():
            return cls(read_json(path), str(spec))
        if str(spec) == "gpt2":
            return cls(_download_gpt2(), "gpt2")
        raise UserError(
            f"tokenizer '{spec}' does not exist{did_you_mean(str(spec), ['gpt2'])}; give gpt2, "
            "a tokenizer.json, or a folder with it or with vocab.json and merges.txt"
        )

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text, without end-of-text."""
        ids: list[int] = self.encode_batch([text])[0].tolist()
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[npt.NDArray[np.uint32]]:
        """Returns the ids of each text, without end-of-text."""
        if self.fingerprint != GPT2_FINGERPRINT:
            return self._encode_by_tokenizers(texts)
        arrays = []
        for text in texts:
            try:
                arrays.append(self._tiktoken.encode_to_numpy(text, disallowed_special=()))
            except ValueError:  # a run of about a million spaces is too much for its regex
                arrays += self._encode_by_tokenizers([text])
        return arrays

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of ids; end-of-text shows as its name, broken UTF-8 as U+FFFD."""
        return b"".join(self._values[id] for id in ids).decode("utf-8", errors="replace")

    def token_values(self) -> list[bytes]:
        """Returns the bytes of each id; a special token's are those of its name."""
        return list(self._values)

    def token_bytes(self) -> list[int]:
        """Returns the number of bytes of text of each id; 0 for special tokens."""
        return [0 if id in self._special else len(v) for id, v in enumerate(self._values)]

    def save(self, folder: Path) -> None:
        """Writes `tokenizer.json` into a folder, from which `load` gives an equal tokenizer."""
        text = json.dumps(self._definition, ensure_ascii=False, indent=1)
        write_text(folder / TOKENIZER, text)

    def _encode_by_tokenizers(self, texts: Sequence[str]) -> list[npt.NDArray[np.uint32]]:
        encodings = self._tokenizers.encode_batch_fast(texts, add_special_tokens=False)
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
            mergeable_ranks={v: i for i, v in enumerate(self._values) if i not in self._special},
            special_tokens={self._values[self.eot_id].decode(): self.eot_id},
        )


def _download_gpt2() -> Definition:
    from tiktoken.load import read_file_cached

    try:
        # It waits without end for a server that accepts and never answers.
        merges = within(
            FIRST_ANSWER_SECONDS, lambda: read_file_cached(_GPT2_MERGES_URL, _GPT2_MERGES_SHA256)
        ).decode()
    except Exception as error:  # requests' errors, hash mismatch, a cache that is not writable
        raise UserError(
            f"tokenizer 'gpt2': its vocabulary cannot be downloaded ({type(error).__name__}); "
            "check the network, or train one by `dualpath tokenizer --source NAME=FILES "
            "--vocab-size 8192 --out data/bpe8192` and give data/bpe8192 instead of gpt2, or give "
            "a folder with GPT-2's vocab.json and merges.txt"
        ) from None
    # GPT-2's ids: the 256 bytes in the alphabet's order, then one per merge, then end-of-text.
    tokens = list(byte_level.byte_of_character())
    tokens += [line.replace(" ", "") for line in merges.splitlines()[1:] if line]
    tokens.append("<|endoftext|>")
    vocab = {token: id for id, token in enumerate(tokens)}
    return byte_level.definition_from_gpt2_files(vocab, merges)
