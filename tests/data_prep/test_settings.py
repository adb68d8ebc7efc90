"""Settings: recipes and options say the same things, and mistakes are named."""

import json
from dataclasses import fields

import pytest
import yaml

from data_prep.settings import Settings, SourceSettings, settings_from
from dualpath_cli.errors import UserError
from dualpath_cli.recipe.recipes import find, read, recipe_folder


def test_a_recipe_becomes_settings_and_back():
    recipe = {
        "tokenizer": "gpt2",
        "tokens": "38.5B",
        "seed": (1 << 64) - 1,
        "sources": [
            {"name": "web", "path": "nemotron-cc:quality=high", "weight": 0.9},
            {"path": "hf:a/Some-Math:4plus", "weight": 1, "max_epochs": 2, "field": "body"},
        ],
        "duplicates": "near",
        "val_fraction": 1e-4,
        "min_chars": "1K",
    }
    settings = settings_from(recipe)
    assert settings.tokens == 38_500_000_000
    assert settings.sources == (
        SourceSettings("web", "nemotron-cc:quality=high", 0.9),
        SourceSettings("Some-Math", "hf:a/Some-Math:4plus", 1.0, 2, "body"),
    )
    assert (settings.min_chars, settings.val_fraction, settings.num_files) == (1000, 1e-4, None)
    assert settings_from(yaml.safe_load(yaml.safe_dump(settings.as_recipe()))) == settings


@pytest.mark.parametrize("path", sorted((recipe_folder() / "data").glob("*.yaml")), ids=str)
def test_every_shipped_recipe_is_read_by_its_name_and_its_path(path):
    by_name, by_path = (read(find(spec, kind="data")) for spec in (path.stem, str(path)))
    assert by_name == by_path
    assert settings_from(by_name).sources


def test_the_papers_recipe_has_tokens_for_its_training():
    # 18,360 steps of 512 sequences, each a block of 4,097 tokens; every chunk loses a block.
    settings = settings_from(read(find("paper", kind="data")))
    assert settings.tokens is not None
    chunks = settings.tokens // settings.chunk_tokens + 1
    assert settings.tokens >= 18_360 * 512 * 4097 + chunks * 4097


@pytest.mark.parametrize(
    ("spec", "name", "path"),
    [
        ("novels=a/b.jsonl", "novels", "a/b.jsonl"),
        ("a/b.c.jsonl.gz", "b.c", "a/b.c.jsonl.gz"),
        ("sample", "sample", "sample"),
        ("nemotron-cc", "nemotron-cc", "nemotron-cc"),
        ("nemotron-cc:quality=high/kind=actual", "nemotron-cc", None),
        ("web=nemotron-cc:quality=low", "web", "nemotron-cc:quality=low"),
        ("hf:openai/gsm8k:main", "gsm8k", "hf:openai/gsm8k:main"),
        ("x=hf:openai/gsm8k", "x", "hf:openai/gsm8k"),
        ("data/quality=high/kind=actual", "kind-actual", None),
        ("my corpus.jsonl", "my-corpus", None),
        ("a:b.jsonl", "a-b", None),
    ],
)
def test_a_source_is_named_by_itself_or_by_where_it_is(spec, name, path):
    (source,) = settings_from({"sources": [spec], "tokenizer": "t"}).sources
    assert (source.name, source.path) == (name, path or spec)
    assert source.is_remote == ("hf:" in spec or "nemotron-cc" in spec)


def names_of(settings: type) -> list[str]:
    return [field.name for field in fields(settings)]


GOOD = {"sources": ["a=a.txt"], "tokenizer": "t"}
TWO = [{"path": "a.txt", "weight": 1}, {"path": "b.txt", "weight": 1}]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"token": 3}, "unknown key 'token'; did you mean 'tokens'"),
        ({"seed": -1}, "seed must be at least 0 and below 2^64, not '-1'"),
        ({"seed": 1 << 64}, "seed must be at least 0 and below 2^64, not '18446744073709551616'"),
        ({"tokens": 10**15}, "tokens must be below 1,000,000,000,000,000, not '1000"),
        ({"val_fraction": 1}, "--val-fraction 1.0 is not at least 0 and below 1"),
        ({"chunk_tokens": 5}, "--chunk-tokens 5 is not between 64 and"),
        ({"chunk_tokens": (1 << 29) + 1}, "--chunk-tokens 536,870,913 is not between 64 and"),
        ({"tokenizer": None}, "--tokenizer is missing"),
        ({"sources": []}, "--source is missing"),
        ({"sources": [3]}, "neither NAME=PATH nor a mapping"),
        ({"sources": [{"name": "a"}]}, "sources: one has no path"),
        ({"sources": [{"path": "a", "wieght": 1}]}, "'sources.0.wieght'; did you mean 'weight'"),
        ({"sources": [{"path": "a", "weight": 0}]}, "weight 0 of 'a' is not a share above 0"),
        (
            {"sources": [{"path": "a", "weight": 1e308}, {"path": "b", "weight": 1e308}]},
            "weights 1e+308, 1e+308 are too large",
        ),
        ({"sources": [{"path": "a", "max_epochs": 0}]}, "max_epochs 0 of 'a' must be at least 1"),
        ({"sources": [{"path": "a", "name": "a/b"}]}, "'a/b' cannot name a source"),
        ({"sources": ["a.txt", "b/a.jsonl"]}, "two sources are called 'a'"),
        ({"sources": [*TWO, "c"]}, "source 'c' has no weight"),
        ({"sources": ["a.txt", "b.txt"], "tokens": 5}, "2 sources: a recipe must say"),
    ],
)
def test_what_cannot_be_meant_is_named(changes, reason):
    with pytest.raises(UserError) as caught:
        settings_from({**GOOD, **changes})
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [{"a": 1}, float("inf"), 10**400], ids=["kind", "inf", "huge"])
@pytest.mark.parametrize(
    "key", [*names_of(Settings), *(f"sources.0.{name}" for name in names_of(SourceSettings))]
)
def test_a_value_that_no_key_can_have_is_named_with_its_key(key, value):
    name = key.rpartition(".")[2]
    source = {"path": "a", name: value} if key.startswith("sources.") else {"path": "a"}
    own = {} if key.startswith("sources.") else {key: value}
    with pytest.raises(UserError) as caught:
        settings_from({**GOOD, "sources": [source], **own})
    said = str(caught.value)
    assert name in said
    assert json.dumps(value)[:9].lower().replace("infinity", "inf") in said.replace(",", "")
    assert "\n" not in said
