"""The folder for transformers: its model is the checkpoint's, value by value, and comes back."""

import contextlib
import csv
import hashlib
import html
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from dualpath_cli.cli import main
from dualpath_cli.export.hf.flatten import flatten
from dualpath_cli.intervention import Intervention
from dualpath_cli.model import DualPathLM
from dualpath_cli.recipe.settings import settings_from
from dualpath_cli.run import run_file, run_folder
from dualpath_cli.training.parallel import build_model
from dualpath_cli.training.state.weights import load_weights
from tests.conftest import OutputOf, Share
from tests.tiny_run import Fit

transformers = pytest.importorskip("transformers")

LENGTH = 12
END = 259
"""End of text in the tests' tokenizer."""
MODELS: dict[str, dict[str, Any]] = {
    "K=2": {},
    "wide": {"block": "wide", "qk_norm": "none"},
    "fixed": {"gate": "fixed", "combination": "mean"},
    "K=1": {"loops": 1},
    "K=4, tied": {"loops": 4, "tie_embeddings": True},
    "kinds, documents": {"block": ["loop", "wide"], "document_start": END},
}


pytestmark = pytest.mark.usefixtures("remote_code")


EVERYDAY = ("K=2", "kinds, documents")
"""Those of MODELS that are tested each time, also where all of them have equal logits."""
Pair = tuple[Path, Path]
"""A run, and the folder that it was exported to."""


@pytest.fixture
def exported(trained: Fit, share: Share) -> Callable[..., Pair]:
    """Trains and exports each recipe once for all tests, which read the folder alone."""

    def pair(**changes: Any) -> Pair:
        run = trained(**changes)
        digest = hashlib.sha256(json.dumps(changes, sort_keys=True).encode()).hexdigest()[:16]
        return run, share(f"hf-{digest}", lambda folder: export(run, folder / "hf")) / "hf"

    return pair


@pytest.fixture(
    params=[pytest.param(name, marks=() if name in EVERYDAY else pytest.mark.slow)
            for name in MODELS]
)  # fmt: skip
def pair(request: pytest.FixtureRequest, exported: Callable[..., Pair]) -> Pair:
    """A run whose gains are open from the start, so that all paths show in six steps."""
    return exported(model=MODELS[request.param])


def export(run: Path, out: Path, *words: str) -> Path:
    given = ["--ckpt_path", str(run), "--format", "hf", "--out", str(out), *words]
    assert main(["export", *given]) == 0
    return out


def model_of(run: Path) -> DualPathLM:
    """The checkpoint's model, as every command loads it."""
    found = run_file.find(str(run))
    model = build_model(settings_from(run_folder.read_recipe(found.folder)).model)
    load_weights(model, found.checkpoint)
    return model.eval()


def load(folder: Path, **options: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, trust_remote_code=True, **options
    ).eval()


def some_tokens(model: DualPathLM, batch: int = 2, length: int = LENGTH) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.config.vocab_size, (batch, length), generator=generator)
    tokens[:, 3] = END  # a second document
    return tokens


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("pair", MODELS, indirect=True)
def test_logits_are_the_checkpoints(pair: Pair) -> None:
    ours, theirs = model_of(pair[0]), load(pair[1])
    assert type(theirs).__module__.startswith("transformers_modules.")
    tokens = some_tokens(ours)
    wanted = ours(tokens)
    torch.testing.assert_close(theirs(tokens).logits, wanted, atol=1e-6, rtol=0)
    for other in ({"loops": 1}, {"loops": 3}, {"gates": (1.0, 0.0)}):
        intervention = Intervention(**other)
        if intervention.problem(ours.config) is None:
            changed = ours(tokens, intervention=intervention)
            assert other == {"loops": 1} or (changed - wanted).abs().max() > 1e-4
            torch.testing.assert_close(
                theirs(tokens, intervention=other).logits, changed, atol=1e-6, rtol=0
            )


