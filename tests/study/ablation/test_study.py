"""The ablation of a checkpoint: its rows, its numbers, its tables and files, its
continuation."""

import dataclasses
import hashlib
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.folders import OURS
from dualpath_cli.cli.main import main
from dualpath_cli.data.documents import Source, read_documents
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.data.windows import Windows, document_windows
from dualpath_cli.model import DualPathLM, RoutingTrace
from dualpath_cli.model.routing import LayerTrace
from dualpath_cli.recipe.settings import settings_from
from dualpath_cli.run.exported_folder import hash_of_weights
from dualpath_cli.run.tables import read_csv
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Intervention
from dualpath_cli.study.ablation import passes
from dualpath_cli.study.ablation.figures import draw_figures
from dualpath_cli.study.ablation.options import SUITES, Ablate, AblationRow
from dualpath_cli.study.ablation.passes import AblationPass
from dualpath_cli.study.ablation.scores import Result, compare, excesses
from dualpath_cli.study.ablation.tables import excess_table, layer_table, source_table
from dualpath_cli.study.controls import MatchQuality
from dualpath_cli.study.parts_of_speech import ForcedClass
from tests.study.conftest import CORE, Studied, Study, model_of, naive_loss
from tests.training.tiny_run import SEQ_LEN

TINY = ModelConfig(n_layers=3, loops=2, d_ffn=1600, d_ffn_wide=11392)
NAMES = [
    "learned",
    *(f"K={loops}" for loops in range(1, 11)),
    "gates=1,0",
    "gates=0,1",
    "gates=0.5,0.5",
    "gates=1,1",
    "shuffled",
]
EXPERTS = {"d_ffn_wide": 400, "n_experts": 3}


def rows_of(
    *suites: str, config: ModelConfig = TINY, **options
) -> tuple[list[str], list[str]]:
    """Names of the rows of suites, and of those that are left out."""
    rows, skipped = Ablate(ckpt_path="RUN", suite=suites, **options).rows(config)
    assert all(reason.startswith("the model ") for reason in skipped.values())
    return [row.intervention.name for row in rows], list(skipped)


def test_a_comma_may_end_the_suites_and_alone_names_none():
    chosen = Ablate(ckpt_path="RUN", suite=("layers,", "paper"))
    assert chosen.suites == Ablate(ckpt_path="RUN", suite=("paper,layers",)).suites
    with pytest.raises(UserError, match="unknown suite ''"):
        Ablate(ckpt_path="RUN", suite=(",",)).suites  # noqa: B018


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ({"block": "wide", "d_ffn_wide": 64}, "it has no loops"),
        ({"loops": 1, "d_ffn": 64, "d_ffn_wide": 64}, "its loops have one step"),
    ],
)
def test_a_suite_without_a_row_says_what_the_model_lacks(model, reason):
    settings = settings_from({"model": model})
    with pytest.raises(UserError, match=f"has no row for this model: {reason}"):
        Ablate(ckpt_path="RUN", suite=("depth", "kv-slots")).check(settings)


def names(*suites: str, **options) -> list[str]:
    return rows_of(*suites, **options)[0]


def test_every_row_but_the_trained_loops_comes_in_each_layer_that_it_overrides():
    listed = names("layers", loops="1,2")
    assert listed[1:4] == ["K=1 layers=0", "K=1 layers=1", "K=1 layers=2"]
    assert not any(name.startswith("K=2 ") for name in listed)
    assert len(listed) == 1 + 6 * 3
    config = dataclasses.replace(TINY, block=["wide", "loop", "dual"])
    listed = names("layers", loops="1", config=config)
    assert listed[1:4] == ["K=1 layers=1", "K=1 layers=2", "gates=1,0 layers=2"]


def test_no_two_rows_of_a_suite_have_one_name():
    config = dataclasses.replace(TINY, **EXPERTS)
    rows, _ = Ablate(ckpt_path="RUN", suite=("all",)).rows(config)
    listed = [(row.suite, row.intervention.name) for row in rows]
    assert len(listed) == len(set(listed)) > 16 + 4 * len(SUITES)


