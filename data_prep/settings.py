"""Settings: what to prepare, from a recipe of its own and the command line."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from dualpath_cli.errors import UserError, did_you_mean
from dualpath_cli.recipes import parse, recipe_folder
from dualpath_cli.sizes import parse_size
from dualpath_cli.text.documents import NAME, split_name, stem

SAMPLE = "sample"
NEMOTRON = "nemotron-cc"
HUB = "hf:"

Duplicates = Literal["keep", "exact", "near"]

LARGEST = 10**15
"""Counts are below it."""

CHUNK_TOKENS = (1 << 6, 1 << 29)
"""Smallest and largest chunk: litdata's offsets within a chunk are 32-bit numbers of bytes."""


@dataclass(frozen=True)
class SourceSettings:
    """One source of a mix."""

    name: str
    """What manifests and tables call it; gsm8k, arc and triviaqa also choose the format."""
    path: str
    """A file or folder, `sample`, `nemotron-cc[:SELECTION]` or `hf:DATASET[:CONFIG]`."""
    weight: float | None = None
    """Share of the tokens, relative to the other sources' weights; None: all there is."""
    max_epochs: int = 1
    """How often its documents may be repeated to reach its share."""
    field: str = "text"
    """The field that holds the text, where the name chooses no format."""

    @property
    def is_remote(self) -> bool:
        """Whether its files are downloaded."""
        return self.path.startswith(HUB) or self.path.partition(":")[0] == NEMOTRON


@dataclass(frozen=True)
class Settings:
    """What a data folder is made of. Fields are the keys of a recipe and, dashed, the options."""

    sources: tuple[SourceSettings, ...]
    tokenizer: str | None = None
    """`gpt2`, a tokenizer.json or a folder with one; None: the sample's own."""
    tokens: int | None = None
    """Tokens to write, end-of-text included; None: all there are."""
    num_files: int | None = None
    """Files to take of each source that is downloaded; None: as many as `tokens` needs."""
    seed: int = 0
    """Of the order of the documents."""
    duplicates: Duplicates = "exact"
    """Which repeated documents are left out: none, equal texts, or also texts that resemble."""
    decontaminate: tuple[str, ...] = ()
    """Evaluation texts, as sources: documents that share 13 words in a row are left out."""
    val_fraction: float = 0.0
    """Share of the documents held out for validation, chosen by a hash of their ids."""
    min_chars: int = 1
    """Shorter documents are left out."""
    chunk_tokens: int = 1 << 25
    """Tokens in a chunk; the last one may hold fewer."""

    def __post_init__(self) -> None:
        """Raises UserError for what no preparation could mean."""
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


def read_recipe(recipe: str) -> dict[str, Any]:
    """Reads a recipe by path, or one of the packaged ones in recipes/data by its bare name.

    Raises UserError where there is none or it cannot be read.
    """
    packaged = recipe_folder() / "data"
    path = next((p for p in (Path(recipe), packaged / f"{recipe}.yaml") if p.is_file()), None)
    if path is None:
        names = sorted(p.stem for p in packaged.glob("*.yaml"))
        hint = did_you_mean(Path(recipe).stem, names) or f" (packaged: {', '.join(names)})"
        raise UserError(f"--config '{recipe}': no such file{hint}")
    try:
        return parse(path.read_text(encoding="utf-8"), f"'{path}'")
    except (OSError, ValueError) as error:
        raise UserError(f"--config '{recipe}' cannot be read: {error}") from None


def check(values: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Returns values of a recipe, or of options, as `Settings` takes them; None is left out.

    Raises UserError, which begins with `origin`, for an unknown key or a value of another kind.
    """
    known = {field.name for field in fields(Settings)}
    checked: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            hint = did_you_mean(str(key), known) or f" (keys: {', '.join(sorted(known))})"
            raise UserError(f"{origin}: unknown key '{key}'{hint}")
        if value is not None:
            checked[key] = _checked(key, value, f"{origin}: {key}")
    return checked


def _checked(key: str, value: Any, name: str) -> Any:
    if key == "sources":
        return tuple(_source(spec, name) for spec in _list(value, name))
    if key in ("tokens", "chunk_tokens", "num_files", "min_chars"):
        return _size(value, name)
    if key == "seed":
        return _number(value, name, int, 0, 1 << 64)
    if key == "val_fraction":
        return _number(value, name, float, 0.0)
    if key == "decontaminate":
        return tuple(str(spec) for spec in _list(value, name))
    if key == "duplicates" and value not in get_args(Duplicates):
        hint = did_you_mean(str(value), get_args(Duplicates))
        raise UserError(f"{name} '{value}' is not one of {', '.join(get_args(Duplicates))}{hint}")
    return str(value)


def _source(spec: Any, origin: str) -> SourceSettings:
    if isinstance(spec, str):
        name, path = split_name(spec)
        return SourceSettings(_name(name or default_name(path), origin), path)
    if not isinstance(spec, Mapping):
        raise UserError(f"{origin}: '{spec}' is neither NAME=PATH nor a mapping with a path")
    known = {field.name for field in fields(SourceSettings)}
    if unknown := [str(key) for key in spec if key not in known]:
        raise UserError(
            f"{origin}: unknown key '{unknown[0]}' of a source{did_you_mean(unknown[0], known)} "
            f"(keys: {', '.join(sorted(known))})"
        )
    if not spec.get("path"):
        raise UserError(f"{origin}: a source has no path")
    path = str(spec["path"])
    name = _name(str(spec.get("name") or default_name(path)), origin)
    weight = spec.get("weight")
    source = SourceSettings(
        name=name,
        path=path,
        weight=None if weight is None else _number(weight, f"weight of '{name}'", float, 0.0),
        max_epochs=_number(spec.get("max_epochs", 1), f"max_epochs of '{name}'", int, 1, LARGEST),
        field=str(spec.get("field", "text")),
    )
    if source.weight == 0:
        raise UserError(f"{origin}: weight 0 of '{name}'; leave the source out")
    return source


def default_name(path: str) -> str:
    """Returns what a source without a name is called: the last part of where it is from.

    What a name may not hold becomes '-'.
    """
    if path.startswith(HUB):
        return _plain(path.removeprefix(HUB).split(":")[0].split("/")[-1])
    if path.partition(":")[0] == NEMOTRON:
        return NEMOTRON
    return _plain(stem(Path(path)))


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name)


def _name(name: str, origin: str) -> str:
    if not NAME.fullmatch(name):
        raise UserError(
            f"{origin}: '{name}' cannot name a source; give NAME=PATH with "
            "letters, digits, '.', '_' and '-' in NAME"
        )
    return name


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise UserError(f"{name} must be a list, not '{value}'")
    return list(value)


def _size(value: Any, name: str) -> int:
    try:
        size = parse_size(str(value), name)
    except ValueError:  # more digits than Python reads or writes
        size = LARGEST
    if size >= LARGEST:
        raise UserError(f"{name} must be below {LARGEST:,}, not '{_shown(value)}'")
    return size


def _number(value: Any, name: str, kind: type, least: float, below: float = math.inf) -> Any:
    try:
        number = kind(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    cut = isinstance(value, float) and number != value
    if number is None or isinstance(value, bool) or cut or not least <= number < below:
        whole = "a whole number" if kind is int else "a number"
        bound = f" and below {below}" if number is not None and number >= below else ""
        raise UserError(f"{name} must be {whole} of at least {least}{bound}, not '{_shown(value)}'")
    return number


def _shown(value: Any) -> str:
    try:
        text = str(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 40 else f"{text[:40]}..."
