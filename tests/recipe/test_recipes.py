"""Recipes: each one read as `fit` reads it and set beside the paper; `base:` and
merging."""

import contextlib
import copy
import dataclasses
import functools
import json
import math
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.ranges import parse_size
from dualpath_cli.cli import launch
from dualpath_cli.cli.arguments import read_arguments
from dualpath_cli.cli.commands import COMMANDS
from dualpath_cli.flops import count as flops
from dualpath_cli.flops.description import GPUS, READINGS, TRAINING_TOKENS
from dualpath_cli.model import DualPathLM
from dualpath_cli.recipe import recipes
from dualpath_cli.recipe.keys import idle_keys
from dualpath_cli.recipe.recipes import Recipe, merge
from dualpath_cli.recipe.schedule import rate_factor, std_factors
from dualpath_cli.recipe.settings import OptimSettings
from dualpath_cli.spec.config import GROUP_OF, ModelConfig
from dualpath_cli.training import launch as checks
from dualpath_cli.training.launch import TrainingLaunch
from dualpath_cli.training.muon import shape_factor
from tests.flops.paper import CONFIGURATIONS

each_row = pytest.mark.parametrize("row", CONFIGURATIONS, ids=lambda row: row.recipe)

INCOMPLETE = {
    "paper",
    "as_written",
    "trained_numerics",
    "sparse",
    "paper_texts",
    "cluster_1",
    "cluster_8",
    "cluster_64",
}
"""The base and the overlays: no model by themselves."""

Fit = Callable[..., TrainingLaunch]


@pytest.fixture(scope="module")
def fit(tmp_path_factory: pytest.TempPathFactory) -> Fit:
    """What `dualpath fit --config A --config B ...` starts with, as if data and GPUs
    were there."""
    nowhere = tmp_path_factory.mktemp("nowhere")

    @functools.cache
    def prepare(*names: str, words: tuple[str, ...] = ()) -> TrainingLaunch:
        words += tuple(word for name in names for word in ("--config", name))
        with contextlib.chdir(nowhere), pytest.MonkeyPatch.context() as patch:
            patch.setattr(checks, "check_training_data", lambda *_: (None, None))
            patch.setattr(checks, "check_epochs", lambda *_: None)
            patch.setattr(checks, "check_validation_sets", lambda *_: {})
            patch.setattr(checks, "verify_data", lambda *_, **__: None)
            return launch.training(read_arguments(COMMANDS["fit"], words))

    return prepare


def parameters_on_meta(config: ModelConfig) -> int:
    """Number of weights of the model as torch builds it, without memory for them."""
    with torch.device("meta"):
        model = DualPathLM(config)
    return sum(parameter.numel() for parameter in model.parameters())


def leaves(recipe: Recipe, above: str = "") -> dict[str, Any]:
    """Every value that is not a mapping, by its dotted key."""
    found: dict[str, Any] = {}
    for key, value in recipe.items():
        if isinstance(value, dict):
            found |= leaves(value, f"{above}{key}.")
        else:
            found[f"{above}{key}"] = value
    return found


def changed(before: TrainingLaunch, after: TrainingLaunch) -> dict[str, Any]:
    """The settings that differ, by dotted key, with their new values."""
    old, new = leaves(before.settings.as_recipe()), leaves(after.settings.as_recipe())
    return {key: new.get(key) for key in old | new if old.get(key) != new.get(key)}


# The recipes that are shipped


@pytest.mark.parametrize(
    "name", sorted(set(recipes.recipe_names()) - {row.recipe for row in CONFIGURATIONS})
)
def test_a_recipe_is_a_model_that_can_be_built(name, fit):
    names = ["f80m_a50_k4", name] if name in INCOMPLETE else [name]
    config = fit(*names).settings.model
    assert parameters_on_meta(config) == flops.parameters(config)


def test_the_base_and_the_overlays_alone_are_told_what_they_lack(fit):
    for name in INCOMPLETE:
        with pytest.raises(UserError, match="d_ffn"):
            fit(name)


# The paper's 26 configurations


