"""`dualpath generate` from words, rows, texts and stdin to texts and files."""

import codecs
import gzip
import io
import itertools
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import zstandard

from dualpath_cli.base.errors import UserError
from dualpath_cli.cli.main import main
from dualpath_cli.decoding import texts
from dualpath_cli.decoding.command import Prompt, encode_prompts, read_prompts
from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.decoding.options import Generate, check_change
from dualpath_cli.decoding.writing import NewToken
from dualpath_cli.recipe.recipes import merge
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Intervention
from tests.conftest import OutputOf
from tests.data.small_tokenizer import tokenizer_with
from tests.study.conftest import OPEN, model_of
from tests.training.tiny_run import LONG, Fit

Rows = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def run(trained: Fit) -> Path:
    """A run of the tiny recipe whose model takes 64 tokens, and whose loops and gates
    matter."""
    return trained(**merge(OPEN, LONG))


@pytest.fixture
def rows(run: Path, tmp_path: Path, output_of: OutputOf) -> Rows:
    """`rows(*words)`: what is written into a file."""

    def written(*words: object) -> list[dict[str, Any]]:
        out = tmp_path / "out" / f"{len(list((tmp_path).rglob('*.jsonl')))}.jsonl"
        said = output_of("generate", "--ckpt_path", run, "--out", out, *words)
        assert said.splitlines()[-1] == str(out)
        return [json.loads(line) for line in out.open()]

    return written


@pytest.mark.parametrize(
    ("drawn", "drafts", "counted"),
    [
        ("--seed 3", "", ""),
        ("--greedy", " --speculate 3", r"\d+% of \d+ drafted tokens accepted, "),
    ],
)
def test_one_text_is_streamed_and_its_speed_and_drafts_go_to_stderr(
    drawn, drafts, counted, run, rows, capsys
):
    """Drafts change no greedy text."""
    words = f"--prompt hello --max_new_tokens 20 {drawn}"
    (row,) = rows(*words.split())
    capsys.readouterr()
    assert main(["generate", "--ckpt_path", str(run), *f"{words}{drafts}".split()]) == 0
    said = capsys.readouterr()
    assert said.out == f"hello{row['text']}\n"
    (line,) = said.err.splitlines()
    assert re.fullmatch(
        rf"{row['new_tokens']} new tokens, [\d,.]+ tokens/s without the prompt, "
        rf"first token after \d+\.\d\d s, {counted}cache [\d.]+ kB",
        line,
    )


def test_the_speed_is_that_of_the_passes_after_the_first():
    """The first one reads the prompt, and may keep a draft.

    Preparation, here of more time than has passed, counts in neither.
    """
    decoder: Any = SimpleNamespace(preparing_seconds=0.0, cache_bytes=0, length=0)

    def tokens() -> Iterator[NewToken]:
        for length in (4, 4, 4, 7, 7):
            decoder.length = length
            decoder.preparing_seconds += 5
            yield NewToken(0, 1, "a")

    stats = texts.GenerationStats()
    text = texts.GeneratedText("", [0], 1, 1)
    assert len(list(texts._timed(tokens(), [text], decoder, stats))) == 5
    assert (stats.tokens, stats.later_tokens) == (5, 2)
    assert stats.preparing_seconds == 5 * 5
    assert max(*stats.first_seconds, stats.later_seconds) < 0


def test_several_texts_are_printed_whole_with_their_numbers(run, rows, capsys):
    words = ["--prompt", "the", "hell", "--num_samples", "2", "--max_new_tokens", "9"]
    written = rows(*words)
    assert [(row["number"], row["sample"]) for row in written] == [
        (1, 1),
        (1, 2),
        (2, 1),
        (2, 2),
    ]
    assert len({row["text"] for row in written}) == 4
    capsys.readouterr()
    assert main(["generate", "--ckpt_path", str(run), *words]) == 0
    said = capsys.readouterr().out
    for row in written:
        title = f"prompt {row['number']}, sample {row['sample']}: "
        title += f"{row['new_tokens']} tokens, {row['end']}"
        assert f"{title}\n{row['prompt']}{row['text']}\n" in said


def test_rows_of_a_file_are_answered_in_their_order(rows, tmp_path):
    questions = [{"question": "the " * n + "cell", "id": [n]} for n in range(5)]
    path = tmp_path / "asked.json"
    path.with_suffix(".jsonl").write_text("\n".join(map(json.dumps, questions)))
    found = rows(
        "--file", path.with_suffix(".jsonl"), "--max_new_tokens", 4, "--batch_size", 2
    )
    assert [row["prompt"] for row in found] == [
        asked["question"] for asked in questions
    ]


