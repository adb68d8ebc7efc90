"""What is too much in a pretrained model's files, and what they name, is refused or
measured."""

import html
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dualpath_cli.base.pointers import StandIn
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.export.hf import pretrained as source
from dualpath_cli.export.hf.pretrained_files import Files
from tests.base.test_pointers import LFS
from tests.export.conftest import (
    Exported,
    Pretrained,
    export,
    load,
    model_of,
    retrofit,
    write_gguf,
)

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("remote_code")

Tensors = dict[str, torch.Tensor]
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def edit(path: Path, **changes: Any) -> None:
    """Changes keys of a JSON object; a missing file is made."""
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | changes))


def config(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: edit(folder / "config.json", **changes)


def weights(change: Callable[[Tensors], Tensors]) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        save_file(tensors | change(tensors), folder / WEIGHTS, {"format": "pt"})

    return rewrite


def as_type(dtype: torch.dtype) -> Callable[[Path], None]:
    name = "model.layers.1.mlp.up_proj.weight"
    return weights(lambda tensors: {name: tensors[name].to(dtype)})


def an_adapter(folder: Path) -> None:
    edit(folder / "adapter_config.json", base_model_name_or_path="someone/base")


NORM, HEAD = "model.layers.0.self_attn.q_norm.weight", "lm_head.weight"
SCALE = "model.layers.0.mlp.up_proj.weight_scale_inv"
ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": "10000"}
LINEAR: dict[str, Any] = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
CAUSES: list[tuple[str, dict[str, Any], Callable[[Path], None]]] = [
    (
        "holds weights of a layer 3 (",
        {"num_hidden_layers": 4},
        config(num_hidden_layers=2),
    ),
    ("k_proj.bias; no block", {"attention_bias": True}, config(attention_bias=False)),
    ("mlp.down_proj.bias; no block", {"mlp_bias": True}, config(mlp_bias=False)),
    (f"has weights {NORM}", {}, weights(lambda _: {NORM: torch.ones(8)})),
    (f"has weights {SCALE}", {}, weights(lambda _: {SCALE: torch.ones(1)})),
    ("is of F8_E4M3, a quantised weight", {}, as_type(torch.float8_e4m3fn)),
    ("is of I8, a quantised weight", {}, as_type(torch.int8)),
    (
        "(quantization_config: fp8)",
        {},
        config(quantization_config={"quant_method": "fp8"}),
    ),
    (
        "model.norm.weight is not finite",
        {},
        weights(
            lambda tensors: {"model.norm.weight": tensors["model.norm.weight"] / 0}
        ),
    ),
    (
        "model.norm.weight is not finite",
        {},
        weights(
            lambda tensors: {
                "model.norm.weight": tensors["model.norm.weight"] * torch.nan
            }
        ),
    ),
    ("differ from those of transformers", {}, config(is_causal=False)),
    ("has a head that is not its embedding", {}, config(tie_word_embeddings=True)),
    (
        "gate_proj.weight is (48, 32), and config.json asks for (64, 32)",
        {},
        config(intermediate_size=64),
    ),
    ("holds an adapter of 'someone/base'", {}, an_adapter),
    ("rope_theta in config.json is '10000'", {}, config(rope_parameters=ROPE)),
    ("is a dual-path model already", {}, config(model_type="dualpath")),
    ("(transformers_weights: a.bin)", {}, config(transformers_weights="a.bin")),
    ("has rotary scaling", {"rope_parameters": LINEAR}, config()),
    (
        "has sliding windows",
        {"model_type": "mistral", "sliding_window": 16},
        config(),
    ),
    ("has layers of model_type olmo2", {"model_type": "olmo2"}, config()),
    (
        "has another head size than width / heads (16)",
        {"model_type": "qwen3", "head_dim": 16},
        config(),
    ),
    ("has another activation than silu", {"hidden_act": "gelu"}, config()),
]


@pytest.mark.parametrize(
    ("why", "sizes", "change"), CAUSES, ids=[case[0] for case in CAUSES]
)
def test_another_computation_is_refused_by_its_cause(
    why, sizes, change, pretrained: Pretrained, tmp_path, said
):
    folder = pretrained(**{"model_type": "llama"} | sizes)
    change(folder)
    error = said(
        "retrofit", "--pretrained", folder, "--out", tmp_path / "out", "--loops", 1
    )
    assert why in error
    assert not (tmp_path / "out").exists()


def test_a_fault_that_no_line_names_is_measured(
    pretrained, tmp_path, said, monkeypatch
):
    """Two weights of equal shapes that change their places."""
    monkeypatch.setitem(source.LAYER, "ffn.gate_proj", "mlp.up_proj")
    monkeypatch.setitem(source.LAYER, "ffn.up_proj", "mlp.gate_proj")
    folder = pretrained("llama")
    for words in (("--block", "wide"), ("--block", "dual")):
        error = said(
            "retrofit", "--pretrained", folder, "--out", tmp_path / "out", *words
        )
        assert "differ from those of transformers" in error
    assert not (tmp_path / "out").exists()


def test_the_measured_difference_is_printed_and_in_the_card(
    pretrained, tmp_path, output_of
):
    folder, out = pretrained("llama"), tmp_path / "out"
    printed = output_of(
        "retrofit", "--pretrained", folder, "--out", out, "--block", "wide"
    )
    measured = json.loads((out / "versions.json").read_text())["retrofit"]["difference"]
    assert 0 < measured < 1e-5
    assert (
        f"logits differ from those of transformers by {measured:.1e} of their norm"
        in printed
    )
    assert f"{measured:.1e} of their norm" in html.unescape(
        (out / "README.md").read_text()
    )


def test_of_a_card_only_the_licence_is_read(pretrained, tmp_path):
    """Scores that the hub would refuse, and a card without metadata, are no fault."""
    folder = pretrained("llama")
    card = folder / "README.md"
    card.write_text("---\nlicense: mit\nmodel-index: [{name: a}]\n---\n# Small\n")
    out = retrofit(folder, tmp_path / "out", "--block", "wide")
    assert "license: mit\n" in (out / "README.md").read_text()

    card.write_text("# Small\n")
    out = retrofit(folder, tmp_path / "bare", "--block", "wide")
    assert "license:" not in (out / "README.md").read_text()


@torch.no_grad()
def test_what_changes_nothing_is_taken(pretrained, tmp_path):
    """A window as long as the context, frequencies that rope_theta gives, a head of
    tied values, the names of a model that was saved without its head.
    """
    folder = pretrained("mistral", sliding_window=64, tie_word_embeddings=True)
    tokens = torch.arange(24)[None]
    wanted = load(folder)(tokens).logits
    frequencies = "model.layers.0.self_attn.rotary_emb.inv_freq"
    weights(
        lambda tensors: {
            frequencies: torch.ones(4),
            HEAD: tensors["model.embed_tokens.weight"].clone(),
        }
    )(folder)
    out = retrofit(folder, tmp_path / "full", "--block", "wide")
    torch.testing.assert_close(model_of(out)(tokens), wanted, atol=1e-4, rtol=1e-4)

    tensors = load_file(folder / WEIGHTS)
    bare = {
        name.removeprefix("model."): value
        for name, value in tensors.items()
        if name != HEAD
    }
    save_file(bare, folder / WEIGHTS, {"format": "pt"})
    out = retrofit(folder, tmp_path / "bare", "--block", "wide")
    torch.testing.assert_close(model_of(out)(tokens), wanted, atol=1e-4, rtol=1e-4)


def test_the_chat_template_and_the_tokens_around_texts_come_along(
    pretrained, tmp_path, output_of
):
    folder, out = pretrained("llama"), tmp_path / "out"
    tokens = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json")
    )
    bos, first, second = tokens.convert_ids_to_tokens([65, 70, 71])
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    edit(folder / "tokenizer.json", post_processor=putting_first(bos, 65))
    edit(folder / "tokenizer_config.json", bos_token=bos)
    edit(folder / "generation_config.json", eos_token_id=[70, 71])

    printed = output_of(
        "retrofit", "--pretrained", folder, "--out", out, "--block", "wide"
    )
    assert (
        "with a chat template; dualpath begins and ends texts by <|endoftext|>, not by"
        in printed
    )
    assert all(token in printed for token in (bos, first, second))
    for exported in (out, export(out, tmp_path / "again")):
        theirs = transformers.AutoTokenizer.from_pretrained(exported)
        said = theirs.apply_chat_template(
            [{"role": "user", "content": "a b"}], tokenize=False
        )
        assert (said, theirs.bos_token_id) == ("a b", 65)
        # Whoever wants it puts it there.
        assert theirs("a b").input_ids == Tokenizer.load(exported).encode("a b")
        ends = transformers.GenerationConfig.from_pretrained(exported).eos_token_id
        assert {70, 71} < {*ends}