@pytest.mark.parametrize(
    ("suite", "model", "chosen", "rows"),
    [
        (
            "paper",
            {},
            {"loops": "1,20", "seeds": 2},
            ["K=1", "K=20", *NAMES[11:], "shuffled:1"],
        ),
        ("kv-slots", {"loops": 4}, {}, ["kv_slots=1", "kv_slots=2", "kv_slots=3"]),
        (
            "experts",
            EXPERTS,
            {"seeds": 2},
            ["experts=1", "experts=3", "experts=random", "experts=random:1"],
        ),
        (
            "token-classes",
            {},
            {"classes": ("verbs=VERB:deep",), "seeds": 2},
            [
                f"gates=1,0 tokens={name}verbs{n}"
                for name, n in (("", ""), ("random-as-", ""), ("random-as-", ":1"))
            ],
        ),
        (
            "token-classes",
            {},
            {"seeds": 1},
            [
                f"gates={gates} tokens={random}{name}"
                for name in ("arithmetic", "function")
                for gates in ("0,1", "1,0")
                for random in ("", "random-as-")
            ],
        ),
    ],
)
def test_the_rows_of_a_suite_follow_the_model_and_what_was_chosen(
    suite, model, chosen, rows
):
    config = dataclasses.replace(TINY, **model)
    assert names(suite, config=config, **chosen) == ["learned", *rows]


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, NAMES),
        ({"block": "loop"}, NAMES[:11]),
        ({"block": "wide"}, NAMES[:1]),
        ({"block": ["wide", "dual", "wide"]}, NAMES),
        ({"loops": 1}, [*NAMES[:2], *NAMES[11:]]),
        ({"loops": 1, "combination": "mean"}, NAMES),
    ],
)
def test_the_papers_sixteen_rows_but_those_that_make_no_sense_for_a_model(
    changes, kept
):
    assert len(NAMES) == 16
    listed, skipped = rows_of("paper", config=dataclasses.replace(TINY, **changes))
    assert listed == kept
    assert skipped == [name for name in NAMES if name not in kept]


def test_no_number_of_loops_is_that_of_layers_which_differ():
    config = ModelConfig(n_layers=2, loops=[2, 3], d_ffn=1600, d_ffn_wide=11392)
    assert config.same_loops is None
    found = {*names("paper", "layers", "kv-slots", config=config, loops="1-3")}
    assert {"K=2", "K=3", "K=3 layers=0", "K=2 layers=1", "kv_slots=2"} <= found
    assert not {"K=2 layers=0", "K=3 layers=1", "kv_slots=3"} & found


def test_a_core_is_forced_from_one_repetition_to_one_more_than_it_was_trained_with():
    wide = dataclasses.replace(TINY, block="wide", core=[1, 2], core_loops=2)
    listed, skipped = rows_of("paper", config=wide)
    assert listed == ["learned", "R=1", "R=2", "R=3"]
    assert skipped == NAMES[1:]
    # Only a core with a router has mass for a threshold.
    assert names("halting", config=wide) == ["learned"]
    routed = dataclasses.replace(wide, core_combination="router")
    assert "halting=0.5" in names("halting", config=routed)
    # The core repeats all its layers together.
    dual = dataclasses.replace(TINY, core=[1, 2], core_loops=4)
    assert not any("R=" in name for name in names("layers", config=dual))
    slots = [f"kv_slots={count}" for count in (1, 2, 3)]
    assert names("kv-slots", config=dual) == ["learned", *slots]


# Numbers

NAN = float("nan")
LONG_AND_SHORT = Windows([np.zeros(1 + tokens, np.int64) for tokens in (8, 2)] * 10)
"""Ten of each, the longer ones first."""


def scored(
    row: AblationRow, nats: tuple[float, float], match: MatchQuality | None = None
) -> AblationPass:
    """A pass with so many nats in each of the long and of the short windows."""
    masks = [np.arange(8) < count for count in np.repeat([2, 1], 10)]
    pass_ = AblationPass("text", LONG_AND_SHORT, row, masks, match)
    pass_.arrays = {
        "nats": np.repeat(nats, 10).astype(float),
        "loops": np.repeat([4.0, 6.0], 10),
        "passes": np.repeat([3.0, 5.0], 10),
        "loops_run": np.array(2.0),
    }
    return pass_


