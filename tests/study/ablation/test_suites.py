"""What the suites score: the paper's rows, each in one layer, classes of tokens, thresholds."""

import dataclasses

import pytest

from dualpath_cli.config import ModelConfig
from dualpath_cli.study.ablation.options import SUITES, Selection, applicable, default_classes
from dualpath_cli.study.ablation.tables import AUTHORS
from dualpath_cli.study.parts_of_speech import OTHERS, ForcedClass, TokenClass

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


def selection(*suites: str, **changes) -> Selection:
    plain = Selection(
        suites, tuple(range(1, 11)), shuffles=1, controls=1, classes=default_classes()
    )
    return dataclasses.replace(plain, **changes)


def names(*suites: str, config: ModelConfig = TINY, **changes) -> list[str]:
    return [row.intervention.name for row in selection(*suites, **changes).rows(config)]


def test_the_rows_are_the_sixteen_of_the_paper():
    assert names("paper") == NAMES
    assert len(NAMES) == 16


def test_every_row_but_the_trained_loops_comes_in_each_layer_alone():
    listed = names("layers", loops=(1, 2))
    assert listed[0] == "learned"
    assert listed[1:4] == ["K=1 layers=0", "K=1 layers=1", "K=1 layers=2"]
    assert not any(name.startswith("K=2 ") for name in listed)
    assert len(listed) == 1 + 6 * 3


def test_layers_without_what_is_overridden_are_left_out_quietly():
    config = dataclasses.replace(TINY, block=["wide", "loop", "dual"])
    listed = names("layers", loops=(1,), config=config)
    assert listed[1:3] == ["K=1 layers=1", "K=1 layers=2"]
    assert [name for name in listed if "gates=1,0" in name] == ["gates=1,0 layers=2"]


def test_a_further_class_is_forced_where_its_entry_says_so_and_is_not_the_authors(monkeypatch):
    known = default_classes()
    plain, forced = (TokenClass(name, ("NOUN",), name == "forced") for name in ("plain", "forced"))
    monkeypatch.setattr("dualpath_cli.study.parts_of_speech.OTHERS", (*OTHERS, plain, forced))
    assert default_classes() == (*known, forced.to("wide"), forced.to("deep"))
    assert set(AUTHORS) < set(known)
    assert {chosen.name for chosen in AUTHORS} == {"arithmetic", "function"}


def test_no_two_rows_of_all_suites_have_one_name():
    listed = names(*SUITES)
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize(
    ("suite", "model", "chosen", "rows"),
    [
        ("paper", {}, {"loops": (1, 20), "shuffles": 2},
         ["K=1", "K=20", *NAMES[11:], "shuffled:1"]),
        ("kv-slots", {"loops": 4}, {}, ["kv_slots=1", "kv_slots=2", "kv_slots=3"]),
        (
            "experts", {"d_ffn_wide": 400, "n_experts": 3}, {"shuffles": 2},
            ["experts=1", "experts=3", "experts=random", "experts=random:1"],
        ),
        (
            "token-classes", {},
            {"classes": (ForcedClass("verbs", ("VERB",), "deep"),), "controls": 2},
            [f"gates=1,0 tokens={name}verbs{n}"
             for name, n in (("", ""), ("random-as-", ""), ("random-as-", ":1"))],
        ),
    ],
)  # fmt: skip
def test_the_rows_of_a_suite_follow_the_model_and_what_was_chosen(suite, model, chosen, rows):
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
def test_rows_that_make_no_sense_for_a_model_are_left_out_with_a_reason(changes, kept):
    config = dataclasses.replace(TINY, **changes)
    chosen, skipped = applicable(selection("paper").rows(config), config)
    assert [row.intervention.name for row in chosen] == kept
    assert list(skipped) == [name for name in NAMES if name not in kept]
    assert all(reason.startswith("the model ") for reason in skipped.values())
