"""`dualpath prepare`: from its options to its last line.

Slow packages are imported after the checks.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from glob import has_magic
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from fsspec.utils import glob_translate

from data_prep.corpora import LISTING, MIRROR, find_corpus
from data_prep.input_files import Corpus
from data_prep.packaged import PACKAGED, PRIMITIVES_FILE
from data_prep.settings import (
    PRIMITIVES,
    PreparationSettings,
    SourceSettings,
    settings_from,
)
from data_prep.text import SHORTEST, Contamination, words_of
from dualpath_cli.base.errors import RunFailed, UserError, describe_system_error
from dualpath_cli.base.files import folder_of
from dualpath_cli.base.output import amount, say
from dualpath_cli.base.processes import cores
from dualpath_cli.base.ranges import Place, Size, check_ranges
from dualpath_cli.data.documents import (
    Source,
    parse_source,
    read_documents,
    source_files,
)
from dualpath_cli.data.manifest import Manifest
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.recipe import recipes

if TYPE_CHECKING:  # which import numpy
    from data_prep.engine import Engine


@dataclass(frozen=True, kw_only=True)
class Prepare(PreparationSettings):
    """Turns corpora into a data folder: cleaned, deduplicated, mixed, tokenised, and
    cut into chunks. The same command continues an interrupted preparation.

    The options from --source on are also keys of a recipe, --min-chars as min_chars and
    --source as sources. Options win over the recipe.

      dualpath prepare --source sample --out data/sample
      dualpath prepare --source novels=texts/novels.jsonl.gz --tokenizer gpt2 \\
          --out data/novels
      dualpath prepare --source nemotron-cc --num-files 1 --tokenizer gpt2 \\
          --out data/nemotron-cc
      dualpath prepare --config recipes/data/paper.yaml --out data/nemotron-cc --yes
    """

    # Inherited fields hold only what the command line gave: `settings` has all.
    config: Place | None = None
    """Recipe: a YAML file, or the name of a packaged one: paper is the paper's mix.
    Only in a recipe can sources have weights."""
    out: Place
    """The data folder to write."""
    downloads: Place | None = None
    """Folder for downloaded files; by default `downloads` beside OUT. The files may be
    deleted when the data folder is complete."""
    workers: int | None = None
    """Processes that work at the same time; by default one a core. Any number gives the
    same data."""
    memory: Size | None = None
    """Bytes of memory, e.g. 64G, for all processes of a machine together; by default
    half of what it has. Any number gives the same data."""
    ray: str | None = None
    """Address of a Ray cluster that does the work, as `ray start` says it, or `auto`.
    All its machines must see the sources, downloads and OUT by the same paths."""
    mirror: str = MIRROR
    """URL of Common Crawl's files."""
    strict: bool = False
    """Stop at a row, file or text that cannot be read or tokenised; by default it is
    noted and left out."""
    yes: bool = False
    """Allow downloads of more than 20 GB."""
    overwrite: bool = False
    """Replace other or damaged data in OUT, and discard an unfinished preparation of
    other data."""
    given: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_ranges(self, {"workers": (1, 1 << 16)})

    def settings(self) -> PreparationSettings:
        """The recipe's settings, overridden by the options that the user gave."""
        values = {}
        if self.config:
            path = recipes.find_recipe(self.config, kind="data")
            values = recipes.read_recipe_file(path)
        keys = {field.name for field in fields(PreparationSettings)}.intersection(
            self.given
        )
        options = {key: getattr(self, key) for key in keys}
        settings = settings_from(values | options)
        self._check_effects(settings)

        # Without a limit all of Nemotron-CC would come: terabytes.
        is_unlimited = settings.tokens is None and settings.num_files is None
        has_nemotron = any(source.is_nemotron for source in settings.sources)
        if is_unlimited and has_nemotron:
            _refuse_hub_beside_nemotron(settings.sources)
            return replace(settings, num_files=Size(1))
        return settings

    def _check_effects(self, settings: PreparationSettings) -> None:
        """Refuses options that would change nothing."""
        if self.workers and self.ray:
            raise UserError(
                "--workers counts processes of one machine; --ray needs none"
            )

        if "min_jaccard" in self.given and settings.duplicates != "near":
            raise UserError(
                "--min-jaccard has no effect without --duplicates near; add that, or "
                "leave it out"
            )

        downloads = any(source.is_remote for source in settings.sources)
        if "num_files" in self.given and not downloads:
            raise UserError(
                "--num-files has no effect without a source that is downloaded; leave "
                "it out"
            )


def _refuse_hub_beside_nemotron(sources: Sequence[SourceSettings]) -> None:
    """Refuses a dataset of the hub beside Nemotron-CC, of which one file is taken."""
    for source in sources:
        if source.is_remote and not source.is_nemotron:
            raise UserError(
                f"source '{source.path}' beside nemotron-cc needs --num-files or "
                "--tokens, which then bound both"
            )