LEARNED = scored(AblationRow("baseline", Intervention()), (10, 1))


def test_losses_and_differences_are_means_per_token():
    learned, other = compare(
        [LEARNED, scored(AblationRow("paper", Intervention(loops=1)), (12, 4))]
    )
    assert (learned.loss, other.loss) == (11 / 10, 16 / 10)
    assert (learned.difference, learned.low, learned.high) == (0, 0, 0)
    assert other.difference == 5 / 10
    # Between that of the long windows, 2 / 8, and that of the short ones, 3 / 2.
    assert 2 / 8 < other.low < 5 / 10 < other.high < 3 / 2
    assert (other.expected_loops, other.passes, other.loops_run) == (1.0, 0.8, 2.0)


def test_the_excess_is_over_the_mean_of_random_tokens_and_per_forced_token():
    forced, other = (ForcedClass("some", ("NUM",), path) for path in ("wide", "deep"))
    change, match = (
        Intervention(gates=(0.0, 1.0), tokens="some"),
        MatchQuality(1.0, 0.0, 2.0, 2.0),
    )
    random = [
        scored(AblationRow("token-classes", change, forced, seed), nats, match)
        for seed, nats in enumerate([(11, 1), (13, 2)])
    ]
    random.append(
        scored(AblationRow("token-classes", change, other, 0), (99, 9), match)
    )
    (row,) = excesses(
        [LEARNED, scored(AblationRow("", change, forced), (14, 2)), *random]
    )
    assert (row["difference"], row["random_difference"], row["excess"]) == (
        0.5,
        0.25,
        0.25,
    )
    assert (row["tokens"], row["share"], row["match_moved"]) == (30, 0.3, match.moved)
    # A quarter of a nat a token both in long windows and in short ones, whichever are
    # drawn.
    assert (row["low"], row["high"]) == (2 / 8, 0.5 / 2)
    random = [scored(AblationRow("", change, forced, 0), (10, 1), match)]
    (row,) = excesses(
        [LEARNED, scored(AblationRow("", change, forced), (14, 1.5)), *random]
    )
    assert row["excess"] == pytest.approx((10 * 4 + 10 * 0.5) / 100)
    assert row["per_forced"] == pytest.approx((10 * 4 + 10 * 0.5) / 30)
    assert (
        0.5 < row["per_forced_low"] < row["per_forced"] < row["per_forced_high"] < 4 / 2
    )


def test_loops_that_batches_ran_are_exact_under_any_default_type():
    """Lightning sets it by the precision."""
    pass_ = AblationPass("text", LONG_AND_SHORT, LEARNED.row)
    pass_._module = SimpleNamespace(config=TINY)
    pass_._sums = {place: {"nats": 1.0} for place in range(20)}
    pass_._loops_run = [(steps, NAN) for steps in (2.0, 3.0, NAN, 3.0)]
    torch.set_default_dtype(torch.bfloat16)
    try:
        arrays = pass_.end()
    finally:
        torch.set_default_dtype(torch.float32)
    assert float(arrays["loops_run"]) == pytest.approx(8 / 3)


@given(st.integers(0, 1000), st.integers(1, 4))
def test_a_token_passes_the_layers_of_the_repetitions_that_it_took(seed, repetitions):
    """Against a loop over tokens: a wide layer, a dual one that repeats, a loop."""
    draw = np.random.default_rng(seed)
    shape = (2, 3)  # sequences, tokens
    taken = draw.integers(1, repetitions + 1, shape)
    applications = [(0, 0), *((1, r) for r in range(repetitions)), (2, 0)]
    trace = RoutingTrace(core=LayerTrace(steps_taken=torch.from_numpy(taken)))
    steps = draw.integers(0, 5, (len(applications), *shape))
    for (layer, repetition), steps_BT in zip(applications, steps, strict=True):
        own = LayerTrace(layer, repetition)
        if layer != 2:
            own.wide_taken = torch.ones(shape, dtype=torch.bool)
        if layer != 0:
            own.steps_taken = torch.from_numpy(steps_BT)
            weights_BTK = draw.dirichlet(np.ones(4), shape)
            own.step_weights = torch.from_numpy(weights_BTK)
        trace.layers.append(own)

    passes_BT = passes._passes_of_tokens(trace, 3)
    loops_BT = passes._loops_of_tokens(trace)
    for at in np.ndindex(shape):
        passed = 0
        loops = []
        for (layer, repetition), own, steps_BT in zip(
            applications, trace.layers, steps, strict=True
        ):
            if repetition >= taken[at]:
                continue
            passed += (layer != 2) + (layer != 0) * steps_BT[at]
            if layer != 0:
                expected = sum(k * own.step_weights[at][k - 1] for k in range(1, 5))
                loops.append(float(expected) if steps_BT[at] else 0.0)
        assert passes_BT[at] == pytest.approx(passed / 3)
        assert loops_BT[at] == pytest.approx(np.mean(loops))