REVISIONS: dict[str, dict[str, Any]] = {
    "f80m_a50_k1": {"model.loops": 1, "model.d_ffn": 11392},
    "f80m_a50_k4_final": {"model.combination": "final"},
    "f80m_a50_k4_mean": {"model.combination": "mean"},
}
"""Of the recipes of the authors' revision all that differs from f80m_a50_k4."""


@pytest.mark.parametrize("budget", ["80M", "160M"])
def test_the_models_with_a_core_are_those_that_flops_solves(budget, fit, output_of):
    words = f"flops --budget {budget} --block wide --core 4-11 --core-loops 4"
    solved = json.loads(output_of(*words.split(), "--format", "json"))["model"]
    settings = fit(f"f{budget.lower()}_core_r4").settings
    # a wide block has no K
    assert ModelConfig(**solved) == dataclasses.replace(settings.model, loops=1)
    assert settings.run.budget == parse_size(budget)


@pytest.mark.parametrize("name", REVISIONS)
def test_a_run_of_the_revision_differs_from_the_papers_in_what_its_name_says(name, fit):
    settings = fit(name).settings
    differs = changed(fit("f80m_a50_k4"), fit(name))
    assert differs == {"run.recipe": name} | REVISIONS[name]
    title = recipes.find_recipe(name).read_text().splitlines()[0]
    millions = round(flops.parameters(settings.model) / 1e6)
    assert f"K = {settings.model.loops}: {millions}M parameters" in title


@pytest.mark.parametrize("reading", READINGS)
@each_row
def test_a_recipe_is_the_model_as_it_is_read(row, reading, fit):
    settings = fit(
        row.recipe, *(["as_written"] if reading == "as_written" else [])
    ).settings
    # A wide block has no deep path, so that its K means nothing.
    loops = settings.model.loops if row.block == "wide" else row.loops
    assert settings.model == dataclasses.replace(row.model_config(reading), loops=loops)
    assert settings.run.budget == row.budget


@each_row
def test_a_recipe_trains_as_the_paper_does_and_its_first_line_says_what_it_is(row, fit):
    settings = fit(row.recipe).settings
    run = settings.run
    assert settings.optim == OptimSettings()
    assert run.max_tokens == TRAINING_TOKENS == 18_360 * run.batch_tokens
    assert run.batch_tokens == GPUS * 2 * 4 * 4096
    assert settings.data.path == "data/nemotron-cc"
    assert settings.trainer.precision == "bf16-mixed"
    title = recipes.find_recipe(row.recipe).read_text().splitlines()[0]
    kind = {"wide": "PureWide", "loop": "PureLoop", "dual": "dual path"}[row.block]
    for words in (row.budget_name, kind, f"{row.params_millions}M parameters"):
        assert words in title
    assert row.block == "wide" or f"K = {row.loops}" in title
    assert row.block != "dual" or f"alpha = {row.alpha} %" in title


def test_the_base_writes_out_the_model_fields_that_the_page_of_the_paper_lists():
    """Rows marked with a dagger are of the numerics, which `trained_numerics` sets."""
    page = (Path(__file__).parents[2] / "docs" / "paper.md").read_text(encoding="utf-8")
    rows = [row for row in page.splitlines() if row.startswith("|") and "†" not in row]
    fields = re.findall(r"`model\.(\w+)`: ([^\s|,;]+)", "\n".join(rows))
    written = recipes.load_recipe("paper")["model"]
    assert {"norm_eps", "init_std", "rope_base", "gain_init"} <= dict(fields).keys()
    for name, value in fields:
        shown = value.replace(",", "").replace("\u2212", "-")
        assert str(written[name]).lower() == shown or written[name] == float(shown)


def test_the_papers_optimizer_is_that_of_appendix_a():
    assert OptimSettings() == OptimSettings(
        lr=5e-4,
        lr_start=5e-6,
        lr_end=5e-5,
        warmup_steps=184,
        betas=(0.9, 0.95),
        eps=1e-8,
        weight_decay=0.3,
        decay=["matrices", "norms", "gains", "biases"],
        clip=1.0,
    )


