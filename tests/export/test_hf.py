"""The folder for transformers: its model is the checkpoint's, value by value, and comes
back."""

import contextlib
import io
import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dualpath_cli.base.errors import UserError
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.model import DualPathLM
from dualpath_cli.model.routing import RoutingTrace
from dualpath_cli.spec.intervention import Intervention
from tests.export.conftest import Exported, Pair, export, load, model_of
from tests.training.tiny_run import LONG

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("remote_code")

LENGTH = 12
END = 259  # end of text in the tests' tokenizer
SWITCH = next(  # of activation checkpointing; the latter before 5.24
    name
    for name in ("activation_checkpointing_enable", "gradient_checkpointing_enable")
    if hasattr(transformers.PreTrainedModel, name)
)
rare = pytest.mark.slow
OTHER: dict[str, Any] = {
    "block": ["dual", "loop", "wide"],
    "n_layers": 3,
    "loops": 4,
    "gate": "fixed",
    "combination": "mean",
    "qk_norm": "none",
    "tie_embeddings": True,
    "document_start": END,
}
"""All that a model may have otherwise."""
CORE: dict[str, Any] = {
    "block": ["wide", "dual", "loop", "wide"],
    "n_layers": 4,
    "loops": [1, 2, 3, 1],
    "core": [1, 2],
    "core_loops": 2,
    "injection": "linear",
    "core_combination": "router",
    "untied_steps": [False, True, False, False],
    "step_kv": ["own", "own", "first", "own"],
    "deep_ffn": [True, True, False, True],
}
"""A stretch of layers in a loop, and steps that share less, or more, than weights."""
FIRST_BLOCK_ON_DISK = {
    "model.embed": "cpu",
    "model.blocks.0": "disk",
    "model.blocks.1": "cpu",
    "model.norm": "cpu",
    "model.head": "cpu",
    "model.loss": "cpu",
}
"""A `device_map` of a model of two layers."""
MODELS = [
    {},
    OTHER,
    CORE,
    {"n_experts": 4, "top_k": 2},
    pytest.param({"block": "wide", "qk_norm": "none"}, marks=rare),
    pytest.param({"gate": "fixed", "combination": "mean"}, marks=rare),
    pytest.param({"loops": 1}, marks=rare),
    pytest.param(
        {"loops": [4, 2], "tie_embeddings": True, "step_conditioning": "film"},
        marks=rare,
    ),
    pytest.param({"block": ["loop", "wide"], "document_start": END}, marks=rare),
]


@pytest.fixture(params=MODELS, ids=str)
def pair(request: pytest.FixtureRequest, exported: Exported) -> Pair:
    """A run whose gains are open from the start, so that all paths show in six
    steps."""
    return exported(model=request.param)


def saved_again(folder: Path, again: Path, size: str = "5GB", **options: Any) -> Path:
    """The folder as transformers writes it once it was loaded, with what import needs
    beside."""
    load(folder, **options).save_pretrained(again, max_shard_size=size)
    for name in ("recipe.yaml", "versions.json", "tokenizer.json"):
        shutil.copy(folder / name, again)
    return again