# Tables and files


def result(
    source: str = "text", suite: str = "paper", difference: float = 0.5, **override
):
    """A row of an intervention given by keywords; without any, of the learned
    router."""
    intervention = Intervention(**override)
    suite = suite if override else "baseline"
    return Result(
        suite,
        intervention,
        source,
        2 + difference,
        difference,
        0.25,
        0.75,
        1.5,
        2.25,
        2.0,
    )


DEEP = (1.0, 0.0)
EXCESS = {
    "token_class": "arithmetic",
    "upos": "NUM,SYM",
    "path": "wide",
    "source": "gsm8k",
    "tokens": 30,
    "share": 0.3,
    "difference": 0.5,
    "random_difference": 0.125,
    "excess": 0.375,
    "low": 0.25,
    "high": 0.5,
    "per_forced": 1.25,
    "per_forced_low": 0.875,
    "per_forced_high": 1.5,
    "match_same_position": 0.75,
    "match_moved": 1.5,
    "match_run": 2.0,
    "match_random_run": 1.75,
}


def test_each_suite_has_its_columns():
    rows = [result(), result(suite="halting", halting=0.1)]
    shorter = source_table("title", rows, TINY)
    assert shorter.rows[1] == ["halting=0.1", 2.5, 0.5, (0.25, 0.75), 1.5, 2.0, 2.25]
    table = excess_table("title", [EXCESS])
    forced = [
        "arithmetic wide",
        30,
        30.0,
        0.5,
        0.125,
        0.375,
        (0.25, 0.5),
        1.25,
        (0.875, 1.5),
    ]
    assert table.rows == [forced]
    assert "75 % at the same position" in table.caption
    rows = [
        result(difference=0.1, loops=1, layers=(0,)),
        result(difference=0.2, loops=1, layers=(10,)),
        result(difference=0.3, gates=DEEP, layers=(10,)),
    ]
    table = layer_table("title", rows, last_has_no_scale=False)
    assert table.rows == [["K=1", 0.1, 0.2], ["gates=1,0", None, 0.3]]
    assert table.caption == ""


def test_losses_that_are_no_numbers_do_not_stop_the_figures(tmp_path, drawn):
    rows = [
        result(),
        result(loops=1),
        result(loops=2),
        result(suite="layers", loops=1, layers=(0,)),
        result(suite="layers", loops=1, layers=(1,)),
        result(suite="halting", halting=0.5),
    ]
    rows = [dataclasses.replace(row, difference=NAN, low=NAN, high=NAN) for row in rows]
    assert len(draw_figures(tmp_path, rows, TINY)) == 6
    # Figures of suites that are no longer asked for go.
    draw_figures(tmp_path, rows[:3], TINY)
    assert {path.stem for path in tmp_path.iterdir()} == {"forced_loops"}


def test_forced_repetitions_are_drawn_and_the_trained_number_is_named(tmp_path, drawn):
    rows = [result(), result(core_loops=1), result(core_loops=2)]
    repeated = dataclasses.replace(TINY, core=[1, 2], core_loops=2)
    draw_figures(tmp_path, rows, repeated)
    assert {path.stem for path in tmp_path.iterdir()} == {"forced_core_loops"}
    table = source_table("title", rows, repeated)
    assert [row[0] for row in table.rows] == ["learned", "R=1", "R=2 (as trained)"]
    halted = dataclasses.replace(
        result(suite="halting", halting=0.1),
        expected_core_loops=1.25,
        core_loops_run=3.0,
    )
    assert source_table("title", [halted], repeated).rows[0][-2:] == [1.25, 3.0]


