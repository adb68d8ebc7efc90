"""A directory of transformers, scored by the same command, its padded rows left out."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance

from dualpath_cli.evaluation.harness import parts_of
from dualpath_cli.text.tokenizer import Tokenizer
from tests.evaluation.conftest import NAME
from tests.small_tokenizer import tokenizer_with
from tests.training.test_checkpoint_faults import flip

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

ROWS, IDS = 300, 260
"""Of the vocabulary, and of the tokenizer."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small GPT-2 with padded rows that would take all probability."""
    folder = tmp_path_factory.mktemp("hf") / "small-gpt2"
    tokenizer_with(["h e", "l l", "he ll"]).save(folder)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), eos_token="<|endoftext|>"
    )
    tokenizer.save_pretrained(folder)
    config = transformers.GPT2Config(
        vocab_size=ROWS, n_positions=64, n_embd=16, n_layer=2, n_head=2,
        bos_token_id=len(tokenizer) - 1, eos_token_id=len(tokenizer) - 1,
        tie_word_embeddings=False,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for matrix in (p for p in model.parameters() if p.ndim == 2):  # alike in every version
            matrix.normal_(std=0.3, generator=generator)
        model.lm_head.weight[len(tokenizer) :] = 50 * model.lm_head.weight[:1].sign()
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def loaded(directory: Path) -> Any:
    from dualpath_cli.evaluation.hugging_face import HuggingFaceModel

    return HuggingFaceModel.load(directory, 64, 3, "cpu", "float32", True)


def log_probabilities(directory: Path, ids: list[int]) -> torch.Tensor:
    """In float64, without the padded rows."""
    model = transformers.GPT2LMHeadModel.from_pretrained(directory).double()
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, :, :IDS].log_softmax(-1)


def by_hand(directory: Path, read: list[int], scored: int) -> float:
    """The log-likelihood of the last ids of those that are read."""
    logs = log_probabilities(directory, read[:-1])[-scored:]
    return float(logs.gather(-1, torch.tensor(read[-scored:])[:, None]).sum())


def test_likelihoods_are_those_of_its_logits_without_padded_rows(directory, loaded):
    tokenizer = Tokenizer.load(directory)
    pairs = [("the cell", " tells"), ("hell", " a shell"), ("Answer:", " hello there")]
    answers = loaded.loglikelihood([Instance("loglikelihood", {}, pair, 0) for pair in pairs])
    for (context, continuation), (loglikelihood, _) in zip(pairs, answers, strict=True):
        ids, rest = tokenizer.encode(context + continuation), tokenizer.encode(continuation)
        expected = by_hand(directory, ids, len(rest))
        assert loglikelihood == pytest.approx(expected, abs=1e-4)
        assert loglikelihood > -50


def test_long_continuations_that_end_alike_are_scored_in_parts_of_their_own(directory, loaded):
    """Their last parts read the same ids, of which 18 and 14 are scored."""
    ids = Tokenizer.load(directory).encode("abcdefg" * 12)
    requests = [(None, ids[:2], ids[2:]), (None, ids[:2], ids[6:])]
    for (_, context, rest), (whole, _) in zip(
        requests, loaded._loglikelihood_tokens(requests), strict=True
    ):
        expected = sum(by_hand(directory, *part) for part in parts_of(context, rest, 64))
        assert whole == pytest.approx(expected, abs=1e-3)


def test_padded_rows_are_never_written(directory, loaded):
    tokenizer = Tokenizer.load(directory)
    options = {"until": ["\n\n"], "max_gen_toks": 5, "do_sample": False}
    prompts = ["the cell", "a longer prompt"]
    requests = [Instance("generate_until", {}, (prompt, options), 0) for prompt in prompts]
    for prompt, text in zip(prompts, loaded.generate_until(requests), strict=True):
        ids = tokenizer.encode(prompt)
        for _ in range(5):
            ids.append(int(log_probabilities(directory, ids)[-1].argmax()))
        assert text == tokenizer.decode(ids[len(tokenizer.encode(prompt)) :])


def test_the_command_scores_it_by_the_same_benchmarks(directory, tasks, tmp_path, output_of):
    words = ("--data", tasks, "--out", tmp_path / "o", "--batch_size", "4")
    said = output_of("evaluate", "--hf", directory, *words, "--tasks", "piqa", "c4", "lambada")
    report = json.loads((tmp_path / "o" / "small-gpt2" / "results.json").read_text())
    assert list(report["tasks"]) == ["c4", "piqa", "lambada"]
    assert (report["model"]["window"], report["model"]["batch_size"]) == (64, 4)
    assert "transformers" in report["model"]["versions"]
    assert report["model"]["model"]["vocab_size"] == ROWS
    assert "small-gpt2: window 64" in said


def test_an_exported_directory_scores_as_its_checkpoint(
    run, tasks, scored, tmp_path, output_of, remote_code
):
    folder = tmp_path / "exported"
    output_of("export", "--ckpt_path", run, "--out", folder)
    words = ("--data", tasks, "--out", tmp_path / "o", "--tasks", "arc_challenge", "gsm8k", "c4")
    output_of("evaluate", "--trust_remote_code", "--hf", folder, *words)
    for task, key in (("arc_challenge", "loglikelihoods"), ("arc_challenge", "unconditional"),
                      ("c4", "loglikelihood"), ("gsm8k", "written")):  # fmt: skip
        places = (scored / NAME, tmp_path / "o/exported")
        files = [place / "samples" / f"{task}.jsonl" for place in places]
        ours, theirs = ([json.loads(line)[key] for line in file.open()] for file in files)
        for one, other in zip(ours, theirs, strict=True):
            assert other == (one if key == "written" else pytest.approx(one, abs=1e-4))


def test_an_exported_directory_with_a_flipped_bit_is_not_scored(
    run, tasks, tmp_path, output_of, said
):
    folder = tmp_path / "exported"
    output_of("export", "--ckpt_path", run, "--out", folder)
    words = ("--data", tasks, "--out", tmp_path / "o", "--tasks", "piqa")
    for name in ("model.safetensors", "modeling_dualpath.py"):
        flip(folder / name, 0.5)
        error = said("evaluate", "--trust_remote_code", "--hf", folder, *words)
        assert f"exported' is damaged: {name} is not as it was exported (sha256)" in error
        flip(folder / name, 0.5)
    assert not list((tmp_path / "o").rglob("results.json"))


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_code_in_a_directory_is_run_with_consent_alone(name, directory, tasks, tmp_path, said):
    hostile = tmp_path / "hostile"
    shutil.copytree(directory, hostile)
    kind = "AutoTokenizer" if name.startswith("t") else "AutoConfig"
    named = ["code.Own", None] if name.startswith("t") else "code.Own"
    content = json.loads((hostile / name).read_text()) | {"auto_map": {kind: named}}
    (hostile / name).write_text(json.dumps(content | {"model_type": "own"}))
    (hostile / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nOwn = object\n")
    words = ("--data", tasks, "--out", tmp_path / "o", "--tasks", "piqa")
    line = said("evaluate", "--hf", hostile, *words)
    assert f"{name} names code of its own (auto_map); give --trust-remote-code" in line
    assert not (tmp_path / "ran").exists()
