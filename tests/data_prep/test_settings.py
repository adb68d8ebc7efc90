"""Settings: recipes and options say the same things."""

from dataclasses import fields

import pytest
import yaml
from dualpath_cli.command.parser import parser_of

from data_prep.settings import Settings, SourceSettings, settings_from
from dualpath_cli.cli.commands import COMMANDS
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


def test_every_setting_is_an_option_and_a_key():
    options = {action.dest for action in parser_of(COMMANDS["prepare"])._actions}
    assert set(names_of(Settings)) <= options