def prepare(options: Prepare) -> None:
    """Prepares a data folder.

    Raises RunFailed where the network, a worker or the disk fails.
    """
    again = "the same command continues"
    try:
        _prepare(options.settings(), options)
    except KeyboardInterrupt as interrupt:
        interrupt.args = (again,)
        raise
    except OSError as error:
        code, reason = describe_system_error(error)
        if code == 2 or isinstance(error, BrokenPipeError):
            raise
        raise RunFailed(f"{reason}; {again}") from error


def _prepare(settings: PreparationSettings, options: Prepare) -> None:
    out = folder_of("--out", options.out)
    downloads = Path(options.downloads or out.parent / "downloads")
    _check_places(settings, out, downloads)
    corpora = [
        find_corpus(source, downloads, options.mirror, settings.num_files)
        for source in settings.sources
    ]
    remote = chain.from_iterable(corpus.remote_files() for corpus in corpora)
    _check_globs(settings, [file.name for file in remote], downloads)
    spec = settings.tokenizer
    if spec is None:
        tokenizer = PACKAGED[settings.sources[0].path].tokenizer()
    else:
        tokenizer = Tokenizer.load(spec)

    from data_prep.fetching import Fetcher, announce_downloads
    from data_prep.prepare import Request, finished, make_data_folder

    if settings.duplicates == "near" and not find_spec("datasketch"):
        raise UserError(
            "--duplicates near needs datasketch: in the clone, pip install '.[near]'"
        )

    evaluations = _evaluations(settings.decontaminate)
    request = Request(
        settings, corpora, tokenizer, out, evaluations, strict=options.strict
    )
    manifest = finished(request, options.overwrite)
    if manifest:
        line = f"{out} holds this already, nothing to do: {_summary(manifest)}"
        say(line, sys.stdout)
        return

    counts = announce_downloads(
        settings, corpora, tokenizer, out, downloads, options.yes
    )
    with (
        _engine(options, out, downloads, corpora) as (engine, task_bytes),
        Fetcher(corpora, downloads, counts) as fetcher,
    ):
        manifest = make_data_folder(
            request, engine, fetcher.get, task_bytes, overwrite=options.overwrite
        )

    say(f"{out}: {_summary(manifest)}", sys.stdout)
    _warn_of_sources(settings, manifest)
    _say_end_of_mix(settings, corpora, manifest)


@contextmanager
def _engine(
    options: Prepare, out: Path, downloads: Path, corpora: Sequence[Corpus]
) -> Iterator[tuple["Engine", int]]:
    """Yields the engine that runs the tasks, and the bytes of memory for a task."""
    from data_prep.engine import local_engine
    from data_prep.memory import divide_memory

    if not options.ray:
        workers, task_bytes = divide_memory(options.workers or cores(), options.memory)
        with local_engine(workers) as engine:
            yield engine, task_bytes
        return

    from data_prep.ray_engine import ray_engine

    local = [file.origin for corpus in corpora for file in corpus.files[:1]]
    must_see = [out.parent, *(path for path in local if isinstance(path, Path))]
    if any(corpus.remote_files() for corpus in corpora):
        downloads.mkdir(parents=True, exist_ok=True)
        must_see.append(downloads)
    with ray_engine(
        options.ray, options.memory, [path.resolve() for path in must_see]
    ) as engine_and_bytes:
        yield engine_and_bytes


def _evaluations(specs: Sequence[str]) -> Contamination | None:
    """The evaluation texts that documents are compared with; None without any."""
    if not specs:
        return None

    sources = [parse_source(spec) for spec in specs]
    texts = chain.from_iterable(map(_evaluation_texts, sources))
    return Contamination(texts)


def _evaluation_texts(source: Source) -> Iterator[str]:
    """Yields the evaluation texts of a source, and says how many are compared with.

    Raises UserError if there are none: every document would pass.
    """
    count = 0
    compared = 0
    for text in read_documents(source):
        count += 1
        compared += len(words_of(text)) >= SHORTEST
        yield text

    short = f"{count - compared:,} of fewer than {SHORTEST} words"
    if not compared:
        raise UserError(
            f"--decontaminate '{source.path}' has no text to compare with (texts: "
            f"{short}); give evaluation texts, or leave the option out"
        )

    left_out = f", and not with {short}" if compared < count else ""
    say(
        f"decontaminate: documents are compared with {amount('texts', compared)} of "
        f"'{source.path}'{left_out}"
    )


def _check_places(settings: PreparationSettings, out: Path, downloads: Path) -> None:
    """Refuses an output that would be read, or replaced with the data folder."""
    if downloads.resolve().is_relative_to(out.resolve()):
        raise UserError(
            f"--downloads '{downloads}' lies in --out '{out}', which may be replaced; "
            "give a folder outside of it"
        )

    for source in settings.sources:
        if source.is_local:
            _check_source(source, out, downloads)

    # These are written before the files of all sources are known.
    early = [LISTING for source in settings.sources if source.is_nemotron]
    early += [PRIMITIVES_FILE for s in settings.sources if s.path == PRIMITIVES]
    _check_globs(settings, early, downloads)

    # Packaged corpora write held-out texts of these names.
    names = {source.name for source in settings.sources}
    for source in settings.sources:
        kinds = PACKAGED[source.path].kinds if source.is_packaged else ()
        taken = sorted(names.intersection(kinds))
        if taken:
            raise UserError(
                f"`{source.path}` has a source '{taken[0]}' itself; give yours another "
                "name: NAME=PATH"
            )