def putting_first(token: str, id: int) -> dict[str, Any]:
    """What puts a token before each text, as in the tokenizer of Llama 3."""
    text = {"Sequence": {"id": "A", "type_id": 0}}
    first = {"SpecialToken": {"id": token, "type_id": 0}}
    template = {
        "type": "TemplateProcessing",
        "single": [first, text],
        "pair": [first, text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {token: {"id": token, "ids": [id], "tokens": [token]}},
    }
    return {"type": "Sequence", "processors": [template]}


OF_GGUF: list[tuple[str, Callable[[Any], object]]] = [
    ("llama.rope.scaling.type linear", lambda w: w.add_rope_scaling_type(linear())),
    ("llama.attention.sliding_window 16", lambda w: w.add_sliding_window(16)),
    ("llama.expert_count 4", lambda w: w.add_expert_count(4)),
    ("weights rope_freqs.weight", lambda w: w.add_tensor("rope_freqs.weight", ones(4))),
    (
        "weights blk.0.attn_q.bias",
        lambda w: w.add_tensor("blk.0.attn_q.bias", ones(32)),
    ),
    ("", lambda w: w.add_sliding_window(64)),
]


def linear() -> Any:
    return pytest.importorskip("gguf").RopeScalingType.LINEAR


def ones(size: int) -> Any:
    return torch.ones(size).numpy()


@pytest.mark.parametrize(
    ("feature", "change"), OF_GGUF, ids=[case[0] for case in OF_GGUF]
)
def test_what_transformers_passes_over_in_a_gguf_file_is_refused(
    feature, change, pretrained, tmp_path, said
):
    path = write_gguf(pretrained("llama"), tmp_path / "file" / "small.gguf", change)
    words = ("--pretrained", path, "--out", tmp_path / "out", "--block", "wide")
    if feature:
        assert f"has {feature}" in said("retrofit", *words)
    else:  # a window as long as the context never acts
        retrofit(path, tmp_path / "out", "--block", "wide")


# What a file names is not loaded


def test_no_setting_names_code_to_fetch(pretrained, tmp_path):
    """transformers would ask the hub for such an attention."""
    folder = pretrained("llama")
    for number, key in enumerate(["_attn_implementation", "attn_implementation"]):
        edit(folder / "config.json", **{key: "someone/kernel"})
        retrofit(folder, tmp_path / str(number), "--block", "wide")


def elsewhere(folder: Path, kind: str) -> str:
    """Moves the weights; returns the name under which an index may name them."""
    if kind == "a.bin":
        torch.save(load_file(folder / WEIGHTS), folder / "a.bin")
        (folder / WEIGHTS).unlink()
        return "a.bin"

    away = (folder / WEIGHTS).rename(folder.parent / "away.safetensors")
    if kind == "link":
        (folder / "a.safetensors").symlink_to(away)
        return "a.safetensors"
    return f"../{away.name}" if kind == "above" else str(away)


def index(folder: Path, names: list[str], file: str) -> None:
    edit(
        folder / INDEX,
        metadata={"total_size": 1},
        weight_map=dict.fromkeys(names, file),
    )


def test_a_pointer_counts_where_the_file_is_read(pretrained):
    """A clone by `git lfs pull --include` has pointers for all other weights."""
    folder = pretrained("llama")
    for name in ("pytorch_model.bin", "a.safetensors", "small-Q8_0.gguf"):
        (folder / name).write_text(LFS)
    Files(folder, None, "small")

    index(folder, ["model.norm.weight"], "a.safetensors")
    (folder / WEIGHTS).unlink()
    with pytest.raises(StandIn, match=r"a\.safetensors is a pointer of Git LFS"):
        Files(folder, None, "small")


@pytest.mark.parametrize("kind", ["above", "absolute", "link", "a.bin"])
def test_an_index_names_safetensors_in_its_folder_alone(
    kind, pretrained, tmp_path, said
):
    folder = pretrained("llama")
    names = list(load_file(folder / WEIGHTS))
    file = elsewhere(folder, kind)
    index(folder, names, file)
    error = said(
        "retrofit", "--pretrained", folder, "--out", tmp_path / "out", "--block", "wide"
    )
    assert f"'{file}'" in error
    assert ("read from safetensors" if kind == "a.bin" else "are not followed") in error


def test_a_snapshot_of_the_hubs_cache_links_to_its_blobs(pretrained, tmp_path):
    cache = tmp_path / "models--someone--small"
    (cache / "blobs").mkdir(parents=True)
    (cache / "snapshots").mkdir()
    snapshot = pretrained("llama").rename(cache / "snapshots" / "0123abcd")
    for path in list(snapshot.iterdir()):
        path.rename(cache / "blobs" / path.name)
        path.symlink_to(Path("..", "..", "blobs", path.name))
    retrofit(snapshot, tmp_path / "out", "--block", "wide")


def test_weights_of_an_exported_folder_are_not_followed_out_of_it(
    exported: Exported, tmp_path, said
):
    run, _ = exported()
    folder = export(run, tmp_path / "hf")
    (folder / "SHA256SUMS").unlink()
    index(folder, ["model.norm.weight"], "../away.safetensors")
    assert "are not followed" in said("validate", "--ckpt_path", folder)
    (folder / INDEX).unlink()
    (folder / WEIGHTS).rename(tmp_path / "away.safetensors")
    (folder / WEIGHTS).symlink_to(tmp_path / "away.safetensors")
    assert "are not followed" in said("validate", "--ckpt_path", folder)
