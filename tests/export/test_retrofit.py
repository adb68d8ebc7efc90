"""`dualpath retrofit`: pretrained models of transformers, computed alike by dual-path
blocks."""

import html
import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.decoding.command import Prompt, encode_prompts
from dualpath_cli.flops.count import layer_flops
from dualpath_cli.recipe.settings import OptimSettings
from dualpath_cli.run.trained import find_trained
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.training.optim import build_optimizer
from tests.export.conftest import export, load, model_of, retrofit, write_gguf
from tests.study.conftest import USERS_OF_FIGURES

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("remote_code")

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "mistral": {"sliding_window": None, "intermediate_size": 45},
    "qwen3": {"head_dim": 8, "num_key_value_heads": 4, "rms_norm_eps": 1e-3},
}

TOKENS = torch.randint(256, (2, 24), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def off(folder: Path, wanted: torch.Tensor) -> float:
    """How far logits are off at most, relative: by our model, by transformers, also
    cached."""
    model = load(folder)
    first = model(TOKENS[:, :9], use_cache=True)
    rest = model(TOKENS[:, 9:], past_key_values=first.past_key_values)
    cached = torch.cat([first.logits, rest.logits], 1)
    found = (model_of(folder)(TOKENS), model(TOKENS).logits, cached)
    return max(float((logits - wanted).norm() / wanted.norm()) for logits in found)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_each_family_keeps_its_logits_and_nearly_under_silent_loops(
    family, pretrained, tmp_path
):
    folder = pretrained(family, **FAMILIES[family])
    wanted, exact, near = load(folder)(TOKENS).logits, 1e-5, 1e-2
    starts = {
        ("--block", "wide"): exact,
        ("--block", "dual", "--loops", "2"): near,
    }
    if family == "llama":
        starts |= {
            ("--loops", "1"): exact,
            ("--loops", "[1, 4]"): near,
            ("--block", "dual", "--loops", "1"): exact,
            ("--block", "dual", "--path", "wide", "--loops", "1"): exact,
            ("--block", "dual", "--path", "wide", "--alpha", "90"): near,
        }
    for number, (words, most) in enumerate(starts.items()):
        out = retrofit(folder, tmp_path / str(number), *words)
        assert off(out, wanted) < most, words
        if number == 1:
            assert off(export(out, tmp_path / "again"), wanted) < most


@pytest.mark.parametrize("injection", ["none", "linear"])
@torch.no_grad()
def test_a_silent_core_keeps_the_logits_and_can_repeat_more_often(
    injection, pretrained, tmp_path
):
    folder = pretrained("llama", num_hidden_layers=4)
    wanted = load(folder)(TOKENS).logits
    words = ("--core", "1-2", "--loops", "3", "--injection", injection)
    out = retrofit(folder, tmp_path / "out", *words)
    assert off(out, wanted) < 1e-2

    model = model_of(out)
    assert (model.config.core, model.config.core_loops) == ([1, 2], 3)
    once = model(TOKENS, intervention=Intervention(core_loops=1))
    assert (once - wanted).norm() < 1e-5 * wanted.norm()


@torch.no_grad()
def test_a_damped_core_is_the_layers_run_again_with_smaller_updates(
    pretrained, tmp_path, output_of
):
    folder, damping = pretrained("llama", num_hidden_layers=4), 0.15
    words = ("--core", "1-2", "--loops", 2, "--damping", damping)
    said = output_of(
        "retrofit", "--pretrained", folder, "--out", tmp_path / "out", *words
    )
    assert "logits with one repetition differ from those" in said

    theirs = load(folder).model
    position_ids = torch.arange(TOKENS.shape[1])[None]
    x = theirs.embed_tokens(TOKENS)
    rope = theirs.rotary_emb(x, position_ids)
    for number, gain in ((0, 1), (1, 1), (2, 1), (1, damping), (2, damping), (3, 1)):
        layer = theirs.layers[number]
        normed = layer.input_layernorm(x)
        x = x + gain * layer.self_attn(normed, rope, attention_mask=None)[0]
        x = x + gain * layer.mlp(layer.post_attention_layernorm(x))
    wanted = load(folder).lm_head(theirs.norm(x))
    assert off(tmp_path / "out", wanted) < 1e-5

    # The loss of a model on its own text is its entropy: any other loss is larger.
    facts = find_trained(str(tmp_path / "out")).run.facts["retrofit"]
    assert facts["damping"] == damping
    assert facts["loss"]["damped"] > facts["loss"]["pretrained"]
    assert f"{facts['loss']['damped']:.3f} nats a token" in said
    card = html.unescape((tmp_path / "out" / "README.md").read_text())
    assert f"damped {facts['loss']['damped']:.3f}" in card


STARTS: list[tuple[str, ...]] = [
    ("--block", "wide"),
    ("--core", "0-1", "--loops", "2", "--injection", "linear"),
    ("--block", "loop", "--loops", "3"),
    ("--block", "[loop, dual]", "--loops", "[1, 3]"),
    ("--block", "dual", "--loops", "1"),
    ("--block", "dual", "--path", "wide", "--loops", "3", "--alpha", "80"),
]


@pytest.mark.parametrize("words", STARTS, ids=" ".join)
def test_every_matrix_moves_about_as_far_as_the_others(words, pretrained, tmp_path):
    """In ten steps, with gradients as small as those of a model of 135 million
    parameters.

    There a gradient of norm 1 has a root mean square of 9e-5, so that Adam's epsilon,
    1e-8, stops a weight with a ten-thousandth of it.
    """
    out = retrofit(pretrained("llama"), tmp_path / "out", *words)
    for optimizer in ("adamw", "muon"):
        moved = mean_squares_moved(out, optimizer)
        usual = sorted(moved.values())[len(moved) // 2]
        for name, square in moved.items():
            assert 0.1 < (square / usual) ** 0.5 < 10, (optimizer, name)


def mean_squares_moved(run: Path, optimizer_name: str) -> dict[str, float]:
    """How far ten steps move each matrix of a run's model: the mean square of its
    changes."""
    model, config = model_of(run), find_trained(str(run)).settings.model
    settings = OptimSettings(
        name=optimizer_name, lr=1e-4, lr_start=1e-4, weight_decay=0, warmup_steps=0
    )
    optimizer = build_optimizer(model.named_parameters(), settings, 10, config)
    matrices = {name: one for name, one in model.named_parameters() if one.ndim > 1}
    before = {name: one.detach().clone() for name, one in matrices.items()}
    norm = 9e-5 * sum(one.numel() for one in model.parameters()) ** 0.5

    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        tokens = torch.randint(272, (4, 65), generator=generator)
        model(tokens[:, :-1], tokens[:, 1:]).mean().backward()
        grads = [parameter.grad for parameter in model.parameters()]
        scale = norm / torch.stack([grad.norm() for grad in grads]).norm()
        for grad in grads:
            grad.mul_(scale)
        optimizer.step()
        optimizer.zero_grad()

    changes = {name: one.detach() - before[name] for name, one in matrices.items()}
    return {name: float(change.square().mean()) for name, change in changes.items()}


@pytest.mark.parametrize("recipe", ["small_text", "f80m_a50_k4"])
def test_the_printed_command_trains_with_a_packaged_recipe(
    recipe, pretrained, tmp_path, texts, output_of
):
    out = tmp_path / "an out"  # with a space
    said = output_of(
        "retrofit", "--pretrained", pretrained("llama"), "--out", out, "--loops", 2
    )
    (line,) = (
        line for line in said.splitlines() if line.startswith("or:   dualpath fit")
    )
    values = {"RECIPE": recipe, "DATA": str(texts / "train"), "LENGTH": "64"}
    words = [values.get(word, word) for word in shlex.split(line)[2:]]
    # The texts of the tests are shorter than a training, and a plan needs no compiler.
    words += ["--data.max_epochs", "100000000", "--run.compile", "false", "--dry_run"]
    plan = output_of(*words)
    assert "begins with the weights of" in plan
    assert "name: retrofit" in plan
    assert "n_layers: 2" in plan


def test_a_retrofitted_folder_is_a_run_and_says_where_it_is_from(
    pretrained, tmp_path, texts, output_of, monkeypatch
):
    monkeypatch.setattr(USERS_OF_FIGURES[0], lambda folder, figures: [])
    out = retrofit(
        pretrained("llama"), tmp_path / "out", "--block", "dual", "--loops", "2"
    )
    card = html.unescape((out / "README.md").read_text())
    assert "license: apache-2.0" in card
    assert "Small llama" in card
    assert "sha256 of model.safetensors" in card
    assert "learning rate" not in card
    val = texts / "val.jsonl"
    losses = [
        output_of("validate", "--ckpt_path", out, "--data.val.text", val),
        output_of("ablate", "--ckpt_path", out, "--data.val.text", val, "--loops", 1),
    ]
    assert all("│" in loss for loss in losses)
    words = ("--data.val.text", val, "--tagger", "none", "--no_costs")
    assert "g_d" in output_of("routing", "--ckpt_path", out, *words)

    paths = ("--data.path", texts / "train", "--run.dir", tmp_path / "runs")
    words = ("fit", "--config", out / "recipe.yaml", "--run.init_from", out, *paths)
    short = "--run.compile false --model.max_seq_len 32 --run.batch_tokens 64"
    short += " --run.max_tokens 128 --optim.warmup_steps 1"
    assert "begins with the weights of" in output_of(*words, *short.split())
    words = ("--prompt", "a", "--max_new_tokens", "2")
    assert output_of("generate", "--ckpt_path", out, *words)


def test_the_card_of_a_retrofit_begins_prompts_as_generate_does(pretrained, tmp_path):
    folder = pretrained("llama")
    tokens = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json")
    )
    settings = {"bos_token": tokens.convert_ids_to_tokens(65)}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    out = retrofit(folder, tmp_path / "out", "--block", "wide")

    card = (out / "README.md").read_text()
    code = card.split("```python\n")[1].split("tokens = model.generate")[0]
    names: dict[str, Any] = {}
    exec(code.replace('"path/to/this/folder"', repr(str(out))), names)
    assert names["tokenizer"].bos_token_id == 65
    (prompt,) = names["prompts"]
    wanted = encode_prompts([Prompt(prompt, "card")], Tokenizer.load(out), window=64)
    assert names["inputs"].input_ids.tolist() == wanted
    assert "an end-of-text token, the tokenizer's `pad_token`" in card


def test_what_cannot_be_read_or_built_is_named(pretrained, tmp_path, said):
    folder, out = pretrained("llama"), tmp_path / "out"
    for place, words, why in (
        (tmp_path, (), "cannot be read"),
        (folder, ("--loops", 0), "loops must be"),
        (folder, ("--loops", "[1, 2, 3]"), "loops lists 3 numbers"),
        (folder, ("--core", "1-2"), "core=[1, 2] must be [FIRST, LAST]"),
    ):
        assert why in said("retrofit", "--pretrained", place, "--out", out, *words)
    deep = b"---\na: " + 9999 * b"[" + b"\n---\n"
    for card in (b"---\nlicense: [\n---\n", b"---\n- a\n---\n", b"caf\xe9", deep):
        (folder / "README.md").write_bytes(card)
        error = said("retrofit", "--pretrained", folder, "--out", out)
        assert "README.md cannot be read (" in error
        assert error.endswith("; mend it, or give --license\n")
    (folder / "README.md").unlink()
    dual = ("retrofit", "--pretrained", folder, "--out", out, "--block", "dual")
    assert "--alpha 99 leaves" in said(*dual, "--alpha", 99)


class Hub:
    """A hub with one model, in a folder."""

    endpoint = "https://hub"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def snapshot_download(self, name: str, allow_patterns: list[str]) -> str:
        snapshot = self.folder.with_name("snapshot")
        snapshot.mkdir()
        for path in self.folder.iterdir():
            if any(path.match(pattern) for pattern in allow_patterns):
                shutil.copy(path, snapshot)
        return str(snapshot)


def test_a_model_of_the_hub_is_that_of_its_folder(pretrained, tmp_path, monkeypatch):
    """With a tokenizer in vocab.json and merges.txt."""
    folder = pretrained("llama")
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    lines = (" ".join(pair) for pair in model["merges"])
    (folder / "merges.txt").write_text("\n".join(lines))
    monkeypatch.setattr("dualpath_cli.data.hub.hub_client", lambda: Hub(folder))

    local = retrofit(folder, tmp_path / "local", "--block", "wide")
    monkeypatch.chdir(tmp_path)
    out = retrofit(Path("owner/name"), tmp_path / "hub", "--block", "wide")
    for name in ("model.safetensors", "tokenizer.json"):
        assert (out / name).read_bytes() == (local / name).read_bytes()


def test_the_recipe_of_a_model_with_a_long_name_is_named_by_its_beginning(
    pretrained, tmp_path
):
    folder = pretrained("llama").rename(tmp_path / ("é" * 99))
    out = retrofit(folder, tmp_path / "out", "--block", "wide")
    facts = yaml.safe_load((out / "recipe.yaml").read_text())
    assert facts["run"]["recipe"] == "é" * 47 + "-wide"


def test_the_folder_to_write_is_checked_before_a_download(tmp_path, said, monkeypatch):
    monkeypatch.setattr("dualpath_cli.data.hub.hub_client", None)
    error = said("retrofit", "--pretrained", "owner/name", "--out", tmp_path)
    assert "exists already; give another --out, or --overwrite" in error


def test_a_missing_package_is_named_with_the_extra_that_has_it(
    tmp_path, said, monkeypatch
):
    (tmp_path / "model.gguf").touch()
    monkeypatch.setitem(sys.modules, "gguf", None)
    error = said(
        "retrofit", "--pretrained", tmp_path / "model.gguf", "--out", tmp_path / "out"
    )
    assert "gguf" in error
    assert error.endswith(": in the clone, pip install '.[retrofit]'\n")


def test_a_new_path_has_the_width_that_alpha_gives(pretrained, tmp_path):
    folder = pretrained("llama")
    for number, words in enumerate(
        [("--alpha", 30), ("--path", "wide", "--alpha", 80, "--loops", 2)]
    ):
        out = retrofit(folder, tmp_path / str(number), "--block", "dual", *words)
        config = find_trained(str(out)).settings.model
        flops, multiple = layer_flops(config.layers[0]), 6 * 32 * config.ffn_multiple_of
        exact = (flops.deep + flops.wide) * words[words.index("--alpha") + 1] / 100
        assert abs(flops.deep - exact) < 2 * multiple


def test_damaged_weights_are_not_filled_in(pretrained, tmp_path, said):
    from safetensors.torch import load_file, save_file

    folder = pretrained("llama")
    path = folder / "model.safetensors"
    weights = load_file(path)
    del weights["model.norm.weight"]
    save_file(weights, path, {"format": "pt"})
    error = said("retrofit", "--pretrained", folder, "--out", tmp_path / "out")
    assert "is incomplete: it lacks model.norm.weight" in error


@torch.no_grad()
def test_a_gguf_file_keeps_its_logits(pretrained, tmp_path):
    folder = pretrained("llama")
    model, path = load(folder), write_gguf(folder, tmp_path / "file" / "small.gguf")
    out = retrofit(path, tmp_path / "out", "--block", "wide")
    assert off(out, model(TOKENS).logits) < 1e-5
    assert find_trained(str(out)).settings.run.recipe == "small-wide"