def test_without_a_prompt_a_text_begins_by_itself_and_fills_the_window(rows):
    (row,) = rows("--max_new_tokens", 99, "--greedy")
    assert row.pop("text")
    begun = {"prompt": "", "number": 1, "sample": 1, "new_tokens": 64, "end": "window"}
    assert row == begun


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("skip=0.6", Intervention(skip=0.6)),
        ("gates=0,1", Intervention(gates=(0.0, 1.0))),
    ],
)
def test_a_text_under_an_override_is_the_models_own(words, change, run, rows):
    """An argmax at a time, the whole text read again for each."""
    model, tokenizer = model_of(run)
    ids = [tokenizer.eot_id, *tokenizer.encode("the shell")]
    begin = len(ids)
    for _ in range(24):
        with torch.no_grad():
            logits = forward(model, torch.tensor([ids]), intervention=change)[0, -1]
        ids.append(int(logits[: tokenizer.vocab_size].argmax()))
        if ids[-1] == tokenizer.eot_id:
            break

    options = ("--prompt", "the shell", "--max_new_tokens", 24, "--greedy")
    (row,) = rows(*options, "--intervention", words)
    written = [id for id in ids[begin:] if id != tokenizer.eot_id]
    assert row["text"] == tokenizer.decode(written)
    assert row["new_tokens"] == len(ids) - begin
    assert [row] != rows(*options), "the override matters here"


def test_the_precision_is_that_of_the_option(rows):
    prompt = ("--prompt", "the shell", "hell", "--max_new_tokens", 24)
    assert rows(*prompt, "--precision", "bfloat16") != rows(*prompt)


def test_a_smaller_last_batch_is_filled_up_where_passes_are_compiled(rows, monkeypatch):
    """Else it would be compiled again for its size."""
    words = [
        "--prompt",
        "a",
        "the cell",
        "",
        "--batch_size",
        "2",
        "--max_new_tokens",
        "4",
    ]
    expected, generate_batch, sizes = rows(*words), texts.generate_batch, []

    def sized(next_logits: Any, prompts: Any, *arguments: Any) -> Any:
        sizes.append(len(prompts))
        return generate_batch(next_logits, prompts, *arguments)

    monkeypatch.setattr(texts, "generate_batch", sized)
    monkeypatch.setattr(torch.nn.Module, "compile", lambda *_, **__: None)
    assert rows(*words, "--compile") == expected
    assert sizes == [2, 2]
    sizes.clear()
    assert (
        len(rows("--prompt", "a", "--compile", "--max_new_tokens", "2"))
        == len(sizes)
        == 1
    )


