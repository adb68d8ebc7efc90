"""What tests of exports share: exported folders, and the one line that a mistake
gives."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dualpath_cli.cli.main import main
from dualpath_cli.model import DualPathLM
from dualpath_cli.run.trained import find_trained
from dualpath_cli.run.weights import empty_model, load_weights
from tests.conftest import Share
from tests.data.small_tokenizer import definition_with
from tests.training.tiny_run import MERGES, Fit, digest_of

Pair = tuple[Path, Path]  # a run, and the folder that it was exported to
Exported = Callable[..., Pair]


def words(run: Path, out: Path, *more: object) -> list[str]:
    return ["export", "--ckpt_path", str(run), "--out", str(out), *map(str, more)]


def export(run: Path, out: Path, *more: object) -> Path:
    assert main(words(run, out, *more)) == 0
    return out


def model_of(run: Path) -> DualPathLM:
    """The checkpoint's model, as every command loads it."""
    found = find_trained(str(run))
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
    """Trains and exports each recipe once for all tests, which read the folder
    alone."""

    def pair(**changes: Any) -> Pair:
        run = trained(**changes)
        name = f"hf-{digest_of(changes)}"
        return run, share(name, lambda folder: export(run, folder / "hf")) / "hf"

    return pair


# Pretrained models of transformers

SIZES: dict[str, Any] = {
    "vocab_size": 272,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
Pretrained = Callable[..., Path]


@pytest.fixture
def pretrained(tmp_path: Path) -> Pretrained:
    """A folder of transformers with a small random model, its tokenizer and a card."""

    transformers = pytest.importorskip("transformers")

    def write(model_type: str, **changes: Any) -> Path:
        folder = tmp_path / f"Small {model_type}"
        config = transformers.AutoConfig.for_model(model_type, **SIZES | changes)
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():  # far from any initial value
                parameter.copy_(
                    torch.randn_like(parameter) * 0.2 + (parameter.ndim == 1)
                )
        model.save_pretrained(folder)
        (folder / "tokenizer.json").write_text(json.dumps(definition_with(MERGES)))
        (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Small\n")
        return folder

    return write


def retrofit(folder: Path, out: Path, *words: object) -> Path:
    given = ["retrofit", "--pretrained", folder, "--out", out, *words]
    assert main([str(word) for word in given]) == 0
    return out


def write_gguf(
    folder: Path, path: Path, change: Callable[[Any], object] = lambda _: None
) -> Path:
    """A folder's Llama as a GGUF file; `change` gets its writer before the end."""
    gguf = pytest.importorskip("gguf")
    model, sizes = load(folder), SIZES
    path.parent.mkdir(exist_ok=True)
    shutil.copy(folder / "tokenizer.json", path.with_name("tokenizer.json"))
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(sizes["vocab_size"])
    writer.add_context_length(sizes["max_position_embeddings"])
    writer.add_embedding_length(sizes["hidden_size"])
    writer.add_block_count(sizes["num_hidden_layers"])
    writer.add_feed_forward_length(sizes["intermediate_size"])
    writer.add_head_count(sizes["num_attention_heads"])
    writer.add_head_count_kv(sizes["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_rope_freq_base(model.config.rope_parameters["rope_theta"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, sizes["num_hidden_layers"])
    for name, weight in model.state_dict().items():
        # llama.cpp rotates neighbours, not halves
        if "q_proj" in name or "k_proj" in name:
            heads = sizes[
                "num_attention_heads" if "q_proj" in name else "num_key_value_heads"
            ]
            weight = weight.view(heads, 2, -1, sizes["hidden_size"]).transpose(1, 2)
            weight = weight.reshape(-1, sizes["hidden_size"])
        writer.add_tensor(names.get_name(name, (".weight",)), weight.numpy())
    change(writer)
    for write in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    ):
        write()
    return path
