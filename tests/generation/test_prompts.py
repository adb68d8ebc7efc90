"""Prompts: from words, rows, texts and stdin."""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard

from dualpath_cli.errors import UserError
from dualpath_cli.generation.request import Prompt, ids_of, read_prompts
from tests.small_tokenizer import tokenizer_with

ROWS: list[dict[str, Any]] = [
    {"prompt": "one", "question": "not this", "id": 7},
    {"question": "two", "answer": "2", "text": "nor this"},
    {"text": "drei ü"},
]
OPENERS = {"": Path.write_bytes, ".gz": lambda path, content: path.write_bytes(
    gzip.compress(content)), ".zst": lambda path, content: path.write_bytes(
    zstandard.compress(content))}  # fmt: skip


def texts(prompts: list[Prompt]) -> list[str]:
    return [prompt.text for prompt in prompts]


@pytest.mark.parametrize("suffix", OPENERS)
def test_a_row_gives_its_prompt_and_carries_the_rest(suffix, tmp_path):
    path = tmp_path / f"rows.jsonl{suffix}"
    OPENERS[suffix](path, "\n".join(map(json.dumps, ROWS)).encode())
    prompts = read_prompts([], str(path), ())
    assert texts(prompts) == ["one", "two", "drei ü"]
    assert [prompt.extra for prompt in prompts] == [
        {"question": "not this", "id": 7}, {"answer": "2", "text": "nor this"}, {},
    ]  # fmt: skip


def test_any_other_file_and_stdin_are_one_prompt(tmp_path, monkeypatch):
    story = 'Once\n\n{"prompt": "no row"}\n'
    (tmp_path / "story.md").write_text(story)
    assert texts(read_prompts([], str(tmp_path / "story.md"), ())) == [story]
    monkeypatch.setattr("sys.stdin", io.StringIO(story))
    assert texts(read_prompts([], "-", ())) == [story]
    assert texts(read_prompts(["a", "-b\n"], None, ())) == ["a", "-b\n"]
    assert texts(read_prompts([], None, ())) == [""]


TOKENIZER = tokenizer_with([])
EOT = TOKENIZER.eot_id


def ids(text: str, truncate: bool, window: int = 8, most_new: int = 5) -> list[int]:
    return ids_of([Prompt(text, "it")], TOKENIZER, window, most_new, truncate)[0]


def test_end_of_text_stands_before_every_prompt():
    assert ids("", truncate=False) == [EOT]
    assert ids("ab", truncate=False) == [EOT, *TOKENIZER.encode("ab")]


def test_a_prompt_fills_the_window_or_leaves_room_for_all_new_tokens():
    assert ids("abcdefg", truncate=False) == [EOT, *TOKENIZER.encode("abcdefg")]
    with pytest.raises(UserError, match="it has 8 tokens, the model's window has room for 7"):
        ids("abcdefgh", truncate=False)
    assert ids("abcdefgh", truncate=True) == [EOT, *TOKENIZER.encode("fgh")]
    assert ids("fgh", truncate=True) == [EOT, *TOKENIZER.encode("fgh")]
    with pytest.raises(UserError, match="leave nothing"):
        ids("abc", truncate=True, most_new=8)