KINDS = ("png", "pdf")
FILES = {"ablations.json", "ablations.csv", "ablations.md"}


def table_of(folder: Path) -> tuple[dict, list[dict]]:
    report = json.loads((folder / "ablations.json").read_text())
    return report, read_csv(folder / "ablations.csv")


def ablate(run: Path, *words: str) -> tuple[dict, list[dict]]:
    out = run / "ablations" / "step-00000006"
    assert main(["ablate", "--ckpt_path", str(run), *words]) == 0
    return table_of(out)


# The command


def naive_loss_of(run: Path, text: Path, change: Intervention) -> float:
    """Mean nats of the tokens of a text under a run's model."""
    model, tokenizer = model_of(run)
    windows, _ = document_windows(read_documents(Source("a", text)), tokenizer, SEQ_LEN)
    return naive_loss(model, windows, change)


@pytest.fixture(scope="session")
def whole(studied: Study) -> Studied:
    """Three suites of one source."""
    words = ["--suite", "paper", "layers", "halting", "--loops", "1,3,4"]
    return studied("ablate", *words, "--run.micro_batch", "8", drawn=True)


def test_every_row_is_the_loss_of_the_model_under_its_intervention(whole, texts):
    report, rows = table_of(whole.folder)
    wanted = {
        i.name: i
        for i in (
            Intervention(),
            Intervention(loops=1),
            Intervention(loops=4),
            Intervention(gates=(0.0, 1.0)),
            Intervention(gates="shuffled"),
            Intervention(halting=0.3),
        )
    }
    losses = {row["intervention"]: float(row["loss"]) for row in rows}
    for name, intervention in wanted.items():
        naive = naive_loss_of(whole.run, texts / "val.jsonl", intervention)
        assert losses[name] == pytest.approx(naive, rel=1e-5), name
    assert len({round(losses[name], 6) for name in wanted}) == len(wanted)
    (trained,) = [row for row in report["rows"] if row["intervention"] == "K=3"]
    assert [trained[key] for key in ("difference", "low", "high")] == [0, 0, 0]


def test_the_command_writes_every_row_of_every_suite(whole, texts):
    folder, (report, rows) = whole.folder, table_of(whole.folder)
    assert folder == whole.run / "ablations" / "step-00000006"
    figures = {
        f"{n}.{kind}" for n in ("forced_loops", "passes", "layers") for kind in KINDS
    }
    assert {path.name for path in folder.iterdir()} == FILES | figures | {
        "scores",
        OURS,
    }
    checkpoint = whole.run / "checkpoints" / "step-00000006"
    assert report["checkpoint"]["sha256"] == hash_of_weights(checkpoint)
    config = ModelConfig(**report["model"])
    wanted = names("paper", "layers", "halting", config=config, loops="1,3,4")
    assert list(report["interventions"]) == wanted
    digest = hashlib.sha256((texts / "val.jsonl").read_bytes()).hexdigest()
    assert report["sources"]["held_out"]["sha256"] == digest
    assert [row["intervention"] for row in rows] == wanted
    for written, row in zip(report["rows"], rows, strict=True):
        assert {k: str(v) for k, v in written.items()} == row
        assert written["low"] <= written["difference"] <= written["high"]
    (trained,) = [row for row in report["rows"] if row["intervention"] == "K=3"]
    line = (
        f"| K=3 (as trained) | {trained['loss']:.4f} | +0.0000 | +0.0000 to +0.0000 |\n"
    )
    assert line in (folder / "ablations.md").read_text()


