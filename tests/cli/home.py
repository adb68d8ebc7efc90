"""What the cases start from: a folder with a recipe, texts, a data folder and a run of it."""

import json
import shutil
from pathlib import Path

import yaml

from dualpath_cli.base.system import format_csv
from dualpath_cli.base.version import versions
from dualpath_cli.data.manifest import Manifest
from dualpath_cli.recipe.recipes import Recipe
from dualpath_cli.recipe.settings import settings_from
from dualpath_cli.run.checkpoint_files import describe, files_of, write_manifest
from tests.training.tiny_run import prepare, tiny_recipe, write_text

RUN = "runs/tiny/default"


def recipe_of_home() -> Recipe:
    """The recipe of tiny.yaml: its paths are those in the folder."""
    recipe = tiny_recipe(Path("texts"), Path("runs"))
    recipe["data"]["val"] = {"held_out": "val.jsonl"}
    return recipe


def write_home(folder: Path) -> None:
    """Fills a folder; nothing in it is trained, as nothing that the cases run reads weights."""
    texts = folder / "texts"
    texts.mkdir(parents=True)
    prepare(texts / "train", write_text(folder / "train.jsonl", 0, documents=40, words=20))
    write_text(folder / "val.jsonl", 1, documents=5, words=12)
    (folder / "tiny.yaml").write_text(yaml.safe_dump(recipe_of_home()))
    run = folder / RUN
    (run / "checkpoints").mkdir(parents=True)
    checkpoint = run / "checkpoints" / "step-00000002"
    checkpoint.mkdir()
    (checkpoint / "state.json").write_text("{}")
    (run / "checkpoints" / "last").symlink_to("step-00000002")
    shutil.copy(texts / "train" / "tokenizer.json", run)
    resolved = settings_from(recipe_of_home()).as_recipe()
    (run / "recipe.yaml").write_text(yaml.safe_dump(resolved))
    manifest = Manifest.read(texts / "train")
    facts = {"id": "1", "step": 2, "model": resolved["model"], "rows": {},
             "tokenizer": manifest.tokenizer, "data_fingerprint": manifest.fingerprint}  # fmt: skip
    write_manifest(checkpoint, describe(checkpoint, files_of(checkpoint)), facts)
    (run / "versions.json").write_text(json.dumps(versions() | facts))
    rows = [{"step": n, "tokens": 64 * n, "loss": 5.5, "seconds": n / 10} for n in (1, 2)]
    (run / "metrics.csv").write_text(format_csv(rows))
    rows = [{"step": n, "tokens": 64 * n, "set": "held_out", "loss": 5.5} for n in (0, 2)]
    (run / "validation.csv").write_text(format_csv(rows))
    gates = {"gate_deep": 0.5, "gate_wide": 0.5, "expected_loops": 1.5}
    (run / "routing.csv").write_text(format_csv([{"step": 2, "layer": n, **gates} for n in (0, 1)]))