def some_tokens(
    model: DualPathLM, batch: int = 2, length: int = LENGTH
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(
        model.config.vocab_size, (batch, length), generator=generator
    )
    tokens[:, 3] = END  # a second document
    return tokens


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def test_logits_are_the_checkpoints(pair):
    ours, theirs = model_of(pair[0]), load(pair[1])
    assert type(theirs).__module__.startswith("transformers_modules.")
    learned = {name for name, p in theirs.model.named_parameters() if p.requires_grad}
    assert learned == {name for name, p in ours.named_parameters() if p.requires_grad}
    tokens = some_tokens(ours)
    wanted = ours(tokens)
    torch.testing.assert_close(theirs(tokens).logits, wanted, atol=1e-6, rtol=0)
    for other in (
        {"loops": 1},
        {"loops": 3},
        {"gates": (1.0, 0.0)},
        {"core_loops": 1},
        {"core_loops": 3},
    ):
        intervention = Intervention(**other)
        if intervention.problem(ours.config) is None:
            changed = ours(tokens, intervention=intervention)
            assert other == {"loops": 1} or (changed - wanted).abs().max() > 1e-4
            torch.testing.assert_close(
                theirs(tokens, intervention=other).logits, changed, atol=1e-6, rtol=0
            )


def test_padding_and_cache_change_no_text_and_the_greedy_one_is_the_models_own(pair):
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
        without = theirs.generate(
            tokens, attention_mask=mask, use_cache=False, **settings, **more
        )
        assert torch.equal(batch, without)
        for row, length in enumerate(lengths):
            prompt = tokens[row : row + 1, LENGTH - length :]
            alone = theirs.generate(prompt, **settings, **more)
            assert torch.equal(batch[row, LENGTH - length :], alone[0])
            if not more:
                assert torch.equal(alone, greedy(ours, prompt, theirs.config))
                cropped = theirs.generate(
                    prompt, prompt_lookup_num_tokens=2, **settings
                )
                assert torch.equal(cropped, alone)
    past = theirs(tokens, attention_mask=mask).past_key_values
    # Without a mask, none is padding; `cache` is its name since transformers 5.24.
    further = theirs(tokens[:, :2], cache=past).logits
    for row, length in enumerate(lengths):
        whole = torch.cat((tokens[row, LENGTH - length :], tokens[row, :2]))[None]
        torch.testing.assert_close(
            further[row], theirs(whole).logits[0, -2:], atol=1e-6, rtol=0
        )


def greedy(model: DualPathLM, tokens: torch.Tensor, config: Any) -> torch.Tensor:
    """Six tokens more than are given, none of them end-of-text."""
    for _ in range(6):
        logits = model(tokens)[:, -1, : config.dualpath["tokenizer_size"]]
        logits[:, END] = -torch.inf
        tokens = torch.cat((tokens, logits.argmax(-1, keepdim=True)), dim=1)
    return tokens


def test_an_intervention_on_some_tokens_of_a_prompt_leaves_new_tokens_as_they_are(
    exported,
):
    theirs = load(exported(model={})[1])
    prompt = some_tokens(theirs.model)
    mask = torch.zeros_like(prompt, dtype=torch.bool)
    mask[:, 4:9] = True
    change = {"intervention": {"gates": (1.0, 0.0)}}
    settings = {
        "attention_mask": torch.ones_like(prompt),
        "max_new_tokens": 3,
        "min_new_tokens": 3,
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_logits": True,
    }
    for cached in (True, False):
        found = theirs.generate(
            prompt, token_mask=mask, use_cache=cached, **change, **settings
        )
        for new, logits in enumerate(found.logits):
            read = found.sequences[:, : LENGTH + new]
            wanted = theirs(
                read, token_mask=torch.nn.functional.pad(mask, (0, new)), **change
            )
            torch.testing.assert_close(logits, wanted.logits[:, -1], atol=1e-6, rtol=0)


def test_a_token_mask_beside_a_change_of_all_tokens_is_refused(exported):
    theirs = load(exported(model={})[1])
    tokens = some_tokens(theirs.model)
    mask = torch.zeros_like(tokens, dtype=torch.bool)
    mask[:, 4:9] = True
    for change in (
        {"loops": 1},
        {"held": 1},
        {"halting": 0.5},
        {"skip": 0.2},
        {"experts": "random", "seed": 7},
        {"loops": 1, "gates": [1.0, 0.0]},
        {"core_loops": 2},
    ):
        with pytest.raises(ValueError, match="changes all tokens; token_mask goes"):
            theirs(tokens, intervention=change, token_mask=mask)
    for change in (
        {},
        {"gates": [1.0, 0.0], "layers": [0], "tokens": "some"},
        {"gates": "shuffled", "seed": 7},
    ):
        theirs(tokens, intervention=change, token_mask=mask)


def test_states_losses_and_hooks(exported):
    run, folder = exported()
    ours, theirs = model_of(run), load(folder)
    tokens = some_tokens(ours)
    seen: list[torch.Tensor] = []
    theirs.model.blocks[1].deep.sublayer.register_forward_hook(
        lambda *all: seen.append(all[-1])
    )
    outputs = theirs(
        tokens,
        labels=tokens,
        output_hidden_states=True,
        output_routing=True,
        use_cache=False,
    )
    assert outputs.past_key_values is None
    assert len(outputs.hidden_states) == ours.config.n_layers + 1
    torch.testing.assert_close(outputs.hidden_states[0], ours.embed(tokens))
    torch.testing.assert_close(
        theirs.model.head(outputs.hidden_states[-1]), outputs.logits
    )
    states = outputs.routing.layers[1].deep_states
    assert len(states) == len(seen) == ours.config.loops
    assert all(
        torch.equal(state, hooked) for state, hooked in zip(states, seen, strict=True)
    )
    wanted = ours(tokens[:, :-1], tokens[:, 1:]).mean()
    torch.testing.assert_close(outputs.loss, wanted)
    last = theirs(tokens, logits_to_keep=1).logits
    torch.testing.assert_close(last, outputs.logits[:, -1:])
    embeds = theirs.get_input_embeddings()(tokens)
    assert torch.equal(theirs(inputs_embeds=embeds).logits, outputs.logits)
    mask = torch.ones_like(tokens).index_fill_(1, torch.tensor([0, 1]), 0)
    backbone = getattr(theirs, theirs.base_model_prefix)  # as TRL calls it
    read = backbone(
        input_ids=tokens, attention_mask=mask, use_cache=False
    ).last_hidden_state
    logits = theirs(tokens, attention_mask=mask).logits
    assert torch.equal(theirs.get_output_embeddings()(read), logits)
    assert theirs(tokens, return_dict=False)[0].shape == outputs.logits.shape


def test_each_application_of_a_layer_has_a_place_in_states_routing_and_cache(exported):
    run, folder = exported(model=CORE)
    ours, theirs = model_of(run), load(folder)
    tokens, trace = some_tokens(ours), RoutingTrace(keeps_states=True)
    ours(tokens, trace=trace)
    outputs = theirs(tokens, output_hidden_states=True, output_routing=True)
    layers = outputs.routing.layers
    places = [(0, 0), (1, 0), (2, 0), (1, 1), (2, 1), (3, 0)]
    assert [(layer.layer, layer.repetition) for layer in layers] == places
    assert len(outputs.hidden_states) == len(places) + 1
    for found, layer in zip(outputs.hidden_states, trace.layers, strict=False):
        torch.testing.assert_close(found, layer.x)
    for name in ("step_weights", "step_sizes"):
        wanted = getattr(trace.core, name)
        torch.testing.assert_close(getattr(outputs.routing.core, name), wanted)
    # documents; wide; twice a dual layer of two steps and a loop that keeps one; wide
    assert len(outputs.past_key_values.layers) == 1 + 1 + 2 * ((1 + 2) + 1) + 1
    assert "Layers 1 to 2, counted from 0" in (folder / "README.md").read_text()


@pytest.mark.parametrize("model", [OTHER, CORE], ids=str)
def test_a_pass_updates_every_layer_of_the_cache(model, exported):
    """transformers fetches an offloaded one when it updates the one before."""
    theirs = load(exported(model=model)[1])
    past = theirs(some_tokens(theirs.model)).past_key_values
    lengths = [layer.get_seq_length() for layer in past.layers]
    assert lengths == [LENGTH] * len(lengths)


def test_steps_of_attention_alone_need_no_width(exported):
    model = {"block": "loop", "deep_ffn": False, "d_ffn": None, "d_ffn_wide": None}
    run, folder = exported(model=model)
    ours, theirs = model_of(run), load(folder)
    assert asdict(theirs.config.model) == asdict(ours.config)
    tokens = some_tokens(ours)
    torch.testing.assert_close(theirs(tokens).logits, ours(tokens), atol=1e-6, rtol=0)


def test_what_it_cannot_do_is_said(exported):
    theirs = load(exported()[1])
    tokens = some_tokens(theirs.model)
    for name, why in (
        ("position_ids", "positions follow from attention_mask"),
        ("output_attentions", "attention weights are never whole"),
        ("output_routings", "no such argument"),
    ):
        with pytest.raises(ValueError, match=f"{name} cannot be given: {why}"):
            theirs(tokens, **{name: True})
    with pytest.raises(ValueError, match=r"attention_mask must be \(B, S\)"):
        theirs(tokens, attention_mask=torch.ones(2, 1, LENGTH, LENGTH))
    past = theirs(tokens).past_key_values
    with pytest.raises(ValueError, match="K=1: the cache was begun with learned"):
        theirs(tokens[:, :1], past_key_values=past, intervention={"loops": 1})
    with pytest.raises(
        ValueError, match="kv_slots: transformers' cache keeps the keys"
    ):
        theirs(tokens, intervention={"kv_slots": 1})
    with pytest.raises(
        ValueError, match="StaticCache of another model, or not one that grows"
    ):
        theirs.generate(tokens, max_new_tokens=3, cache_implementation="static")
    foreign = transformers.DynamicCache()
    foreign.update(torch.zeros(2, 1, 3, 8), torch.zeros(2, 1, 3, 8), 0)
    with pytest.raises(ValueError, match="DynamicCache of another model"):
        theirs(tokens, past_key_values=foreign)
    theirs.model.config = replace(theirs.model.config, document_start=END)
    with pytest.raises(
        ValueError, match="inputs_embeds need input_ids beside them: documents begin"
    ):
        theirs(inputs_embeds=theirs.get_input_embeddings()(tokens))


@pytest.mark.parametrize("changes", [{}, {"model": CORE}], ids=str)
def test_half_precision_keeps_the_stream(changes, exported):
    run, folder = exported(**changes)
    theirs = load(folder, dtype=torch.bfloat16)
    types: dict[torch.dtype, set[str]] = {torch.float32: set(), torch.bfloat16: set()}
    for name, parameter in theirs.named_parameters():
        types[parameter.dtype].add(
            ".".join(name.removesuffix(".weight").split(".")[-2:])
        )
    assert {name.split(".")[-1] for name in types[torch.bfloat16]} == {
        "head",
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    } | ({"injection"} if changes else set())
    assert {
        "gate.proj",
        "model.embed",
        "model.norm",
        "deep.gains",
        "deep.router",
    } <= types[torch.float32]
    ours = model_of(run)
    tokens = some_tokens(ours)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = ours(tokens).float()
    outputs = theirs(tokens, output_hidden_states=True)
    assert outputs.logits.dtype == torch.float32
    states = outputs.hidden_states[1]
    assert states.dtype == theirs.lens(states).dtype == torch.float32
    torch.testing.assert_close(outputs.logits, wanted, atol=1e-3, rtol=0)


def copy_for_another_gpu(module: torch.nn.Module) -> Any:
    """A module as `nn.DataParallel` copies it: its weights are no parameters."""
    copied = module._replicate_for_data_parallel()
    for name, child in module._modules.items():
        copied._modules[name] = None if child is None else copy_for_another_gpu(child)
    for name, parameter in module._parameters.items():
        setattr(copied, name, None if parameter is None else parameter.detach())
    return copied


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_copy_of_data_parallel_gives_the_same_logits(dtype, exported):
    theirs = load(exported()[1], dtype=dtype)
    copied = copy_for_another_gpu(theirs)
    assert not list(copied.parameters())
    tokens = some_tokens(theirs.model)
    assert torch.equal(copied(tokens).logits, theirs(tokens).logits)


def test_gradients_are_the_checkpoints_also_of_activations_computed_again(pair):
    ours, theirs = model_of(pair[0]), load(pair[1]).train()
    tokens, calls = some_tokens(ours), []
    projection = next(
        one for name, one in theirs.named_modules() if name.endswith("q_proj")
    )
    projection.register_forward_hook(lambda *_: calls.append(1))
    with torch.enable_grad():
        ours(tokens[:, :-1], tokens[:, 1:]).mean().backward()
    for again in (False, True):
        if again:
            getattr(theirs, SWITCH)()
        theirs.zero_grad()
        calls.clear()
        with torch.enable_grad():
            outputs = theirs(tokens, labels=tokens)
            once = len(calls)
            outputs.loss.backward()
        assert len(calls) == once * (1 + again)
        assert outputs.past_key_values is None
        for (name, mine), (other, yours) in zip(
            ours.named_parameters(), theirs.named_parameters(), strict=True
        ):
            assert other == f"model.{name}"
            if name.endswith("balance_bias"):
                assert mine.grad is yours.grad is None
                continue
            assert mine.grad is not None
            torch.testing.assert_close(
                yours.grad, mine.grad, rtol=1e-4, atol=1e-7, msg=name
            )


def test_it_is_built_without_weights_and_split_over_devices(exported, tmp_path):
    run, folder = exported()
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
    config.init_std = 0.5
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
    tokens = some_tokens(drawn.model)
    wanted = model_of(run)(tokens)
    for device_map in ("auto", FIRST_BLOCK_ON_DISK):
        split = load(folder, device_map=device_map, offload_folder=tmp_path / "offload")
        torch.testing.assert_close(split(tokens).logits, wanted, atol=1e-6, rtol=0)


def test_experts_that_are_offloaded_are_refused_and_not_guessed(exported, tmp_path):
    """accelerate loads a matrix for its own `forward`, which experts do not call."""
    pytest.importorskip("accelerate")
    _, folder = exported(model={"n_experts": 4, "top_k": 2})
    split = load(
        folder, device_map=FIRST_BLOCK_ON_DISK, offload_folder=tmp_path / "offload"
    )
    tokens = some_tokens(split.model)
    with pytest.raises(
        RuntimeError, match="matrices are on meta, their tokens on cpu; keep layers"
    ):
        split(tokens)


@pytest.mark.parametrize("tied", [False, True])
def test_a_larger_vocabulary_keeps_its_rows_and_draws_the_others(tied, exported):
    theirs = load(exported(model={"tie_embeddings": tied})[1])
    before, tokens = theirs.config.vocab_size, some_tokens(theirs.model)
    logits = theirs(tokens).logits
    theirs.resize_token_embeddings(before + 8, mean_resizing=False)
    larger = theirs(tokens).logits
    assert larger.shape[-1] == before + 8
    assert torch.equal(larger[..., :before], logits)
    for weight in (theirs.model.embed.weight, theirs.model.head.weight):
        assert 0 < weight[before:].std() < 3 * theirs.config.init_std
    assert theirs.generate(tokens, max_new_tokens=2).shape == (2, LENGTH + 2)


def test_rows_without_a_token_are_never_drawn(exported):
    theirs = load(exported()[1])
    real = theirs.config.dualpath["tokenizer_size"]
    assert real < theirs.config.vocab_size - 1
    tokens = some_tokens(theirs.model) % real
    let_one_win(theirs, real)
    assert theirs(tokens).logits.argmax(-1).min() >= real
    assert drawn_by(theirs, tokens).max() < real


def let_one_win(model: Any, row: int) -> None:
    """Changes the head: the token of this row, or the next, has the largest logit."""
    head = model.get_output_embeddings().weight
    with torch.no_grad():  # which training, where a test is the first, has ended
        head[row] = 100 * head[row].sign()
        head[row + 1] = -head[row]


def drawn_by(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """The likeliest new tokens, at most eight."""
    mask = torch.ones_like(tokens)
    made = model.generate(
        tokens, attention_mask=mask, max_new_tokens=8, do_sample=False
    )
    return made[:, tokens.shape[1] :]


@pytest.mark.parametrize("multiple", [None, 8])
def test_tokens_that_a_user_adds_are_drawn_and_rows_that_pad_them_are_not(
    multiple, exported
):
    theirs = load(exported()[1])
    real = theirs.config.dualpath["tokenizer_size"]
    tokens = some_tokens(theirs.model) % real
    theirs.resize_token_embeddings(
        real + 2, pad_to_multiple_of=multiple, mean_resizing=False
    )
    let_one_win(theirs, real)
    assert drawn_by(theirs, tokens).min() >= real

    size = theirs.config.vocab_size
    unused = theirs.generation_config.suppress_tokens or []
    assert unused == list(range(real + 2, size))
    assert (size > real + 2) == (multiple is not None)


@pytest.mark.parametrize("by", ["PreTrainedTokenizerFast", "AutoTokenizer"])
def test_the_tokenizer_gives_the_same_ids_and_runs_no_code(by, exported, monkeypatch):
    """transformers 5 asks because config.json names code, and goes on whatever the
    answer is."""
    run, folder = exported()
    monkeypatch.setattr("builtins.input", lambda words: "n")
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.get_cached_module_file", None
    )
    theirs = getattr(transformers, by).from_pretrained(folder)
    ours = Tokenizer.load(run / "tokenizer.json")
    for text in (
        "Tom has 5 apples.",
        " two  spaces \n\nÜnï 日本 \U0001f600",
        "a , b .",
    ):
        assert theirs(text)["input_ids"] == ours.encode(text)
        assert theirs.decode(ours.encode(text)) == text
    assert (
        theirs.bos_token_id == theirs.eos_token_id == theirs.pad_token_id == ours.eot_id
    )
    assert theirs.padding_side == "left"


def test_nothing_of_the_project_is_needed(exported, tmp_path, monkeypatch):
    """Where it cannot be imported the folder loads and gives the same logits."""
    run, folder = exported()
    ours = model_of(run)
    tokens = some_tokens(ours)
    wanted = ours(tokens)
    for name in [name for name in sys.modules if name.split(".")[0] == "dualpath_cli"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError):
        import dualpath_cli.spec.config  # noqa: F401
    # Under another name its code is run anew.
    alone = load(shutil.copytree(folder, tmp_path / "without_the_project"))
    torch.testing.assert_close(alone(tokens).logits, wanted, atol=1e-6, rtol=0)


def test_a_folder_that_transformers_saved_anew_is_the_same_run(pair, tmp_path):
    """In several files; the run's own files come from the first folder."""
    run, folder = pair
    again = saved_again(folder, tmp_path / "again", size="40KB")
    assert len(list(again.glob("*.safetensors"))) > 1
    tokens = some_tokens(model_of(run))
    assert torch.equal(model_of(again)(tokens), model_of(run)(tokens))
    shutil.copyfile(folder / "model.safetensors", again / "model.safetensors")
    with pytest.raises(UserError, match="is incomplete, or there twice"):
        model_of(again)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, pytest.param(torch.float16, marks=rare)]
)
def test_weights_saved_in_half_precision_come_back(dtype, exported, tmp_path):
    again = saved_again(exported()[1], tmp_path / "again", dtype=dtype)
    anew = export(again, tmp_path / f"{dtype} anew")
    assert json.loads((anew / "config.json").read_text())["dtype"] == "float32"
    tokens = some_tokens(model_of(again))
    wanted = load(again, dtype=torch.float32)(tokens).logits
    torch.testing.assert_close(load(anew)(tokens).logits, wanted, atol=1e-6, rtol=0)