def test_a_core_is_scored_by_its_repetitions(studied, texts):
    words = ["--suite", "paper", "halting", "--loops", "1", "--run.micro_batch", "8"]
    of_core = studied("ablate", *words, **CORE)
    report, _ = table_of(of_core.folder)
    rows = {row["intervention"]: row for row in report["rows"]}
    for change in (Intervention(core_loops=4), Intervention(halting=0.5)):
        naive = naive_loss_of(of_core.run, texts / "val.jsonl", change)
        assert rows[change.name]["loss"] == pytest.approx(naive, rel=1e-5)

    # A wide layer and a dual one, K = 2, are repeated R times between a wide layer and
    # a dual one.
    for r in (1, 2, 3, 4):
        row = rows[f"R={r}"]
        assert row["passes"] == pytest.approx((1 + r * (1 + 3) + 3) / 4)
        assert row["core_loops_run"] == r
        assert 1 <= row["expected_core_loops"] <= r
    assert rows["R=3"]["difference"] == 0
    # Tokens that stop in the core leave out its layers.
    halted = rows["halting=0.5"]
    assert halted["passes"] < rows["learned"]["passes"]
    assert halted["expected_core_loops"] < rows["R=3"]["core_loops_run"]


def test_texts_a_token_limit_and_a_folder_can_be_given(run, texts, tmp_path):
    out = tmp_path / "tables"
    words = [
        "ablate",
        "--ckpt_path",
        str(run),
        "--data.val_tokens",
        "0.02K",
        "--out",
        str(out),
    ]
    words += ["--loops", "1"]
    (tmp_path / "one.txt").write_text("h")
    one = f"one: {tmp_path / 'one.txt'}"
    assert main([*words, "--data.val", f"{{{one}}}"]) == 0
    assert main([*words, "--data.val", f"{{a: {texts / 'train.jsonl'}, {one}}}"]) == 0
    assert not (run / "ablations").exists()
    report, rows = table_of(out)
    tokens = {name: source["tokens"] for name, source in report["sources"].items()}
    assert tokens == {"a": 20, "one": 1}
    assert [row["intervention"] for row in rows] == names("paper", loops="1") * 2
    # In the order that they were asked for, not in that in which they were finished.
    assert list(dict.fromkeys(row["source"] for row in rows)) == ["a", "one"]
    # A single window has no interval.
    assert all(row["low"] is None for row in report["rows"] if row["source"] == "one")
    assert all(row["low"] == "" for row in rows if row["source"] == "one")


def test_a_class_of_tokens_stands_against_as_many_random_ones(
    run, by_letter, monkeypatch
):
    masks: dict[str, list[torch.Tensor]] = {}
    models = DualPathLM.forward

    def watched(self, tokens, *arguments, intervention, token_mask, **keywords):
        masks.setdefault(intervention.name, []).append(tokens[token_mask])
        return models(
            self,
            tokens,
            *arguments,
            intervention=intervention,
            token_mask=token_mask,
            **keywords,
        )

    monkeypatch.setattr(DualPathLM, "forward", watched)
    words = ["--suite", "token-classes", "--seeds", "2"]
    report, _ = ablate(run, *words, "--classes", "h=NUM:wide", "none=VERB:deep")
    values = Tokenizer.load(run / "tokenizer.json").token_values()
    chosen = {
        name: [values[id].startswith(b"h") for ids in batches for id in ids.tolist()]
        for name, batches in masks.items()
    }
    of_class, random = (
        chosen["gates=0,1 tokens=h"],
        chosen["gates=0,1 tokens=random-as-h"],
    )
    assert all(of_class)
    assert not any(random)
    assert (
        len(of_class)
        == len(random)
        == len(chosen["gates=0,1 tokens=random-as-h:1"])
        > 10
    )

    loss = {row["intervention"]: row["loss"] for row in report["rows"]}
    row, empty = report["excess"]
    assert (row["token_class"], row["tokens"]) == ("h", len(of_class))
    controls = [
        loss["gates=0,1 tokens=random-as-h"],
        loss["gates=0,1 tokens=random-as-h:1"],
    ]
    assert row["excess"] == pytest.approx(
        loss["gates=0,1 tokens=h"] - np.mean(controls)
    )
    assert row["low"] <= row["excess"] <= row["high"]
    # A class that no token is of says nothing.
    assert (empty["tokens"], empty["difference"], empty["excess"]) == (0, 0, None)
    assert report["tagger"] == {"pipeline": "by letter"}
    assert [forced["upos"] for forced in report["classes"]] == [["NUM"], ["VERB"]]
    (table,) = run.rglob("token_classes.csv")
    written, none = read_csv(table)
    assert written == {name: str(value) for name, value in row.items()}
    assert none["excess"] == ""
    ablate(run, "--loops", "1")
    assert not table.exists(), "that suite is no longer asked for"


