"""Tokenizer: nothing of a text is lost, and GPT-2's ids are those of both libraries."""

import gzip
import hashlib
import json
import shutil
import unicodedata
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from unittest.mock import Mock

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from dualpath_cli.errors import UserError
from dualpath_cli.text import tokenizer as tokenizer_module
from dualpath_cli.text.tokenizer import GPT2_FINGERPRINT, Tokenizer

TEXTS = st.text() | st.text(alphabet=" \n\t\r\u00a0a1,'é<|endoftext>", max_size=60)


@given(TEXTS)
def test_decoding_gives_back_any_text(small, text):
    assert small.decode(small.encode(text)) == text


@given(TEXTS)
def test_decoding_gives_back_any_text_with_gpt2(gpt2, text):
    assert gpt2.decode(gpt2.encode(text)) == text


@given(TEXTS)
def test_the_bytes_of_the_tokens_add_up_to_those_of_the_text(small, text):
    sizes = small.token_bytes()
    assert sum(sizes[id] for id in small.encode(text)) == len(text.encode())


@given(TEXTS)
def test_gpt2_ids_are_those_of_the_tokenizers_library(gpt2, reference, text):
    assert gpt2.encode(text) == reference.encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="module")
def reference(gpt2_folder: Path) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer.from_file(str(gpt2_folder / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    return tokenizer


def test_gpt2_ids_are_those_of_the_tokenizers_library_in_books_code_and_sums(
    gpt2, reference, shared_data
):
    texts = [(shared_data / "wikitext-2" / "test.txt").read_text()]
    for name in ("novels_val", "peps", "rust_rfcs"):
        with gzip.open(shared_data / "text" / f"{name}.jsonl.gz") as lines:
            texts += [json.loads(line)["text"] for line in islice(lines, 10)]
    with open(shared_data / "gsm8k" / "test.jsonl") as lines:
        texts += [json.loads(line)["answer"] for line in islice(lines, 100)]
    for text, ids in zip(texts, gpt2.encode_batch(texts), strict=True):
        assert ids.tolist() == reference.encode(text, add_special_tokens=False).ids


def test_gpt2_ids_agree_around_every_character_of_unicode(gpt2, reference):
    # The two libraries bring their own tables of what is a letter, a digit or a space. Beyond the
    # first two planes there are ideographs and unassigned characters only.
    characters = [chr(c) for c in range(0x20000) if unicodedata.category(chr(c)) != "Cs"]
    blocks = ["".join(f"a{c}b 1{c}" for c in characters[i::997]) for i in range(997)]
    for text, ids in zip(blocks, gpt2.encode_batch(blocks), strict=True):
        assert ids.tolist() == reference.encode(text, add_special_tokens=False).ids


def test_a_run_of_spaces_too_long_for_tiktoken_is_encoded_all_the_same(gpt2):
    text = " " * 1_500_000 + "end"
    assert gpt2.decode(gpt2.encode(text)) == text


def test_gpt2_goes_through_tiktoken(gpt2, monkeypatch):
    monkeypatch.setattr(Tokenizer, "_encode_by_tokenizers", None)
    assert gpt2.encode("Hello world") == [15496, 995]


@pytest.mark.parametrize("text", ["<|endoftext|>", "a<|endoftext|>b <|endoftext|>"])
def test_special_tokens_written_out_are_ordinary_text(small, text):
    ids = small.encode(text)
    assert small.eot_id not in ids
    assert small.decode(ids) == text


def test_special_tokens_written_out_are_ordinary_text_with_gpt2(gpt2):
    assert gpt2.encode("<|endoftext|>") == [27, 91, 437, 1659, 5239, 91, 29]


def test_special_tokens_weigh_nothing_and_show_their_name(small):
    assert small.token_bytes()[small.eot_id] == 0
    assert small.token_values()[small.eot_id] == b"<|endoftext|>"
    assert small.decode([small.eot_id]) == "<|endoftext|>"


def test_merges_are_used(small):
    assert [small.token_values()[id] for id in small.encode("hello")] == [b"hell", b"o"]


def test_batches_are_encoded_as_single_texts_are(small):
    texts = ["hello", "", "hell é <|endoftext|>"]
    assert [ids.tolist() for ids in small.encode_batch(texts)] == [small.encode(t) for t in texts]


def test_a_saved_tokenizer_is_loaded_as_an_equal_one(small, tmp_path):
    small.save(tmp_path)
    for spec in (tmp_path, tmp_path / "tokenizer.json", str(tmp_path)):
        loaded = Tokenizer.load(spec)
        assert loaded.fingerprint == small.fingerprint
        assert (loaded.eot_id, loaded.vocab_size) == (small.eot_id, small.vocab_size)
        assert loaded.encode("hello\n world") == small.encode("hello\n world")


def test_every_way_to_gpt2_gives_the_same_tokenizer(gpt2_folder, tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(gpt2_folder / name, files)
    from_files = Tokenizer.load(files)
    saved = tmp_path / "saved"
    saved.mkdir()
    from_files.save(saved)
    for loaded in (from_files, Tokenizer.load(gpt2_folder), Tokenizer.load(saved)):
        assert loaded.fingerprint == GPT2_FINGERPRINT
        assert (loaded.eot_id, loaded.vocab_size) == (50256, 50257)


def test_gpt2_by_name_comes_from_the_cache_of_tiktoken(gpt2_folder, tmp_path, monkeypatch):
    url = tokenizer_module._GPT2_MERGES_URL
    shutil.copy(gpt2_folder / "merges.txt", tmp_path / hashlib.sha1(url.encode()).hexdigest())
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    assert Tokenizer.load("gpt2").fingerprint == GPT2_FINGERPRINT


def _set(*path: str, to: object) -> Callable[[dict], None]:
    def change(definition: dict) -> None:
        for key in path[:-1]:
            definition = definition[key]
        definition[path[-1]] = to

    return change


REFUSED = {
    "its model is WordPiece": _set("model", "type", to="WordPiece"),
    "it marks parts of words": _set("model", "continuing_subword_prefix", to="##"),
    "does not go by bytes": _set("pre_tokenizer", to={"type": "Whitespace"}),
    "changes the text": _set("normalizer", to={"type": "Lowercase"}),
    "lacks 1 of the 256 bytes": lambda definition: definition["model"]["vocab"].pop("!"),
    "does not give back": _set("pre_tokenizer", "add_prefix_space", to=True),
    "no special token is known to end a text": _set("added_tokens", to=[]),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_vocabulary_that_would_lose_text_is_refused(definition, reason):
    REFUSED[reason](definition)
    with pytest.raises(UserError, match=reason) as caught:
        Tokenizer(definition, "mine")
    assert "'mine'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_panic_of_the_library_is_one_line_and_an_interrupt_none(definition, monkeypatch):
    class PanicException(BaseException):  # named as pyo3's, which cannot be imported
        pass

    for raised, expected in ((PanicException, UserError), (KeyboardInterrupt, KeyboardInterrupt)):
        monkeypatch.setattr(Tokenizer, "encode", Mock(side_effect=raised("range end index")))
        with pytest.raises(expected, match="range end index"):
            Tokenizer(definition, "mine")


def test_cutting_padding_and_dropout_of_a_file_are_ignored(small, definition):
    definition["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    definition["model"]["dropout"] = 0.5
    tokenizer = Tokenizer(definition)
    assert {tuple(tokenizer.encode("hello hello")) for _ in range(20)} == {
        tuple(small.encode("hello hello"))
    }


def test_the_only_special_token_ends_a_text_whatever_its_name(definition):
    definition["added_tokens"][0]["content"] = "<stop>"
    definition["model"]["vocab"]["<stop>"] = definition["model"]["vocab"].pop("<|endoftext|>")
    assert Tokenizer(definition).decode([Tokenizer(definition).eot_id]) == "<stop>"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        (None, None, "neither tokenizer.json nor"),
        ("tokenizer.json", "{", "cannot be read .no JSON: "),
        ("tokenizer.json", "[]", "cannot be read .no JSON object"),
        ("tokenizer.json", "{}", "its model is None"),
    ],
)
def test_a_folder_without_a_tokenizer_is_a_one_line_error(tmp_path, name, content, reason):
    if name:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=reason) as caught:
        Tokenizer.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_misspelt_name_is_pointed_out():
    with pytest.raises(UserError, match="did you mean 'gpt2'"):
        Tokenizer.load("gtp2")