# Overlays


OVERLAYS: dict[str, dict[str, Any]] = {
    "as_written": {
        "model.ffn_multiple_of": 64,
        "model.tie_embeddings": True,
        "model.qk_norm": "before_rope",
        "model.step_index": "one_based",
        "optim.decay": ["matrices", "gains", "biases"],
    },
    "sparse": {"model.n_experts": 8},
    "trained_numerics": {
        "model.residual_dtype": "bfloat16",
        "model.rope_dtype": "bfloat16",
    },
    "paper_texts": {
        "data.val.wikitext_103": "texts/wikitext_103.jsonl.gz",
        "data.val.triviaqa": "texts/triviaqa.parquet",
        "data.val.gsm8k": "texts/gsm8k.parquet",
        "data.val_tokens": 200_000,
    },
    "cluster_1": {
        "run.micro_batch": 4,
        "run.save_every": 100,
        "trainer.accelerator": "gpu",
        "trainer.devices": 1,
        "trainer.strategy": "single",
    },
}
"""Of each overlay all that it changes."""


def test_an_overlay_changes_what_it_names_and_nothing_else_in_any_order(fit):
    base, together = fit("f80m_a50_k4"), {}
    assert changed(base, fit("f80m_a50_k4", "paper")) == {}
    for overlay, changes in OVERLAYS.items():
        assert changed(base, fit("f80m_a50_k4", overlay)) == changes
        together |= changes
    for names in (OVERLAYS, reversed(OVERLAYS)):
        assert changed(base, fit("f80m_a50_k4", *names)) == together


def test_an_overlay_without_effect_before_its_model_is_noted(capsys):
    def noted(*names: str) -> str:
        words = [f"--config={name}" for name in names]
        assert read_arguments(COMMANDS["fit"], words).recipes
        return capsys.readouterr().err

    for overlay in ("as_written", "cluster_8"):
        start = f"note: --config {overlay} changes no key"
        assert noted(overlay, "f80m_a50_k4").startswith(start)
    for overlay in (*OVERLAYS, "cluster_8", "cluster_64"):
        assert noted("f80m_a50_k4", overlay) == ""


# Keys without effect


def test_no_packaged_recipe_sets_a_key_without_effect_on_its_model(fit):
    for name in recipes.recipe_names():
        names = ["f80m_a50_k4", name] if name in INCOMPLETE else [name]
        assert idle_keys(fit(*names).settings) == [], name


@pytest.mark.parametrize(
    ("names", "words", "idle"),
    [
        (["f80m_wide"], ["--model.gate=convex"], {"model.gate"}),
        (["f80m_loop_k4"], ["--model.gate=convex"], {"model.gate"}),
        (["f80m_a50_k4"], ["--model.gate=convex"], set()),
        (["f80m_a50_k4"], ["--model.top_k=1"], {"model.top_k"}),
        (["f80m_a50_k4", "sparse"], ["--model.top_k=1"], set()),
        (["f80m_a50_k1"], ["--model.combination=mean"], {"model.combination"}),
        (["f80m_wide", "as_written"], [], {"model.step_index"}),
        (["f80m_core_r4", "as_written"], [], set()),
        (
            ["f80m_wide"],
            ["--optim.lr_scale.router=0.5", "--optim.lr_scale.hidden=0.5"],
            {"optim.lr_scale.router"},
        ),
        (
            ["f80m_core_r4"],
            ["--model.core_combination=router", "--optim.lr_scale.router=0.5"],
            set(),
        ),
        # Steps with more loops than the model
        (
            ["f80m_core_r4"],
            [
                "--model.core_loops=1",
                "--model.injection=add",
                "--run.train_loops=[1, 4]",
            ],
            set(),
        ),
        (
            ["f80m_core_r4"],
            ["--model.core_loops=1", "--model.injection=add", "--run.train_loops=[1]"],
            {"model.injection", "run.train_loops"},
        ),
        (
            ["f80m_a50_k1"],
            ["--model.combination=mean", "--run.train_loops=[1, 2]"],
            set(),
        ),
    ],
)
def test_keys_are_idle_that_only_change_parts_which_the_model_lacks(
    names, words, idle, fit
):
    assert set(idle_keys(fit(*names, words=tuple(words)).settings)) == idle