def test_what_makes_no_sense_for_a_loop_model_is_said(trained, capsys):
    run = trained(model={"block": "loop"}, run={"gates_every": 0})
    # Where nothing is tagged, no tagger is needed.
    suites = ("paper", "token-classes", "experts", "skip")
    report, rows = ablate(run, "--suite", *suites, "--tagger", "nowhere")
    printed = capsys.readouterr().out
    assert re.search(r"left out gates.*: the model has no dual block", printed)
    # A suite without a row has no table.
    assert printed.count("│ learned ") == 1
    done = [row["intervention"] for row in rows]
    assert done == [name for name in NAMES if name.startswith(("learned", "K="))]
    assert set(NAMES) - set(done) < set(report["skipped"])


@pytest.mark.parametrize(("core", "has_no_scale"), [([1, 2], True), ([2, 3], False)])
def test_the_last_layer_has_no_scale_unless_a_core_repeats_it(
    core, has_no_scale, opened, tmp_path
):
    model = {**CORE["model"], "core": core}
    run = shutil.copytree(opened(model=model), tmp_path / "run", symlinks=True)
    words = ("--suite", "layers", "--loops", "1", "--data.val_tokens", "20")
    ablate(run, *words)
    (tables,) = run.glob("ablations/*/ablations.md")
    assert ("The final RMSNorm removes the scale" in tables.read_text()) == has_no_scale


# Continuing


@pytest.fixture(scope="session")
def short(studied: Study) -> Studied:
    """The paper's rows with one loop and two."""
    return studied("ablate", "--loops", "1-2")


SHORT = names("paper", loops="1-2")


def test_what_is_finished_and_whole_is_not_scored_again(
    short, texts, tmp_path, forwards
):
    def scored(*words: str) -> list[str]:
        forwards.names.clear()
        rows[:] = ablate(run, *words)[1]
        return forwards.passes

    run, rows = short.copied(tmp_path), []
    assert scored("--loops", "1-2") == []
    assert rows == table_of(short.folder)[1]
    # The same text elsewhere is the same, more rows are new alone, another text is.
    copy = Path(shutil.copy(texts / "val.jsonl", tmp_path / "held_out.jsonl"))
    other = ("--data.val.held_out", str(copy))
    assert scored("--loops", "1-3", "--seeds", "2", *other) == ["K=3", "shuffled:1"]
    assert [row["intervention"] for row in rows][1:4] == ["K=1", "K=2", "K=3"]
    copy.write_text(copy.read_text().replace("shell", "cells"))
    assert scored("--loops", "1-2", *other) == SHORT
    assert scored("--loops", "1-2", "--data.val_tokens", "20") == SHORT
    # Both fields of a file are texts, and the one that was scored is known by its
    # tokens.
    rows_of_two = [
        {"text": row["text"], "content": row["text"].replace("shell", "cells") + "!"}
        for row in map(json.loads, (texts / "val.jsonl").read_text().splitlines())
    ]
    copy.write_text("\n".join(map(json.dumps, rows_of_two)))
    content = (
        "--data.val.held_out",
        json.dumps({"path": str(copy), "field": "content"}),
    )
    assert scored("--loops", "1-2", *other) == []
    assert scored("--loops", "1-2", *content) == SHORT
    assert scored("--loops", "1-2", *content) == []
    assert not list(run.rglob("*.partial"))
    for path in (run / "ablations").rglob("*.npz"):
        path.write_bytes(path.read_bytes()[:40])
    assert scored("--loops", "1-2") == SHORT
    assert rows == table_of(short.folder)[1]
    # A pass under another's name, and changed numbers, are not believed.
    whole = [p for p in (run / "ablations").rglob("*.npz") if p.stat().st_size > 40]
    first, second, *others = whole
    with np.load(first) as arrays:
        np.savez(first, **{**arrays, "nats": arrays["nats"] / 2})
    for path in others:
        shutil.copy(second, path)
    assert len(scored("--loops", "1-2")) == len(SHORT) - 1
    assert rows == table_of(short.folder)[1]