def test_padding_and_cache_change_no_text(pair: Pair) -> None:
    ours, theirs = model_of(pair[0]), load(pair[1])
    tokens = some_tokens(ours, batch=3)
    lengths = (4, LENGTH, 7)
    mask = torch.zeros_like(tokens)
    for row, length in enumerate(lengths):
        mask[row, LENGTH - length :] = 1
    settings = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    ways: list[dict[str, Any]] = [{}, {"num_beams": 2}]
    if Intervention(loops=3).problem(ours.config) is None:
        ways.append({"intervention": {"loops": 3}})
    for more in ways:
        batch = theirs.generate(tokens, attention_mask=mask, **settings, **more)
        without = theirs.generate(tokens, attention_mask=mask, use_cache=False, **settings, **more)
        assert torch.equal(batch, without)
        for row, length in enumerate(lengths):
            alone = theirs.generate(tokens[row : row + 1, LENGTH - length :], **settings, **more)
            assert torch.equal(batch[row, LENGTH - length :], alone[0])
    past = theirs(tokens, attention_mask=mask).past_key_values
    further = theirs(tokens[:, :2], past_key_values=past).logits  # no mask: of these, none is
    for row, length in enumerate(lengths):
        whole = torch.cat((tokens[row, LENGTH - length :], tokens[row, :2]))[None]
        torch.testing.assert_close(further[row], theirs(whole).logits[0, -2:], atol=1e-6, rtol=0)


def test_greedy_text_is_the_models_own(pair: Pair) -> None:
    ours, theirs = model_of(pair[0]), load(pair[1])
    real = theirs.config.dualpath["tokenizer_size"]
    tokens = wanted = some_tokens(ours, batch=1, length=5)
    for _ in range(6):
        wanted = torch.cat((wanted, ours(wanted)[:, -1:, :real].argmax(-1)), dim=1)
    mask = torch.ones_like(tokens)  # else tokens that are also the padding's would be left out
    made = theirs.generate(
        tokens, attention_mask=mask, max_new_tokens=6, do_sample=False, eos_token_id=None
    )
    assert torch.equal(made, wanted)


def test_states_losses_and_hooks(exported: Callable[..., Pair]) -> None:
    run, folder = exported()
    ours, theirs = model_of(run), load(folder)
    tokens = some_tokens(ours)
    seen: list[torch.Tensor] = []
    theirs.model.blocks[1].deep.sublayer.register_forward_hook(lambda *all: seen.append(all[-1]))
    outputs = theirs(
        tokens, labels=tokens, output_hidden_states=True, output_routing=True, use_cache=False
    )
    assert outputs.past_key_values is None
    assert len(outputs.hidden_states) == ours.config.n_layers + 1
    torch.testing.assert_close(outputs.hidden_states[0], ours.embed(tokens))
    torch.testing.assert_close(theirs.model.head(outputs.hidden_states[-1]), outputs.logits)
    states = outputs.routing.layers[1].deep_states
    assert len(states) == len(seen) == ours.config.loops
    assert all(torch.equal(state, hooked) for state, hooked in zip(states, seen, strict=True))
    wanted = ours(tokens[:, :-1], tokens[:, 1:]).mean()
    torch.testing.assert_close(outputs.loss, wanted)
    last = theirs(tokens, logits_to_keep=1).logits
    torch.testing.assert_close(last, outputs.logits[:, -1:])
    assert theirs(tokens, return_dict=False)[0].shape == outputs.logits.shape


def test_what_it_cannot_do_is_said(exported: Callable[..., Pair]) -> None:
    theirs = load(exported()[1])
    tokens = some_tokens(theirs.model)
    for name in ("position_ids", "inputs_embeds", "output_routings", "output_attentions"):
        with pytest.raises(ValueError, match=f"{name} cannot be given"):
            theirs(tokens, **{name: tokens if name.startswith("p") else True})
    with pytest.raises(ValueError, match=r"attention_mask must be \(B, S\)"):
        theirs(tokens, attention_mask=torch.ones(2, 1, LENGTH, LENGTH))
    past = theirs(tokens).past_key_values
    with pytest.raises(ValueError, match="K=1: the cache was begun with learned"):
        theirs(tokens[:, :1], past_key_values=past, intervention={"loops": 1})
    with pytest.raises(ValueError, match="kv_slots: transformers' cache keeps the keys"):
        theirs(tokens, intervention={"kv_slots": 1})
    with pytest.raises(ValueError, match="StaticCache of another model, or of a fixed size"):
        theirs.generate(tokens, max_new_tokens=3, cache_implementation="static")
    foreign = transformers.DynamicCache()
    foreign.update(torch.zeros(2, 1, 3, 8), torch.zeros(2, 1, 3, 8), 0)
    with pytest.raises(ValueError, match="DynamicCache of another model"):
        theirs(tokens, past_key_values=foreign)


