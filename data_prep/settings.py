"""Settings of a preparation, from its recipe and the command line."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_type_hints

from dualpath_cli.errors import UserError
from dualpath_cli.recipe.parser import build
from dualpath_cli.recipe.recipes import parse_value
from dualpath_cli.sizes import Size
from dualpath_cli.text.documents import NAME, split_name, stem
from dualpath_cli.text.manifest import HUB

SAMPLE = "sample"
NEMOTRON = "nemotron-cc"

Duplicates = Literal["keep", "exact", "near"]

LARGEST = 10**15
"""Counts are below it."""

CHUNK_TOKENS = (1 << 6, 1 << 29)
"""Smallest and largest chunk: litdata's offsets within a chunk are 32-bit numbers of bytes."""


@dataclass(frozen=True)
class SourceSettings:
    """One source of a mix."""

    name: str
    """The name in manifests and tables; gsm8k, arc and triviaqa also choose the format."""
    path: str
    """A file or folder, `sample`, `nemotron-cc[:SELECTION]` or `hf:DATASET[:CONFIG]`."""
    weight: float | None = None
    """Share of the tokens, relative to the other sources' weights; None: all there is."""
    max_epochs: int = 1
    """How often its documents may be repeated to reach its share."""
    field: str = "text"
    """The field that holds the text, where the name chooses no format."""

    def __post_init__(self) -> None:
        """Raises UserError for an invalid name and numbers out of range."""
        if not NAME.fullmatch(self.name):
            raise UserError(
                f"'{self.name}' cannot name a source; give NAME=PATH with letters, digits, '.', "
                "'_' and '-' in NAME"
            )
        if self.weight is not None and not 0 < self.weight < math.inf:
            raise UserError(
                f"weight {self.weight:g} of '{self.name}' is not a share above 0; leave out a "
                "source that is not wanted"
            )
        if not 1 <= self.max_epochs < LARGEST:
            raise UserError(
                f"max_epochs {self.max_epochs} of '{self.name}' must be at least 1 and below "
                f"{LARGEST:,}"
            )

    @property
    def is_remote(self) -> bool:
        """Whether its files are downloaded."""
        return self.path.startswith(HUB) or self.path.partition(":")[0] == NEMOTRON


@dataclass(frozen=True)
class Settings:
    """The contents of a data folder. Fields are the keys of a recipe and, dashed, the options."""

    sources: tuple[SourceSettings, ...] = ()
    tokenizer: str | None = None
    """`gpt2`, a tokenizer.json or a folder with one; None: the sample's own."""
    tokens: Size | None = None
    """Tokens to write, end-of-text included; None: all there are."""
    num_files: Size | None = None
    """Files to take of each source that is downloaded; None: as many as `tokens` needs."""
    seed: int = 0
    """Of the order of the documents."""
    duplicates: Duplicates = "exact"
    """Which repeated documents are left out: none, equal texts, or also texts that resemble."""
    decontaminate: tuple[str, ...] = ()
    """Evaluation texts, as sources: documents that share 13 words in a row are left out."""
    val_fraction: float = 0.0
    """Share of the documents held out for validation, chosen by a hash of their ids."""
    min_chars: Size = Size(1)
    """Shorter documents are left out."""
    chunk_tokens: Size = Size(1 << 25)
    """Tokens in a chunk; the last one may hold fewer."""

    def __post_init__(self) -> None:
        """Raises UserError for values out of range and settings that contradict each other."""
        names = [source.name for source in self.sources]
        if not names:
            raise UserError("--source is missing: say what to prepare, e.g. --source sample")
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UserError(f"two sources are called '{twice}'; name them apart with NAME=PATH")
        if self.tokenizer is None and any(s.path != SAMPLE for s in self.sources):
            raise UserError(
                "--tokenizer is missing: give gpt2 or a path; only `sample` has its own"
            )
        without = [source.name for source in self.sources if source.weight is None]
        if without and len(without) < len(names):
            raise UserError(f"source '{without[0]}' has no weight, but others have; give it one")
        if without and len(names) > 1 and self.tokens is not None:
            raise UserError(
                f"--tokens {self.tokens:,} of {len(names)} sources: a recipe must say their "
                "weights (see recipes/data/paper.yaml)"
            )
        if any(not share > 0 for share in self.shares() or []):
            weights = ", ".join(f"{source.weight:g}" for source in self.sources)
            raise UserError(
                f"weights {weights} are too large or too far apart; give shares such as 0.9 and 0.1"
            )
        for name in ("tokens", "num_files", "min_chars"):
            if (getattr(self, name) or 0) >= LARGEST:
                raise UserError(f"{name} must be below {LARGEST:,}, not '{getattr(self, name)}'")
        if not 0 <= self.seed < 1 << 64:
            raise UserError(f"seed must be at least 0 and below 2^64, not '{self.seed!s:.40}'")
        low, high = CHUNK_TOKENS
        if not low <= self.chunk_tokens <= high:
            raise UserError(
                f"--chunk-tokens {self.chunk_tokens:,} is not between {low:,} and {high:,}"
            )
        if not 0 <= self.val_fraction < 1:
            raise UserError(f"--val-fraction {self.val_fraction} is not at least 0 and below 1")

    def as_recipe(self) -> dict[str, Any]:
        """Returns the settings as a recipe holds them: plain lists and mappings."""
        recipe: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return recipe

    def shares(self) -> list[float] | None:
        """Returns each source's share of the tokens, or None where all of each is taken."""
        weights = [source.weight for source in self.sources if source.weight is not None]
        return [weight / sum(weights) for weight in weights] or None


def settings_from(values: Mapping[str, Any]) -> Settings:
    """Returns the settings of a recipe's keys; null is left out.

    Sources may be written NAME=PATH. Raises UserError for an unknown key, a value of another kind
    and what contradicts itself.
    """
    given = {key: value for key, value in values.items() if value is not None}
    if isinstance(sources := given.get("sources"), list | tuple):
        given["sources"] = [_named(source) for source in sources]
    return build(Settings, given)


def value_of(key: str, text: str) -> Any:
    """Returns a value of a recipe from an option's text."""
    wants_text = get_type_hints(Settings)[key] == str | None
    return text if wants_text else parse_value(text)


def _named(source: Any) -> dict[str, Any]:
    """Returns a source's keys, with a name."""
    if isinstance(source, str):
        name, path = split_name(source)
        return {"name": name or default_name(path), "path": path}
    if not isinstance(source, dict):
        raise UserError(f"sources: '{source}' is neither NAME=PATH nor a mapping with a path")
    given = source.get("path")
    if not given:
        raise UserError("sources: one has no path; give path: PATH")
    return {"name": default_name(given) if isinstance(given, str) else "source", **source}


def default_name(path: str) -> str:
    """Returns what a source without a name is called: the last part of where it is from.

    Characters that a name may not hold become '-'.
    """
    if path.startswith(HUB):
        return _plain(path.removeprefix(HUB).split(":")[0].split("/")[-1])
    if path.partition(":")[0] == NEMOTRON:
        return NEMOTRON
    return _plain(stem(Path(path)))


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name)
