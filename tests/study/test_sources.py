"""One source is the same windows and the same loss in validate, ablate and routing."""

import json
import math
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dualpath_cli.cli import main
from dualpath_cli.text.tokenizer import Tokenizer
from dualpath_cli.training.module import DualPathModule


@pytest.mark.parametrize("kind", ["text", pytest.param("packed", marks=pytest.mark.slow)])
def test_three_commands_give_one_loss_and_routing_a_row_for_every_text_token(
    kind: str, run: Path, texts: Path, tmp_path: Path, monkeypatch
):
    path = texts / {"text": "val.jsonl", "packed": "train"}[kind]
    results: dict[str, dict[str, float]] = {}
    publish = DualPathModule.on_validation_epoch_end

    def published(module: DualPathModule) -> None:
        publish(module)
        results.update(module.val_results)

    monkeypatch.setattr(DualPathModule, "on_validation_epoch_end", published)
    words = ["--ckpt_path", str(run), "--data.val_tokens", "100"]
    assert main(["validate", *words, "--data.val", json.dumps({"a": str(path)})]) == 0
    validated = results["a"]

    words += ["--sources", f"a={path}", "--out", str(tmp_path)]
    assert main(["ablate", *words, "--loops", "3"]) == 0
    assert main(["routing", *words, "--tagger", "none"]) == 0
    ablated = json.loads((tmp_path / "ablations.json").read_text())
    routed = json.loads((tmp_path / "summary.json").read_text())["sources"]["a"]
    assert ablated["rows"][0]["loss"] == pytest.approx(validated["loss"], rel=1e-6)
    assert routed["loss"] == pytest.approx(validated["loss"], rel=1e-6)
    assert routed["bits_per_byte"] == pytest.approx(validated["bits_per_byte"], rel=1e-6)

    rows = pq.read_table(tmp_path / "routing.parquet")
    n_bytes = Tokenizer.load(run / "tokenizer.json").token_bytes()
    text_bytes = sum(n_bytes[id] for id in rows["token_id"].to_pylist())
    nats = sum(rows["nats"].to_pylist())
    assert len(rows) == routed["tokens"]
    assert nats / (math.log(2) * text_bytes) == pytest.approx(validated["bits_per_byte"], rel=1e-5)
    scored = ablated["sources"]["a"]["tokens"]
    if kind == "text":
        assert len(rows) == scored == 100
        assert nats / scored == pytest.approx(validated["loss"], rel=1e-5)
    else:  # end-of-text is scored, too, but is no text
        assert scored / 2 < len(rows) < scored == 96