def test_half_precision_keeps_the_stream(exported: Callable[..., Pair]) -> None:
    run, folder = exported()
    theirs = load(folder, dtype=torch.bfloat16)
    types: dict[torch.dtype, set[str]] = {torch.float32: set(), torch.bfloat16: set()}
    for name, parameter in theirs.named_parameters():
        types[parameter.dtype].add(".".join(name.removesuffix(".weight").split(".")[-2:]))
    assert {name.split(".")[-1] for name in types[torch.bfloat16]} == {
        "head", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    }  # fmt: skip
    assert {"gate.proj", "model.embed", "model.norm", "deep.gains", "deep.router"} <= types[
        torch.float32
    ]
    ours = model_of(run)
    tokens = some_tokens(ours)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = ours(tokens).float()
    outputs = theirs(tokens, output_hidden_states=True)
    assert outputs.logits.dtype == torch.float32
    states = outputs.hidden_states[1]
    assert states.dtype == theirs.lens(states).dtype == torch.float32
    torch.testing.assert_close(outputs.logits, wanted, atol=1e-3, rtol=0)


def test_the_callers_autocast_is_left_alone(exported: Callable[..., Pair]) -> None:
    run, folder = exported()
    ours, theirs = model_of(run), load(folder)
    tokens = some_tokens(ours)
    exact = theirs(tokens).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = theirs(tokens).logits
        torch.testing.assert_close(rounded, ours(tokens).float())
    assert not torch.equal(rounded, exact)


def test_gradients_are_the_checkpoints(pair: Pair) -> None:
    ours, theirs = model_of(pair[0]), load(pair[1]).train()
    tokens = some_tokens(ours)
    with torch.enable_grad():
        outputs = theirs(tokens, labels=tokens)
        outputs.loss.backward()
        ours(tokens[:, :-1], tokens[:, 1:]).mean().backward()
    assert outputs.past_key_values is None
    for (name, mine), (other, yours) in zip(
        ours.named_parameters(), theirs.named_parameters(), strict=True
    ):
        assert other == f"model.{name}"
        assert mine.grad is not None
        torch.testing.assert_close(yours.grad, mine.grad, rtol=1e-4, atol=1e-7, msg=name)


def test_tied_weights_stay_tied(exported: Callable[..., Pair]) -> None:
    theirs = load(exported(model=MODELS["K=4, tied"])[1])
    assert theirs.model.head.weight is theirs.model.embed.weight
    assert theirs.get_output_embeddings().weight.data_ptr() == (
        theirs.get_input_embeddings().weight.data_ptr()
    )


def test_it_is_built_without_weights_and_split_over_devices(trained: Fit, tmp_path: Path) -> None:
    run = trained(model={"init_std": 0.5})
    folder = export(run, tmp_path / "hf")
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
    build = transformers.AutoModelForCausalLM.from_config
    with torch.device("meta"):
        empty = build(config, trust_remote_code=True)
    assert {parameter.device.type for parameter in empty.parameters()} == {"meta"}
    torch.manual_seed(0)
    drawn = build(config, trust_remote_code=True)
    assert drawn.model.head.weight.std().item() == pytest.approx(0.5, rel=0.1)
    assert drawn.model.norm.weight.eq(1).all()
    assert drawn.model.blocks[0].deep.gains.eq(-1).all()
    pytest.importorskip("accelerate")
    places = {"model.embed": "cpu", "model.norm": "cpu", "model.head": "cpu", "model.loss": "cpu"}
    places |= {"model.blocks.0": "disk", "model.blocks.1": "cpu"}
    tokens = some_tokens(drawn.model)
    wanted = model_of(run)(tokens)
    for device_map in ("auto", places):
        split = load(folder, device_map=device_map, offload_folder=tmp_path / "offload")
        torch.testing.assert_close(split(tokens).logits, wanted, atol=1e-6, rtol=0)


