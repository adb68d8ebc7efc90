"""Settings of a preparation: keys of its recipe, and options of `dualpath prepare`."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.ranges import (
    Place,
    Size,
    check_name,
    check_range,
    check_ranges,
)
from dualpath_cli.data.documents import NAME, split_name, stem
from dualpath_cli.data.manifest import HUB, dataset_of
from dualpath_cli.recipe.parser import build

SAMPLE = "sample"
PRIMITIVES = "primitives"
NEMOTRON = "nemotron-cc"

Duplicates = Literal["keep", "exact", "near"]

_MOST = 10**15 - 1  # no count is above it


@dataclass(frozen=True)
class SourceSettings:
    """One source of a mix."""

    name: str
    """The name in manifests and tables; gsm8k, arc and triviaqa also choose the
    format."""
    path: Place
    """A file or folder, `sample`, `primitives`, `nemotron-cc[:SELECTION]` or
    `hf:OWNER/NAME/PATH`."""
    weight: float | None = None
    """Share of the tokens, relative to the other sources' weights; None: all tokens."""
    max_epochs: int = 1
    """How often its documents may be repeated to reach its share."""
    field: str = "text"
    """The field that holds the text, where the name chooses no format."""

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise UserError(
                f"'{self.name}' cannot name a source; give NAME=PATH with letters, "
                "digits, '.', '_' and '-' in NAME"
            )
        # val/NAME.jsonl is written at the end.
        way_out = "; give another by NAME=PATH"
        check_name("the name of a source", self.name, way_out)
        if self.weight is not None and not 0 < self.weight < math.inf:
            raise UserError(
                f"weight of '{self.name}' must be above 0, not {self.weight:g}; remove "
                "the source instead"
            )
        check_range(f"max_epochs of '{self.name}'", self.max_epochs, (1, _MOST))

    @property
    def is_packaged(self) -> bool:
        """Whether it comes with the package, with its own tokenizer."""
        return self.path in (SAMPLE, PRIMITIVES)

    @property
    def is_local(self) -> bool:
        """Whether its files are the user's, on this disk."""
        return not self.is_remote and not self.is_packaged

    @property
    def is_nemotron(self) -> bool:
        """Whether it is Nemotron-CC, or a selection of it."""
        return self.path.partition(":")[0] == NEMOTRON

    @property
    def is_remote(self) -> bool:
        """Whether its files are downloaded."""
        return self.is_nemotron or self.path.startswith(HUB)


