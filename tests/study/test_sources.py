"""One source is the same windows and the same loss in validate, ablate and routing."""

import json
import math

import numpy as np
import pytest

from dualpath_cli.cli.main import main
from dualpath_cli.text.tokenizer import Tokenizer
from dualpath_cli.training.module import DualPathModule
from tests.study.routing.test_study import rows_of
from tests.tiny_run import SEQ_LEN


def test_three_commands_give_one_loss_and_routing_a_row_for_every_text_token(
    run, texts, tmp_path, monkeypatch
):
    paths = {"text": str(texts / "val.jsonl"), "packed": str(texts / "train")}
    validated: dict[str, dict[str, float]] = {}
    publish = DualPathModule.on_validation_epoch_end

    def published(module: DualPathModule) -> None:
        publish(module)
        validated.update(module.val_results)

    monkeypatch.setattr(DualPathModule, "on_validation_epoch_end", published)
    words = ["--ckpt_path", str(run), "--data.val_tokens", "100"]
    assert main(["validate", *words, "--data.val", json.dumps(paths)]) == 0
    words += ["--sources", *(f"{name}={path}" for name, path in paths.items())]
    words += ["--out", str(tmp_path)]
    assert main(["ablate", *words, "--loops", "3"]) == 0
    assert main(["routing", *words, "--tagger", "none", "--no_costs", "--sequences", "1"]) == 0
    ablated = json.loads((tmp_path / "ablations.json").read_text())
    routed = json.loads((tmp_path / "summary.json").read_text())["sources"]
    tokenizer = Tokenizer.load(run / "tokenizer.json")
    n_bytes, rows = tokenizer.token_bytes(), rows_of(tmp_path)
    assert tokenizer.eot_id not in rows["token_id"]
    for name, expected in validated.items():
        (learned,) = [
            row for row in ablated["rows"]
            if (row["source"], row["intervention"]) == (name, "learned")
        ]  # fmt: skip
        assert learned["loss"] == pytest.approx(expected["loss"], rel=1e-6)
        assert routed[name]["loss"] == pytest.approx(expected["loss"], rel=1e-6)
        bits_per_byte = expected["bits_per_byte"]
        assert routed[name]["bits_per_byte"] == pytest.approx(bits_per_byte, rel=1e-6)
        ids, nats, sequences = (
            rows[column][rows["source"] == name] for column in ("token_id", "nats", "sequence")
        )
        text_bytes = sum(n_bytes[id] for id in ids.tolist())
        assert nats.sum() / (math.log(2) * text_bytes) == pytest.approx(bits_per_byte, rel=1e-5)
        scored = ablated["sources"][name]["tokens"]
        assert routed[name]["tokens"] == len(ids)
        lengths = np.bincount(sequences)
        if name == "text":
            assert len(ids) == scored == 100
            assert nats.sum() / scored == pytest.approx(expected["loss"], rel=1e-5)
        else:  # end-of-text within a block is scored, but is context alone; so is the first token
            assert scored / 2 < len(ids) < scored == 96
            assert lengths.min() < lengths.max() == SEQ_LEN