def test_rows_without_a_token_are_never_drawn(exported: Callable[..., Pair]) -> None:
    theirs = load(exported()[1])
    real = theirs.config.dualpath["tokenizer_size"]
    assert real < theirs.config.vocab_size - 1
    head = theirs.model.head.weight
    head[real] = 100 * head[real].sign()
    head[real + 1] = -head[real]  # one of the two wins
    tokens = some_tokens(theirs.model) % real
    assert theirs(tokens).logits.argmax(-1).min() >= real
    mask = torch.ones_like(tokens)
    made = theirs.generate(tokens, attention_mask=mask, max_new_tokens=8, do_sample=False)
    assert made.max() < real


def test_the_tokenizer_gives_the_same_ids(exported: Callable[..., Pair]) -> None:
    run, folder = exported()
    theirs = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    from dualpath_cli.text.tokenizer import Tokenizer

    ours = Tokenizer.load(run / "tokenizer.json")
    for text in ("Tom has 5 apples.", " two  spaces \n\nÜnï 日本 \U0001f600", "a , b ."):
        assert theirs(text)["input_ids"] == ours.encode(text)
        assert theirs.decode(ours.encode(text)) == text
    assert theirs.eos_token_id == theirs.pad_token_id == ours.eot_id
    assert theirs.padding_side == "left"