def test_texts_that_fill_up_a_batch_are_not_padded(rows, monkeypatch):
    """Padded passes would be compiled again."""
    generate_batch, unpadded = texts.generate_batch, []

    def watched(next_logits: Any, *arguments: Any) -> Any:
        def next_logits_of(ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
            unpadded.append(bool(mask_BT.all()))
            return next_logits(ids_BT, mask_BT)

        return generate_batch(next_logits_of, *arguments)

    monkeypatch.setattr(texts, "generate_batch", watched)
    monkeypatch.setattr(torch.nn.Module, "compile", lambda *_, **__: None)
    words = "--prompt shell --num_samples 3 --batch_size 2 --max_new_tokens 3"
    assert len(rows(*words.split(), "--compile")) == 3
    assert all(unpadded)


def test_drafts_need_a_loop_or_a_core_that_repeats():
    config = ModelConfig(
        n_layers=2, block="wide", d_ffn_wide=48, core=[0, 1], core_loops=2
    )
    options = Generate(ckpt_path="RUN", speculate=3)
    check_change(options, Intervention(core_loops=3), config)
    with pytest.raises(UserError, match="drafts with one loop"):
        check_change(options, Intervention(core_loops=1), config)


def interrupt(signum: int, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal once so many pieces have come."""
    generate_batch, count = texts.generate_batch, itertools.count()

    def interrupted(*arguments: Any) -> Any:
        for piece in generate_batch(*arguments):
            if next(count) == after:
                signal.raise_signal(signum)
            yield piece

    monkeypatch.setattr(texts, "generate_batch", interrupted)


def test_a_signal_keeps_what_was_streamed(run, rows, capsys, monkeypatch):
    words = ["--prompt", "a cell", "--greedy", "--max_new_tokens", "30"]
    (row,) = rows(*words)
    interrupt(signal.SIGINT, 10, monkeypatch)
    capsys.readouterr()
    assert main(["generate", "--ckpt_path", str(run), *words]) == 130
    streamed, last = capsys.readouterr().out.splitlines()
    assert f"a cell{row['text']}".startswith(streamed)
    assert len(streamed) > len("a cell")
    assert last.startswith("dualpath generate: interrupted; 10 new tokens, ")


def test_a_signal_keeps_the_texts_that_are_done_beside_the_file(
    run, rows, tmp_path, capsys, monkeypatch
):
    words = [
        "--prompt",
        "a",
        "the cell",
        "--greedy",
        "--batch_size",
        "1",
        "--max_new_tokens",
        "6",
    ]
    whole = rows(*words)
    # in the second batch: longer prompts come first
    interrupt(signal.SIGTERM, 8, monkeypatch)
    out = tmp_path / "o.jsonl"
    assert main(["generate", "--ckpt_path", str(run), "--out", str(out), *words]) == 143
    kept = out.with_name("o.jsonl.interrupted")
    said = capsys.readouterr().out
    assert f"generate: stopped by SIGTERM; 1 of 2 texts are in '{kept}'" in said
    assert not out.exists()
    assert [json.loads(line) for line in kept.open()] == whole[1:]


def test_a_failure_keeps_the_texts_that_are_done_beside_the_file(
    run, tmp_path, capsys, monkeypatch
):
    generate_batch = texts.generate_batch

    def without_room(next_logits: Any, prompts: Any, *arguments: Any) -> Any:
        yield from generate_batch(next_logits, prompts, *arguments)
        # longer prompts come first
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(texts, "generate_batch", without_room)
    out = tmp_path / "o.jsonl"
    words = ["--prompt", "a", "the cell", "--batch_size", "1", "--max_new_tokens", "2"]
    assert main(["generate", "--ckpt_path", str(run), "--out", str(out), *words]) == 1
    kept = out.with_name("o.jsonl.interrupted")
    assert f"1 of 2 texts are in '{kept}'\n" in capsys.readouterr().err
    assert not out.exists()
    assert [json.loads(line)["prompt"] for line in kept.open()] == ["the cell"]


ROWS: list[dict[str, Any]] = [
    {"prompt": "one", "question": "not this", "id": 7},
    {"question": "two", "answer": "2", "text": "nor this"},
    {"text": "drei ü"},
]
OPENERS = {
    "": Path.write_bytes,
    ".gz": lambda path, content: path.write_bytes(gzip.compress(content)),
    ".zst": lambda path, content: path.write_bytes(zstandard.compress(content)),
}


def texts_of(prompts: list[Prompt]) -> list[str]:
    return [prompt.text for prompt in prompts]


@pytest.mark.parametrize("suffix", OPENERS)
def test_a_row_gives_its_prompt(suffix, tmp_path):
    path = tmp_path / f"rows.jsonl{suffix}"
    OPENERS[suffix](path, "\n".join(map(json.dumps, ROWS)).encode())
    prompts = read_prompts([], str(path))
    assert texts_of(prompts) == ["one", "two", "drei ü"]


@pytest.mark.parametrize("begin", [b"", codecs.BOM_UTF8])
def test_any_other_file_a_pipe_and_stdin_are_one_prompt(begin, tmp_path, monkeypatch):
    """The same one, whatever ends its lines and the locale's encoding."""
    story = 'Önce\r\n\n{"prompt": "no row"}\n'
    content = begin + story.encode()
    (tmp_path / "story.md").write_bytes(content)
    assert texts_of(read_prompts([], str(tmp_path / "story.md"))) == [story]

    reading, writing = os.pipe()
    with open(reading, "rb"), open(writing, "wb") as pipe:
        pipe.write(content)
        pipe.close()
        assert texts_of(read_prompts([], f"/dev/fd/{reading}")) == [story]

    stdin = io.TextIOWrapper(io.BytesIO(content), encoding="latin-1")
    monkeypatch.setattr("sys.stdin", stdin)
    assert texts_of(read_prompts([], "-")) == [story]


def test_stdin_that_is_closed_or_not_utf_8_is_named(monkeypatch):
    for stdin, message in (
        (None, "stdin is closed; give a file, or --prompt"),
        (io.TextIOWrapper(io.BytesIO(b"a\xff")), "stdin: not UTF-8 at byte 1"),
    ):
        monkeypatch.setattr("sys.stdin", stdin)
        with pytest.raises(UserError, match=message):
            read_prompts([], "-")


def test_each_word_of_prompt_is_one_and_none_is_an_empty_one():
    assert texts_of(read_prompts(["a", "-b\n"], None)) == ["a", "-b\n"]
    assert texts_of(read_prompts([], None)) == [""]


TOKENIZER = tokenizer_with([])


def test_a_prompt_follows_end_of_text_and_may_fill_the_window():
    prompts = [Prompt("", "one"), Prompt("abcdefg", "two")]
    expected = [[TOKENIZER.eot_id], [TOKENIZER.eot_id, *TOKENIZER.encode("abcdefg")]]
    assert encode_prompts(prompts, TOKENIZER, 8) == expected
    with pytest.raises(UserError, match="two has 7 tokens"):
        encode_prompts(prompts, TOKENIZER, 7)
