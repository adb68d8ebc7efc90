"""What tests of exports share: exported folders, and the one line that a mistake gives."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dualpath_cli.cli.main import main
from dualpath_cli.model import DualPathLM
from dualpath_cli.run.trained import find
from dualpath_cli.run.weights import empty_model, load_weights
from tests.conftest import Share
from tests.training.tiny_run import Fit

Pair = tuple[Path, Path]  # a run, and the folder that it was exported to
Exported = Callable[..., Pair]


def words(run: Path, out: Path, *more: object) -> list[str]:
    return ["export", "--ckpt_path", str(run), "--out", str(out), *map(str, more)]


def export(run: Path, out: Path, *more: object) -> Path:
    assert main(words(run, out, *more)) == 0
    return out


def contents(path: Path) -> dict[str, bytes]:
    """What is in a file, or in each file below a folder."""
    files = [file for file in (path, *path.rglob("*")) if file.is_file()]
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}


def model_of(run: Path) -> DualPathLM:
    """The checkpoint's model, as every command loads it."""
    found = find(str(run))
    model = empty_model(found.settings.model)
    load_weights(model, found.run.checkpoint)
    return model.eval()


def load(folder: Path, **options: Any) -> Any:
    """The model of a folder, as transformers loads it by the code beside it."""
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, trust_remote_code=True, **options
    ).eval()


@pytest.fixture
def exported(trained: Fit, share: Share) -> Exported:
    """Trains and exports each recipe once for all tests, which read the folder alone."""

    def pair(**changes: Any) -> Pair:
        run = trained(**changes)
        digest = hashlib.sha256(json.dumps(changes, sort_keys=True).encode()).hexdigest()[:16]
        return run, share(f"hf-{digest}", lambda folder: export(run, folder / "hf")) / "hf"

    return pair