@dataclass(frozen=True)
class PreparationSettings:
    """The settings that decide the content of a data folder."""

    # The texts below each field are those of --help.

    sources: tuple[SourceSettings, ...] = field(
        default=(), metadata={"option": "--source"}
    )
    """Where the documents come from: NAME=PATH or PATH of a .txt, .md, .jsonl or
    .parquet file (all but .parquet also as .gz or .zst), of a folder of them, or a
    quoted glob of any UTF-8 texts; NAME gsm8k, arc or triviaqa chooses that format.
    nemotron-cc[:SELECTION] is Nemotron-CC from Common Crawl, by default
    quality=high/kind=actual. hf:OWNER/NAME/PATH is a folder or a glob of files in a
    dataset of the Hugging Face hub. `sample` is a small corpus written for trying
    things out, `primitives` are sums and variable assignments for the tests of
    `evaluate --tasks primitives`; both also write held-out texts."""
    tokenizer: Place | None = None
    """The byte-level BPE to use: gpt2 (downloaded once), a tokenizer.json, or a folder
    with it or with vocab.json and merges.txt. `sample` has its own, of 2,048
    entries, `primitives` a token for each byte."""
    tokens: Size | None = None
    """Tokens to write, e.g. 16M or 38.5B, end-of-text included; by default all. The
    document that reaches the number is the last one."""
    num_files: Size | None = None
    """Files to take of each source that is downloaded: Nemotron-CC's in the order of a
    hash of their names, a dataset's in the order of their paths. By default as many as
    --tokens needs. Without --tokens, all files of a dataset, or 1 file of Nemotron-CC,
    which then cannot be mixed with a dataset of the hub."""
    seed: int = 0
    """Seed of the order of the documents."""
    duplicates: Duplicates = "exact"
    """Documents to leave out. keep: none. exact: those with the text of an earlier
    document. near: also those that resemble an earlier one (MinHash of 5-word shingles,
    14 bands of 8, finds candidates; --min-jaccard then compares their texts)."""
    min_jaccard: float = 0.75
    """Two candidates are near-duplicates if the Jaccard index of their 5-word shingles
    is at least this; 0 takes all candidates without comparing texts."""
    decontaminate: tuple[Place, ...] = ()
    """Evaluation texts as for --source, but on this disk. Documents that share 13
    consecutive words with one of them are left out (all words of a text of 8 to 12;
    shorter texts are not compared)."""
    val_fraction: float = 0.0
    """Share of the documents to hold out in OUT/val, by a hash of their ids."""
    min_chars: Size = Size(1)
    """Shorter documents are left out."""
    chunk_tokens: Size = Size(1 << 25)
    """Tokens in a chunk; the last one may hold fewer. The tail of each chunk, less than
    a sequence, is not trained on, so chunks should be large."""

    def __post_init__(self) -> None:
        self._check_names()
        self._check_paths()
        self._check_weights()

        counts = dict.fromkeys(("tokens", "num_files", "min_chars"), (1, _MOST))
        # litdata's offsets within a chunk are 32-bit numbers of bytes.
        chunk = (1 << 6, 1 << 29)
        check_ranges(self, counts | {"seed": (0, (1 << 64) - 1), "chunk_tokens": chunk})
        check_range("min_jaccard", self.min_jaccard, (0.0, 1.0))
        if not 0 <= self.val_fraction < 1:
            raise ValueError(
                "val_fraction must be at least 0 and below 1, not "
                f"{self.val_fraction:g}"
            )

    def _check_names(self) -> None:
        names = [source.name for source in self.sources]
        if not names:
            raise UserError(
                "--source is missing: say what to prepare, e.g. --source sample"
            )

        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise UserError(
                f"two sources are called '{twice[0]}'; name them apart with NAME=PATH"
            )

        has_own = len(self.sources) == 1 and self.sources[0].is_packaged
        if self.tokenizer is None and not has_own:
            raise UserError(
                "--tokenizer is missing: give gpt2 or a path; only `sample` and "
                "`primitives`, each by itself, have their own"
            )

    def _check_paths(self) -> None:
        """Refuses a path that the manifest, which is UTF-8, could not hold."""
        sources = (source.path for source in self.sources)
        for path in (*sources, *self.decontaminate, self.tokenizer or ""):
            try:
                path.encode()
            except UnicodeEncodeError:
                raise UserError(
                    f"path '{path}' is not UTF-8; rename it, or give a link to it"
                ) from None

    def _check_weights(self) -> None:
        count = len(self.sources)
        without = [source.name for source in self.sources if source.weight is None]
        if without and len(without) < count:
            raise UserError(
                f"source '{without[0]}' has no weight, but others have; give it one"
            )
        if without and count > 1 and self.tokens is not None:
            raise UserError(
                f"--tokens {self.tokens:,} with {count} sources needs their weights, "
                "which only a recipe gives: sources: [{path: a.jsonl, weight: 2}, "
                "{path: b.jsonl, weight: 1}]"
            )

        # Shares that are 0 or not a number come of weights beyond what a float can add.
        if any(not share > 0 for share in self.shares() or []):
            weights = ", ".join(f"{source.weight:g}" for source in self.sources)
            raise UserError(
                f"weights {weights} are too large or too far apart; give shares such "
                "as 0.9 and 0.1"
            )

    def as_recipe(self) -> dict[str, Any]:
        """The settings as a recipe of `dualpath prepare`."""
        recipe: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        if self.duplicates != "near":  # else a key that decides nothing would differ
            del recipe["min_jaccard"]
        return recipe

    def shares(self) -> list[float] | None:
        """Returns each source's share of the tokens; None to take all of each."""
        weights = [
            source.weight for source in self.sources if source.weight is not None
        ]
        total = sum(weights)
        return [weight / total for weight in weights] or None


def settings_from(values: Mapping[str, Any]) -> PreparationSettings:
    """Returns the settings of a recipe's keys; those that are null are left out.

    A source may be NAME=PATH.
    """
    keys = {key: value for key, value in values.items() if value is not None}
    sources = keys.get("sources", ())
    if not isinstance(sources, list | tuple):
        raise UserError(
            "sources must be a list, each NAME=PATH or a mapping with a path, not "
            f"'{sources!s:.60}'"
        )

    keys["sources"] = [
        build(SourceSettings, _source_keys(source), f"sources.{n}.")
        for n, source in enumerate(sources)
    ]
    return build(PreparationSettings, keys)


def _source_keys(source: Any) -> dict[str, Any]:
    """Returns a source's keys with a name: by default the last part of its path."""
    if isinstance(source, str):
        name, path = split_name(source)
        return {"name": name or _default_name(path), "path": path}

    if not isinstance(source, dict) or not source.get("path"):
        raise UserError(
            f"sources: '{source!s:.60}' is neither NAME=PATH nor a mapping with a path"
        )

    path = source["path"]
    name = _default_name(path) if isinstance(path, str) else "source"
    return {"name": name, **source}


def _default_name(path: str) -> str:
    if path.partition(":")[0] == NEMOTRON:
        return NEMOTRON

    is_on_hub = path.startswith(HUB)
    name = dataset_of(path).split("/")[-1] if is_on_hub else stem(Path(path))
    return re.sub(r"[^\w.-]+", "-", name)