def _check_source(source: SourceSettings, out: Path, downloads: Path) -> None:
    """Refuses an output in a source on this disk, and a source in the output."""
    target = out.resolve()
    path = Path(source.path).resolve()
    places = {"out": target, "downloads": downloads.resolve()}
    for option, place in places.items():
        if path.is_dir() and place.is_relative_to(path):
            raise UserError(
                f"--{option} lies in the source '{source.path}'; write elsewhere"
            )

    # Once they are there, a glob that matches them would be another source than before.
    records = ("rejected.jsonl.zst", "duplicates.jsonl.zst", f"val/{source.name}.jsonl")
    for name in records:
        if _matches(path, target / name):
            raise UserError(
                f"source '{source.path}' would match '{out / name}', which may be "
                "written; give another --out"
            )

    files = source_files(Source(source.name, Path(source.path)))
    if any(file.resolve().is_relative_to(target) for file in files):
        raise UserError(
            f"source '{source.path}' lies in --out '{out}', which may be replaced; "
            "give another --out"
        )


def _check_globs(
    settings: PreparationSettings, names: Sequence[str], downloads: Path
) -> None:
    """Refuses a glob on this disk that would match one of these downloads.

    Once that is there, the source would be another one than before.
    """
    target = downloads.resolve()
    for source in settings.sources:
        if not source.is_local or not has_magic(source.path):
            continue

        pattern = Path(source.path).resolve()
        for name in names:
            if _matches(pattern, target / name):
                raise UserError(
                    f"source '{source.path}' would match the download "
                    f"'{downloads / name}'; give another --downloads"
                )


def _matches(pattern: Path, path: Path) -> bool:
    """Whether a glob matches a path, which need not exist."""
    try:
        return re.match(glob_translate(str(pattern)), str(path)) is not None
    except ValueError:  # `**` within a component, which is a `*` there
        return False


def _summary(manifest: Manifest) -> str:
    sources = manifest.sources
    rejected = sum(source.total_rejected for source in sources)
    exact = sum(source.exact_duplicates for source in sources)
    near = sum(source.near_duplicates for source in sources)
    held_out = sum(source.validation for source in sources)
    left_out = {
        f"{rejected:,} rejected": rejected,
        amount("exact duplicates", exact): exact,
        amount("near-duplicates", near): near,
        f"{held_out:,} held out": held_out,
    }
    parts = [
        f"{manifest.tokens:,} tokens ({manifest.dtype}) of "
        + amount("documents", manifest.documents),
        f"{manifest.text_bytes / manifest.tokens:.2f} bytes a token",
        *(text for text, count in left_out.items() if count),
        f"fingerprint {manifest.fingerprint[:12]}",
    ]
    return ", ".join(parts)


def _warn_of_sources(settings: PreparationSettings, manifest: Manifest) -> None:
    """Prints the faults and the rejected documents of each source."""
    for source in manifest.sources:
        for fault in source.faults:
            say(f"warning: {source.name}: {fault}")

        # Of a source without text a larger share would hold out nothing either.
        if settings.val_fraction and source.documents and not source.validation:
            say(
                f"warning: {source.name}: none of {source.read:,} documents is held "
                f"out; raise --val-fraction {settings.val_fraction:g}"
            )

        for reason, count in source.rejected.items():
            say(
                f"warning: {source.name}: {count:,} of {source.read:,} documents "
                f"{reason}; see rejected.jsonl.zst"
            )


def _say_end_of_mix(
    settings: PreparationSettings, corpora: Sequence[Corpus], manifest: Manifest
) -> None:
    """Prints which source ended the data, where more could be had."""
    # The source all of whose documents are used, as often as they may be repeated.
    used = [
        counts.passes / source.max_epochs
        for source, counts in zip(settings.sources, manifest.sources, strict=True)
    ]
    used_up = corpora[used.index(max(used))]
    name = used_up.settings.name
    ways_out = ["raise its max_epochs in a recipe"]
    if len(corpora) > 1:
        ways_out.insert(0, "lower its weight")
    if used_up.settings.is_remote and len(used_up.files) == settings.num_files:
        ways_out.insert(0, "raise --num-files")
    way_out = " or ".join(ways_out)

    if settings.tokens and manifest.tokens < settings.tokens:
        few = f"{manifest.tokens:,} tokens instead of {settings.tokens:,}"
        say(f"warning: {few}: source '{name}' has no more; {way_out}")
    elif not settings.tokens and settings.shares() and len(corpora) > 1:
        say(f"the mix ends with source '{name}'; for more, {way_out}")
