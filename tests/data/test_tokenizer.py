"""Tokenizer: nothing of a text is lost, and GPT-2's ids are those of both libraries."""

import hashlib
import json
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from dualpath_cli.base.errors import UserError
from dualpath_cli.data import tokenizer as tokenizer_module
from dualpath_cli.data.tokenizer import GPT2_FINGERPRINT, Tokenizer
from dualpath_cli.data.tokenizer_json import BYTE_OF_CHARACTER
from tests.data.small_tokenizer import definition_with
from tests.training.tiny_run import MERGES


@pytest.fixture(scope="session")
def gpt2_folder(shared_data: Path) -> Path:
    return shared_data / "gpt2"


@pytest.fixture(scope="session")
def gpt2(gpt2_folder: Path) -> Tokenizer:
    return Tokenizer.load(gpt2_folder)


@pytest.fixture
def definition() -> dict:
    """The 256 bytes, three merges and end-of-text, to be changed."""
    return definition_with(MERGES)


TEXTS = st.text() | st.text(alphabet=" \n\t\r\u00a0a1,'é<|endoftext>", max_size=60)


@pytest.fixture(scope="session", params=["small", "gpt2"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    found: Tokenizer = request.getfixturevalue(request.param)
    return found


@given(TEXTS)
@example("a<|endoftext|>b <|endoftext|>")
def test_nothing_of_a_text_is_lost_and_special_tokens_written_out_are_text(
    tokenizer, text
):
    ids, sizes = tokenizer.encode(text), tokenizer.token_bytes()
    assert tokenizer.decode(ids) == text
    assert sum(sizes[id] for id in ids) == len(text.encode())
    assert tokenizer.eot_id not in ids


@pytest.fixture(scope="module")
def reference(gpt2_folder: Path) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer.from_file(str(gpt2_folder / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    return tokenizer


def test_gpt2_ids_agree_around_every_character_of_unicode(gpt2, reference):
    # The two libraries bring their own tables of what is a letter, a digit or a space.
    # Beyond the first two planes there are ideographs and unassigned characters only.
    characters = [
        chr(c) for c in range(0x20000) if unicodedata.category(chr(c)) != "Cs"
    ]
    blocks = ["".join(f"a{c}b 1{c}" for c in characters[i::997]) for i in range(997)]
    for text, ids in zip(blocks, gpt2.encode_batch(blocks), strict=True):
        assert ids.tolist() == reference.encode(text, add_special_tokens=False).ids


def test_batches_are_encoded_as_single_texts_are_also_by_a_saved_tokenizer(
    small, tmp_path
):
    texts = ["hello\n world", "", "hell é <|endoftext|>"]
    wanted = [small.encode(text) for text in texts]
    small.save(tmp_path)
    for spec in (tmp_path, tmp_path / "tokenizer.json", str(tmp_path)):
        loaded = Tokenizer.load(spec)
        assert loaded.fingerprint == small.fingerprint
        assert (loaded.eot_id, loaded.vocab_size) == (small.eot_id, small.vocab_size)
        assert [ids.tolist() for ids in loaded.encode_batch(texts)] == wanted


def test_every_way_to_gpt2_gives_the_same_tokenizer(
    gpt2, gpt2_folder, tmp_path, monkeypatch
):
    cache, files, saved = (tmp_path / name for name in ("cache", "files", "saved"))
    for folder in (cache, files, saved):
        folder.mkdir()
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(gpt2_folder / name, files)
    url = tokenizer_module._GPT2_MERGES_URL
    shutil.copy(
        gpt2_folder / "merges.txt", cache / hashlib.sha1(url.encode()).hexdigest()
    )
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(cache))
    from_files = Tokenizer.load(files)
    from_files.save(saved)
    for loaded in (gpt2, from_files, Tokenizer.load(saved), Tokenizer.load("gpt2")):
        assert loaded.fingerprint == GPT2_FINGERPRINT
        assert (loaded.eot_id, loaded.vocab_size) == (50256, 50257)


def _set(*path: str, to: object) -> Callable[[dict], None]:
    def change(definition: dict) -> None:
        for key in path[:-1]:
            definition = definition[key]
        definition[path[-1]] = to

    return change


def _add_greedy(definition: dict) -> None:
    id = max(definition["model"]["vocab"].values()) + 1
    flags = dict.fromkeys(("special", "single_word", "rstrip", "normalized"), False)
    token = {"id": id, "content": "<x>", "lstrip": True, **flags}
    definition["added_tokens"].append(token)


REFUSED = {
    "cannot be used": _set("model", "type", to="WordPiece"),
    "lacks 210 of the 256 bytes": _set("model", "vocab", to={"word": 0}),
    "it marks parts of words": _set("model", "continuing_subword_prefix", to="##"),
    "does not give back the text": _set("pre_tokenizer", to={"type": "Whitespace"}),
    "changes the text": _set("normalizer", to={"type": "Lowercase"}),
    "lacks 1 of the 256 bytes": lambda definition: definition["model"]["vocab"].pop(
        "!"
    ),
    "does not give back": _set("pre_tokenizer", "add_prefix_space", to=True),
    "its token '<x>' takes the spaces beside it": _add_greedy,
    "no special token is known to end a text": _set("added_tokens", to=[]),
    "id 1000000000 is above": _set("added_tokens", 0, "id", to=10**9),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_vocabulary_that_would_lose_text_is_refused(definition, reason):
    REFUSED[reason](definition)
    with pytest.raises(UserError, match=reason) as caught:
        Tokenizer(definition, "mine")
    assert "'mine'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_byte_that_texts_hardly_have_may_be_missing_and_a_text_with_it_is_refused(
    definition,
):
    characters = {byte: character for character, byte in BYTE_OF_CHARACTER.items()}
    for byte in (0x04, 0xC0, 0xF2, 0xFF):
        del definition["model"]["vocab"][characters[byte]]
    tokenizer = Tokenizer(definition, "mine")
    assert tokenizer.decode(tokenizer.encode("hello \U0001f600")) == "hello \U0001f600"
    for text, byte in (("a\x04", "0x04"), ("\U00080000", "0xF2")):
        with pytest.raises(
            UserError, match=f"'mine': its vocabulary lacks the byte {byte}"
        ):
            tokenizer.encode(text)


def test_a_models_configuration_names_an_end_of_text_that_is_not_known(
    definition, tmp_path
):
    for id, name in enumerate(
        ("<begin>", "<finis>"), max(definition["model"]["vocab"].values())
    ):
        token = {"id": id + 10, "content": name, "special": True, "single_word": False}
        definition["added_tokens"].append(
            token | dict.fromkeys(("lstrip", "rstrip", "normalized"), False)
        )
    known = Tokenizer(definition)
    (tmp_path / "tokenizer_config.json").write_text(
        '{"eos_token": {"content": "<finis>"}}'
    )
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    loaded = Tokenizer.load(tmp_path)
    assert (loaded.eot_id, loaded.fingerprint) == (known.eot_id, known.fingerprint)
    del definition["added_tokens"][0]
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    named = Tokenizer.load(tmp_path)
    assert named.token_values()[named.eot_id] == b"<finis>"
    named.save(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    saved = Tokenizer.load(tmp_path / "tokenizer.json")
    assert (saved.eot_id, saved.fingerprint) == (named.eot_id, named.fingerprint)


@pytest.mark.parametrize("added", [None, {"<s>": 1}])
def test_added_tokens_of_another_form_are_one_line(definition, added, tmp_path):
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<s>"}')
    definition["added_tokens"] = added
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(UserError, match=f"'{tmp_path}': cannot be used .* wrong type"):
        Tokenizer.load(tmp_path)


def test_a_panic_of_the_library_is_one_line_and_an_interrupt_none(
    definition, monkeypatch
):
    class PanicException(BaseException):  # named as pyo3's, which cannot be imported
        pass

    for raised, expected in (
        (PanicException, UserError),
        (KeyboardInterrupt, KeyboardInterrupt),
    ):
        monkeypatch.setattr(
            Tokenizer, "encode", Mock(side_effect=raised("range end index"))
        )
        with pytest.raises(expected, match="range end index"):
            Tokenizer(definition, "mine")
