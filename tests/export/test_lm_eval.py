"""lm-evaluation-harness runs on an exported folder as on any model of the hub, offline."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from dualpath_cli.text.tokenizer import Tokenizer
from tests.export.conftest import Exported, model_of

pytest.importorskip("lm_eval")

QUESTIONS = [
    {"query": "Tom has", "choices": [" two", " a bug"], "gold": 0},
    {"query": "The sky", "choices": [" is", " eats"], "gold": 1},
    {"query": "Seven and", "choices": [" one", " two", " the"], "gold": 2},
]
TASK = {
    "task": "ours",
    "dataset_path": "json",
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{query}}",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "{{gold}}",
    "target_delimiter": "",
    "metric_list": [{"metric": "acc"}],
}


@pytest.mark.slow
def test_its_likelihoods_are_the_checkpoints(exported: Exported, tmp_path: Path) -> None:
    run, folder = exported()
    lines = tmp_path / "questions.jsonl"
    lines.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    task = {**TASK, "dataset_kwargs": {"data_files": {"test": str(lines)}}}
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "ours.yaml").write_text(yaml.safe_dump(task))
    words = ["--model", "hf", "--model_args", f"pretrained={folder},trust_remote_code=True"]
    words += ["--tasks", "ours", "--include_path", str(tmp_path / "tasks"), "--device", "cpu"]
    words += ["--batch_size", "2", "--log_samples", "--output_path", str(tmp_path / "scores")]
    home = {"HF_HOME": str(tmp_path / "home"), "HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "lm_eval", *words],
        cwd=tmp_path, env={**os.environ, **home}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (results,), (lines_of,) = (
        list((tmp_path / "scores").rglob(pattern)) for pattern in ("results_*", "samples_ours_*")
    )
    samples = [json.loads(line) for line in lines_of.read_text().splitlines()]
    tokenizer, model = Tokenizer.load(run / "tokenizer.json"), model_of(run).double()
    right = 0
    for question, sample in zip(QUESTIONS, samples, strict=True):
        before = tokenizer.encode(str(question["query"]))
        found = [float(answer[0][0]) for answer in sample["resps"]]
        wanted = []
        for choice in question["choices"]:  # type: ignore[attr-defined]
            ids = tokenizer.encode(question["query"] + choice)[len(before) :]
            with torch.no_grad():
                logits = model(torch.tensor([before + ids]))[0].log_softmax(-1)
            wanted.append(sum(logits[len(before) - 1 + n, id].item() for n, id in enumerate(ids)))
        assert found == pytest.approx(wanted, rel=1e-5)
        right += wanted.index(max(wanted)) == question["gold"]
    scores = json.loads(results.read_text())["results"]["ours"]
    assert scores["acc,none"] == pytest.approx(right / len(QUESTIONS))
