"""docs/custom.md: the file that its code makes is trained with, used and exported."""

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dualpath_cli.export.hf.code import own_files
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.own_checks import import_classes
from dualpath_cli.spec.own_classes import FOUND
from tests.training.tiny_run import tables, weights

PAGE = Path(__file__).parents[2] / "docs" / "custom.md"
OWN = {"gate": "my_gates.TemperedGate", "combination": "my_gates.SoftmaxOverSteps"}


@pytest.fixture(autouse=True)
def _file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    (tmp_path / "my_gates.py").write_text("\n\n".join(blocks))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    importlib.invalidate_caches()
    yield
    sys.modules.pop("my_gates", None)
    for path in OWN.values():
        FOUND.pop(path, None)


def test_a_model_is_trained_with_it_and_both_classes_learn(fit, output_of, said):
    run = fit(model=OWN, optim={"lr": 0.05})
    losses = [float(row["loss"]) for row in tables(run)["metrics.csv"]]
    assert losses[-1] < losses[0]
    learned = weights(run)
    for layer in (0, 1):
        for name in ("gate.proj.weight", "gate.log_temperature", "deep.router.slope"):
            assert learned[f"model.blocks.{layer}.{name}"].abs().max() > 0
    error = json.loads(output_of("flops", "--config", run / "recipe.yaml", "--format", "json"))
    assert error["params"] == sum(value.numel() for value in learned.values())
    assert error["flops_per_token_per_layer"]["gate"] == 4 * 16
    assert error["flops_per_token_per_layer"]["router"] == 2 * 16 * 2
    for words in (["--loops", 3], ["--intervention", "skip=0.4"]):
        assert output_of("generate", "--own_classes", "--ckpt_path", run, "--prompt", "a", *words)
    by_mass = ["--prompt", "hello", "--intervention", "halting=0.5"]
    error = said("generate", "--own_classes", "--ckpt_path", run, *by_mass)
    assert "SoftmaxOverSteps has no step_probability" in error


def test_a_folder_for_transformers_can_hold_it():
    config = ModelConfig(d_ffn=8, d_ffn_wide=8, **OWN)
    import_classes(config, allowed=True)
    (text,) = own_files(config).values()
    assert "from .configuration_dualpath import ModelConfig" in text