def test_lm_evaluation_harness_scores_it_as_the_checkpoint(exported):
    """By its own class, as of any model of the hub."""
    harness = pytest.importorskip("lm_eval.models.huggingface")
    from lm_eval.api.instance import Instance

    run, folder = exported()
    theirs = harness.HFLM(
        str(folder), trust_remote_code=True, device="cpu", batch_size=2
    )
    pairs = [("Tom has", " two"), ("The sky", " eats"), ("Seven and", " the")]
    found = theirs.loglikelihood(
        [Instance("loglikelihood", {}, pair, 0) for pair in pairs]
    )
    ours, tokenizer = model_of(run).double(), Tokenizer.load(run / "tokenizer.json")
    for (context, continuation), (likelihood, _) in zip(pairs, found, strict=True):
        before, ids = (
            tokenizer.encode(context),
            tokenizer.encode(context + continuation),
        )
        logs = ours(torch.tensor([ids]))[0].log_softmax(-1)
        wanted = [
            logs[place - 1, ids[place]].item() for place in range(len(before), len(ids))
        ]
        assert likelihood == pytest.approx(sum(wanted), rel=1e-5)


@pytest.mark.parametrize("page", ["README.md", "docs/hugging_face.md"])
def test_an_example_writes_what_generate_writes(page, exported, tmp_path, output_of):
    run, folder = exported(**LONG)
    text = (
        (folder if page == "README.md" else Path(__file__).parents[2])
        .joinpath(page)
        .read_text()
    )
    code = text.split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(re.sub('"(path/to/this/folder|exported)"', repr(str(folder)), code), names)
    (prompt,), out = names["prompts"], tmp_path / "texts.jsonl"
    words = ("--ckpt_path", run, "--greedy", "--max_new_tokens", 20, "--out", out)
    output_of("generate", *words, "--prompt", prompt)
    wanted = json.loads(out.read_text())
    assert wanted["new_tokens"] == 20
    assert said.getvalue().startswith(f"{prompt}{wanted['text']}\n")