# Finding a recipe


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, as the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def test_a_bare_name_is_never_a_file_also_as_a_base(folder):
    """Else whoever puts a file into the working directory decides what is imported."""
    for name in ("paper", "quickstart"):
        write(folder / name, "model: {gate: evil.Gate}")
        write(folder / f"{name}.yaml", "model: {gate: evil.Gate}")
    for name in ("f160m_a25_k4", "quickstart"):
        assert "evil" not in str(recipes.load_recipe(name))
    with pytest.raises(UserError, match=r"no recipe 'notes'.*given as ./notes"):
        recipes.load_recipe(Path(write(folder / "notes", "run: {}")).name)


@pytest.mark.parametrize("name", ["quickstart.yaml", "recipes/quickstart.yaml"])
def test_a_file_in_the_current_folder_comes_before_a_packaged_recipe(name, folder):
    write(folder / name, "run: {micro_batch: 3}")
    assert recipes.load_recipe(name) == {"run": {"micro_batch": 3}}


@pytest.mark.parametrize(
    ("kind", "name"), [("", "f160m_a25_k4"), ("", "quickstart"), ("data", "paper")]
)
def test_the_repositorys_path_means_the_packaged_recipe_where_there_is_no_repository(
    kind, name, folder
):
    found = recipes.find_recipe(str(Path("recipes", kind, f"{name}.yaml")), kind=kind)
    assert found.samefile(recipes.PACKAGED / kind / f"{name}.yaml")
    with pytest.raises(UserError, match=f"no recipe 'elsewhere/{name}.yaml'"):
        recipes.find_recipe(f"elsewhere/{name}.yaml", kind=kind)


# Bases


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (  # of several the later wins; two may share a third
            {
                "root": "run: {keep: 1, log_every: 1}",
                "left": "base: root.yaml\nrun: {keep: 2}",
                "right": "base: root.yaml\nrun: {save_every: 3}",
                "top": "base: [right.yaml, left.yaml]",
            },
            {"run": {"keep": 2, "log_every": 1, "save_every": 3}},
        ),
        (  # and they are looked for beside the recipe
            {
                "../shared/base": "run: {keep: 4}",
                "sibling": "base: ../shared/base.yaml\nrun: {log_every: 2}",
                "top": "base: sibling.yaml",
            },
            {"run": {"keep": 4, "log_every": 2}},
        ),
    ],
    ids=["shared", "beside"],
)
def test_a_recipe_stands_on_its_bases(files, expected, folder):
    for name, text in files.items():
        write(folder / "mine" / f"{name}.yaml", text)
    assert recipes.load_recipe(str(folder / "mine" / "top.yaml")) == expected


def test_a_base_may_be_in_the_home_folder(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder / "home"))
    write(folder / "home" / "base.yaml", "run: {keep: 4}")
    top = write(folder / "mine" / "top.yaml", "base: ~/base.yaml")
    assert recipes.load_recipe(top) == {"run": {"keep": 4}}


@pytest.mark.parametrize("circle", ["a", "ab", "abc"])
def test_a_circle_of_bases_is_refused(circle, folder):
    for name, base in zip(circle, circle[1:] + "a", strict=True):
        write(folder / f"{name}.yaml", f"base: {base}.yaml")
    with pytest.raises(UserError, match=r"recipe .*a\.yaml has itself as a base"):
        recipes.load_recipe("a.yaml")


# Merging

leaf = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text("abc", max_size=3)
    | st.lists(st.integers())
)


def sections(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Recipe]:
    """Mappings where, as in recipes, a key's name decides whether it holds a
    mapping."""
    return st.fixed_dictionaries(
        {}, optional={"x": leaf, "y": leaf, "m": inner, "n": inner}
    )