def test_nothing_of_the_project_is_needed(
    exported: Callable[..., Pair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it cannot be imported the folder loads and gives the same logits."""
    run, folder = exported()
    ours = model_of(run)
    tokens = some_tokens(ours)
    wanted = ours(tokens)
    for name in [name for name in sys.modules if name.split(".")[0] == "dualpath_cli"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError):
        import dualpath_cli.config  # noqa: F401
    # Under another name its code is run anew.
    alone = load(shutil.copytree(folder, tmp_path / "without_the_project"))
    torch.testing.assert_close(alone(tokens).logits, wanted, atol=1e-6, rtol=0)


def test_the_way_back_gives_the_same_file(pair: Pair, tmp_path: Path) -> None:
    """Also after transformers has saved the folder anew."""
    run, folder = pair[0], export(pair[0], tmp_path / "exported")
    direct = tmp_path / "direct.safetensors"
    words = ["--ckpt_path", str(run), "--format", "consolidated", "--out", str(direct)]
    assert main(["export", *words]) == 0
    back = tmp_path / "hf.safetensors"
    assert main(["import", "--hf", str(folder), "--out", str(back)]) == 0
    assert back.read_bytes() == direct.read_bytes()
    again = tmp_path / "again"
    load(folder).save_pretrained(again)
    for name in ("recipe.yaml", "versions.json", "tokenizer.json"):
        (again / name).write_bytes((folder / name).read_bytes())
    assert main(["import", "--hf", str(again)]) == 0
    assert (tmp_path / "again.safetensors").read_bytes() == direct.read_bytes()


def test_mistakes_of_import_are_one_line(
    trained: Fit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = export(trained(), tmp_path / "hf")

    def refused(*words: object) -> str:
        capsys.readouterr()
        assert main(["import", *map(str, words)]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        return said

    assert "import needs --hf DIR" in refused()
    assert "holds no config.json" in refused("--hf", tmp_path)
    assert "--out must be a path" in refused("--hf", folder, "--out", "")
    assert "--hf must be a path" in refused("--hf", "")
    assert "is inside the folder" in refused("--hf", folder, "--out", folder / "x.safetensors")
    assert "must be a file whose name ends in .safetensors" in refused(
        "--hf", folder, "--out", tmp_path / "x.bin"
    )
    (folder / "recipe.yaml").rename(tmp_path / "kept.yaml")
    assert "holds no recipe.yaml; copy it" in refused("--hf", folder)
    (tmp_path / "kept.yaml").rename(folder / "recipe.yaml")
    config = json.loads((folder / "config.json").read_text())
    (folder / "SHA256SUMS").unlink()  # which would name the file alone
    (folder / "config.json").write_text(json.dumps({**config, "d_ffn": 32}))
    assert "model.d_ffn=24, this one has 32" in refused("--hf", folder)
    steps = [{"step": step} for step in (-1, "6", True, 1e999, 10**400)]
    for facts in (None, {}, *steps):
        (folder / "config.json").write_text(json.dumps({**config, "dualpath": facts}))
        assert "is not of a model of dualpath" in (said := refused("--hf", folder))
        assert "Error" not in said
        assert "NoneType" not in said
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"cut")
    assert f"the weights in '{folder}' cannot be read" in refused("--hf", folder)
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    assert "it is a pipe or a device, no file" in refused("--hf", folder)


def test_weights_saved_in_half_precision_come_back(
    exported: Callable[..., Pair], tmp_path: Path
) -> None:
    _, folder = exported()
    for dtype in (torch.bfloat16, torch.float16):
        again = tmp_path / str(dtype)
        load(folder, dtype=dtype).save_pretrained(again)
        for name in ("recipe.yaml", "versions.json", "tokenizer.json"):
            (again / name).write_bytes((folder / name).read_bytes())
        out = tmp_path / f"{dtype}.safetensors"
        assert main(["import", "--hf", str(again), "--out", str(out)]) == 0
        anew = export(out, tmp_path / f"{dtype} anew")
        assert json.loads((anew / "config.json").read_text())["dtype"] == "float32"
        tokens = some_tokens(model_of(out))
        wanted = load(again, dtype=torch.float32)(tokens).logits
        torch.testing.assert_close(load(anew)(tokens).logits, wanted, atol=1e-6, rtol=0)


def test_weights_in_several_files_come_back(trained: Fit, tmp_path: Path) -> None:
    folder = export(trained(), tmp_path / "hf")
    again = tmp_path / "again"
    load(folder).save_pretrained(again, max_shard_size="40KB")
    assert len(list(again.glob("*.safetensors"))) > 1
    for name in ("recipe.yaml", "versions.json", "tokenizer.json"):
        (again / name).write_bytes((folder / name).read_bytes())
    for path in (folder, again):
        (path / "other.safetensors").write_bytes(b"of somebody else")
        assert main(["import", "--hf", str(path)]) == 0
    files = [tmp_path / "hf.safetensors", tmp_path / "again.safetensors"]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_folder_is_whole_or_not_there(
    trained: Fit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, out = trained(), tmp_path / "exports" / "hf"
    words = ["export", "--ckpt_path", str(run), "--format", "hf", "--out", str(out)]

    def interrupted(file: Any, *ignored: object) -> None:
        file.write(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dualpath_cli.export.hf.folder.write_weights", interrupted)
        assert main(words) == 130
    assert list(out.parent.iterdir()) == []
    assert main(words) == 0
    capsys.readouterr()
    assert main(words) == 2
    assert "is there already; give another --out, or --overwrite" in capsys.readouterr().err
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr("dualpath_cli.export.hf.folder.write_weights", interrupted)
        assert main([*words, "--overwrite"]) == 130
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    (out / "recipe.yaml").unlink()
    export(run, out, "--overwrite")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert list(out.parent.iterdir()) == [out]
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").touch()
    capsys.readouterr()
    for folder in (mine, run, tmp_path):
        assert main([*words[:-1], str(folder), "--overwrite"]) == 2
        assert "is a folder of something else" in capsys.readouterr().err
    assert (mine / "thesis.txt").exists()


def test_the_card_says_what_the_run_says(trained: Fit, tmp_path: Path) -> None:
    run = trained()
    folder = export(run, tmp_path / "hf")
    _, front, text = (folder / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(front)["library_name"] == "transformers"
    assert "# tiny/default, step 6" in text
    ours = model_of(run)
    assert f"| parameters | {sum(p.numel() for p in ours.parameters()):,} |" in text
    facts = json.loads((run / "versions.json").read_text())
    assert facts["data_fingerprint"] in text
    with (run / "validation.csv").open() as file:
        (row,) = [row for row in csv.DictReader(file) if row["step"] == "6"]
    assert f"| held_out | {row['loss']} | {row['bits_per_byte']} |" in text


@pytest.mark.parametrize("page", ["README.md", "docs/hugging_face.md"])
def test_an_example_writes_what_generate_writes(
    page: str, trained: Fit, tmp_path: Path, output_of: OutputOf
) -> None:
    length = {"model": {"max_seq_len": 64}, "run": {"batch_tokens": 256, "max_tokens": 6 * 256}}
    run = trained(**length)
    folder = export(run, tmp_path / "hf")
    text = (folder if page == "README.md" else Path(__file__).parents[2]).joinpath(page).read_text()
    code = text.split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as said, torch.no_grad():
        exec(re.sub('"(path/to/this/folder|exported)"', repr(str(folder)), code), names)
    (prompt,), out = names["prompts"], tmp_path / "texts.jsonl"
    words = ("--ckpt_path", run, "--greedy", "--max_new_tokens", 20, "--out", out)
    output_of("generate", *words, "--prompt", prompt)
    wanted = json.loads(out.read_text())
    assert wanted["new_tokens"] == 20
    assert said.getvalue().startswith(f"{prompt}{wanted['text']}\n")


def test_the_card_shows_names_and_values_as_they_are(trained: Fit, tmp_path: Path) -> None:
    name, mark = "<b>_x_[a](b) www.a.b `c`", "|<script>|\n\ud800\\"
    run = trained(run={"name": name})
    with (run / "validation.csv").open() as file:
        table = file.read()
    (run / "validation.csv").write_text(table.replace("held_out", "<img src=x onerror=y>"))
    for path in (run / "checkpoints" / "manifests").iterdir():
        path.write_text(json.dumps(json.loads(path.read_text()) | {"run": {"precision": mark}}))
    card = (export(run, tmp_path / "hf") / "README.md").read_text()
    text = card.split("---\n", 2)[2].split("## Use")[0]
    assert not set("<>[]`\\") & set(text)
    assert {line.count("|") for line in text.splitlines() if "|" in line} == {3, 4}
    shown = html.unescape(text)
    assert f"# tiny/{name}, step 6\n" in shown
    assert "| <img src=x onerror=y> | " in shown
    assert "| precision | |<script>|  \\ |" in shown
    assert " www.a" not in text
    assert "_x_" not in text


def test_modules_become_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "dualpath_cli_flat"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "one.py").write_text('"""One."""\n\nimport math as m\n\nA = m.pi  # kept\n')
    (package / "two.py").write_text(
        '"""Two."""\n\nfrom dualpath_cli_flat.one import A\n\n\ndef b():\n    return A\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("dualpath_cli.export.hf.flatten.PROJECT", "dualpath_cli_flat")
    flat = flatten("dualpath_cli_flat.two")
    assert "dualpath_cli_flat.one: One." in flat
    assert "A = m.pi  # kept" in flat
    assert "from dualpath_cli_flat" not in flat
    names: dict[str, Any] = {}
    exec(flat, names)
    assert names["b"]() == pytest.approx(3.14159, abs=1e-5)
    (package / "one.py").write_text("def b():\n    pass\n\n\nA = 1\n")
    with pytest.raises(ValueError, match=r"b is in dualpath_cli_flat\.one and in"):
        flatten("dualpath_cli_flat.two")
    for wrong in (
        "from dualpath_cli_flat import one",
        "import dualpath_cli_flat.one",
        "from dualpath_cli_flat.one import A as B",
        "from . import one",
        "def f():\n    from dualpath_cli_flat.one import A",
    ):
        (package / "two.py").write_text(wrong + "\n")
        with pytest.raises(ValueError, match=r"two, line \d: only `from dualpath_cli_flat\.MODULE"):
            flatten("dualpath_cli_flat.two")