trees = sections(sections(st.dictionaries(st.sampled_from("xyz"), leaf)))
any_json = st.recursive(
    leaf, lambda inner: st.dictionaries(st.sampled_from("abc"), inner)
)
any_tree = st.dictionaries(st.sampled_from("abc"), any_json)


@given(trees, trees, trees)
def test_merging_is_associative(a, b, c):
    assert merge(a, merge(b, c)) == merge(merge(a, b), c)


@given(trees, trees)
def test_of_each_value_the_upper_recipe_has_the_say(a, b):
    assert leaves(merge(a, b)) == leaves(a) | leaves(b)


@given(any_tree, any_tree)
def test_where_a_mapping_meets_a_value_the_upper_one_replaces_it(a, b):
    """And both recipes stay as they were."""
    before = copy.deepcopy((a, b))
    merged = leaves(merge(a, b))
    assert {key: merged[key] for key in leaves(b)} == leaves(b)
    assert (a, b) == before


# YAML


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5e-4", 5e-4),
        ("1_000e3", 1e6),
        ("38_503_710_720", 38_503_710_720),
        ("f80e6", "f80e6"),
        ("010", 10),
        ("-08", -8),
        ("0x10", "0x10"),
        ("1:30", "1:30"),
        (".5", 0.5),
        ("+1.5e+3", 1500.0),
        (".", "."),
    ],
)
def test_numbers_are_read_as_people_write_them_also_on_the_command_line(text, value):
    word = read_arguments(
        COMMANDS["fit"], ["--config", "base", f"--trainer.profiler={{a: {text}}}"]
    )
    for found in (
        recipes.parse_recipe(f"key: {text}", "mine")["key"],
        word.over({}).recipe["trainer"]["profiler"]["a"],
    ):
        assert found == value
        assert type(found) is type(value)


@pytest.mark.parametrize(
    "text",
    ["010", "1_0", "0x10", "5e-4", ".5", "1:30", "yes", "null", "=", "2026-01-01"],
)
def test_a_name_that_looks_like_a_number_is_a_text_in_the_recipe_that_a_run_keeps(text):
    recipe = {"run": {"name": text}, text: {"1": 1.5e-7}}
    assert recipes.parse_recipe(recipes.dump(recipe), "kept") == recipe


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("model:\n  loops: 3\n bad: 4\n", 3),
        ("model:\n\tloops: 3\n", 2),
        ("run:\n  name: 'open\n\n", 4),
        ("run: !!python/name:os.system {}\n", 1),
    ],
)
def test_bad_yaml_is_one_line_with_file_and_line_number(text, line, folder):
    path = write(folder / "bad.yaml", text)
    with pytest.raises(
        UserError, match=rf"bad\.yaml line {line} cannot be read: \w+"
    ) as error:
        recipes.load_recipe(path)
    assert "\n" not in str(error.value)


# Rates and initial values by kind of parameter


WIDTHS = st.sampled_from([16, 32, 96, 128, 768, 1000])
FACTORS = st.dictionaries(st.sampled_from(list(GROUP_OF)), st.floats(0, 1000))
OUTPUTS = ("head", "router", "gate")


@given(kind=st.sampled_from(list(GROUP_OF)), scale=FACTORS, base=WIDTHS, width=WIDTHS)
def test_factors_are_those_of_table_3_times_the_scale_of_the_kind(
    kind, scale, base, width
):
    """Hidden: Adam's rate 1 / fan_in, variance 1 / fan_in; output: 1 / fan_in, 1 /
    fan_in^2."""
    settings = OptimSettings(lr_scale=scale, base_width=base)
    fan_in = width / base
    matrix = kind == "hidden" or kind in OUTPUTS
    variance = {"hidden": 1 / fan_in, **dict.fromkeys(OUTPUTS, 1 / fan_in**2)}.get(
        kind, 1
    )
    wanted = scale.get(kind, 1) * (1 / fan_in if matrix else 1)
    assert rate_factor(kind, settings, width) == pytest.approx(wanted)
    assert std_factors(settings, width)[kind] == pytest.approx(math.sqrt(variance))


@given(kind=st.sampled_from(list(GROUP_OF)), scale=FACTORS, width=WIDTHS)
def test_at_the_base_width_nothing_is_scaled_to_the_bit(kind, scale, width):
    for base in (None, width):
        settings = OptimSettings(lr_scale=scale, base_width=base)
        assert rate_factor(kind, settings, width) == scale.get(kind, 1)
        assert std_factors(settings, width)[kind] == 1


@given(
    width=WIDTHS, base=WIDTHS, adjust=st.sampled_from(["match_rms_adamw", "original"])
)
def test_muons_updates_have_one_spectral_norm_at_all_widths(width, base, adjust):
    """Of an orthogonal matrix it is 1, times the factor of the shape and that of the
    rate."""
    settings = OptimSettings(
        name="muon", muon_adjust=adjust, muon_lr=0.02, base_width=base
    )
    for rows, columns in ((1, 1), (4, 1), (1, 4)):
        norms = [
            rate_factor("hidden", settings, d)
            * shape_factor(torch.Size((rows * d, columns * d)), adjust)
            for d in (base, width)
        ]
        assert norms[1] == pytest.approx(norms[0])
        assert rate_factor("hidden", settings, base) == pytest.approx(
            0.02 / settings.lr
        )
    assert rate_factor("head", settings, width) == pytest.approx(base / width)
    assert std_factors(settings, width)["hidden"] == pytest.approx(
        (base / width) ** 0.5
    )


# recipes/cluster.sbatch: SLURM is two scripts here that write down how they were
# called; docs/cluster.md says what was run on the real one


SCRIPT = Path(__file__).parents[2] / "recipes" / "cluster.sbatch"

SLURM = {
    "SLURM_JOB_ID": "17",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NTASKS_PER_NODE": "4",
    "SLURM_CPUS_PER_TASK": "3",
}


def stub(path: Path, lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{lines}\n")
    path.chmod(0o755)


@pytest.mark.parametrize("code", [0, 2, 143])
@pytest.mark.parametrize("cut_off", ["", "warned", "preempted"])
def test_a_job_that_is_warned_of_its_end_or_preempted_is_requeued_and_no_other(
    code, cut_off, tmp_path
):
    # `srun` ends by itself, or once it was passed the warning that the script gets.
    warned = cut_off == "warned"
    warning = (
        f"trap 'echo passed on > {tmp_path}/warned; exit {code}' USR1; kill -USR1 $PPID"
    )
    lines = f'printf "%s\\n" "$@" > {tmp_path}/srun.txt\n'
    lines += f"{warning}\nwhile :; do sleep 0.01; done" if warned else f"exit {code}"
    stub(tmp_path / "bin/srun", lines)
    since = "2026-03-01T12:00:00" if cut_off == "preempted" else "None"
    shown = f"PreemptEligibleTime=2026-03-01T11:00:00 PreemptTime={since}"
    stub(
        tmp_path / "bin/scontrol",
        f'if [ "$*" = "show job 17" ]; then echo "   {shown}"\n'
        f'else echo "$@" >> {tmp_path}/scontrol.txt; fi',
    )
    stub(tmp_path / "venv/bin/activate", f"export PATH={tmp_path}/bin:$PATH")
    done = subprocess.run(
        ["bash", str(SCRIPT), "--config", "f80m_wide", "--run.name", "a b"],
        env={**os.environ, **SLURM, "DUALPATH_VENV": str(tmp_path / "venv")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    assert (tmp_path / "warned").exists() == warned
    started = (tmp_path / "srun.txt").read_text().splitlines()
    assert started == [
        "--kill-on-bad-exit=1",
        "--distribution=block",
        "--cpus-per-task=3",
        "dualpath",
        "fit",
        "--config",
        "f80m_wide",
        "--run.name",
        "a b",
        "--trainer.num_nodes",
        "2",
        "--trainer.devices",
        "4",
    ]
    told = tmp_path / "scontrol.txt"
    assert told.exists() == (cut_off != "" and code != 0)
    if told.exists():
        assert told.read_text() == "requeue 17\n"
