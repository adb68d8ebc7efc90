"""`dualpath prepare`: from its options to its last line; imports slow packages after
the checks."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from data_prep import sample
from data_prep.corpora import MIRROR, find
from data_prep.settings import NEMOTRON, SAMPLE, Preparation, settings_from
from data_prep.text import SHORTEST, Contamination, words_of
from dualpath_cli.base.errors import RunFailed, UserError, of_system
from dualpath_cli.base.files import folder_of
from dualpath_cli.base.output import say
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


@dataclass(frozen=True, kw_only=True)
class Prepare(Preparation):
    """Turns corpora into a data folder: cleaned, deduplicated, mixed, tokenised, and
    cut into chunks. The same command continues an interrupted preparation.

    A recipe has the options down to --chunk-tokens as keys, with _ for -; options win
    over it.

      dualpath prepare --source sample --out data/sample
      dualpath prepare --source novels=texts/novels.jsonl.gz --tokenizer gpt2 \\
          --out data/novels
      dualpath prepare --source nemotron-cc --num-files 1 --tokenizer gpt2 \\
          --out data/nemotron-cc
      dualpath prepare --config recipes/data/paper.yaml --out data/nemotron-cc --yes
    """

    config: Place | None = None
    """Recipe: a YAML file, or the name of a packaged one: paper is the paper's mix.
    Only in a recipe can sources have weights."""
    out: Place
    """The data folder to write."""
    downloads: Place | None = None
    """Folder for downloaded files; by default `downloads` beside OUT. The files may be
    deleted when the data folder is complete."""
    workers: int | None = None
    """Processes that clean and tokenise; by default one a core. Any number gives the
    same data."""
    mirror: str = MIRROR
    """URL of Common Crawl's files."""
    strict: bool = False
    """Stop at the first row or file that cannot be read, which is else noted and left
    out."""
    yes: bool = False
    """Allow downloads of more than 20 GB."""
    overwrite: bool = False
    """Replace other data in OUT, and discard an unfinished preparation of other
    data."""
    given: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_ranges(self, {"workers": (1, 1 << 16)})

    def settings(self) -> Preparation:
        """The recipe's settings, over which the options win that were given."""
        values = {}
        if self.config:
            path = recipes.find_recipe(self.config, kind="data")
            values = recipes.read_recipe_file(path)
        keys = {field.name for field in fields(Preparation)}.intersection(self.given)
        settings = settings_from(values | {key: getattr(self, key) for key in keys})
        unlimited = settings.tokens is None and settings.num_files is None
        if unlimited and any(
            s.path.partition(":")[0] == NEMOTRON for s in settings.sources
        ):
            settings = replace(settings, num_files=Size(1))  # terabytes otherwise
        return settings


def run(options: Prepare) -> None:
    """Prepares a data folder. Raises RunFailed where the network, a worker or the disk
    fails."""
    again = "the same command continues"
    try:
        _prepare(options.settings(), options)
    except KeyboardInterrupt as interrupt:
        interrupt.args = (again,)
        raise
    except OSError as error:
        code, reason = of_system(error)
        if code == 2 or isinstance(error, BrokenPipeError):
            raise
        raise RunFailed(f"{reason}; {again}") from error


def _prepare(settings: Preparation, options: Prepare) -> None:
    out = folder_of("--out", options.out)
    downloads = Path(options.downloads or out.parent / "downloads")
    _check_places(settings, out, downloads)
    corpora = [
        find(s, downloads, options.mirror, settings.num_files) for s in settings.sources
    ]
    spec = settings.tokenizer
    tokenizer = sample.tokenizer() if spec is None else Tokenizer.load(spec)
    from data_prep.download import Fetcher, announce
    from data_prep.mix import wanted_tokens
    from data_prep.prepare import Request, finished, prepare

    if settings.duplicates == "near" and not find_spec("datasketch"):
        raise UserError(
            "--duplicates near needs datasketch: pip install 'dualpath[near]'"
        )
    evaluations = None
    if settings.decontaminate:
        sources = [parse_source(spec) for spec in settings.decontaminate]
        evaluations = Contamination(chain.from_iterable(map(_compared, sources)))
    request = Request(
        settings, corpora, tokenizer, out, evaluations, strict=options.strict
    )
    if manifest := finished(request, options.overwrite):
        say(
            f"{out} holds this already, nothing to do: {_summary(manifest)}", sys.stdout
        )
        return
    counts = announce(corpora, wanted_tokens(settings), out, downloads, options.yes)
    with Fetcher(corpora, downloads, counts) as fetcher:
        manifest = prepare(
            request,
            options.workers or cores(),
            fetcher.get,
            overwrite=options.overwrite,
        )
    say(f"{out}: {_summary(manifest)}", sys.stdout)
    _warn(settings, manifest)


def _compared(source: Source) -> Iterator[str]:
    """Yields the evaluation texts of a source, and says how many documents are compared
    with.

    Raises UserError if there are none: every document would pass.
    """
    given = compared = 0
    for text in read_documents(source):
        given += 1
        compared += len(words_of(text)) >= SHORTEST
        yield text
    short = f"{given - compared:,} of fewer than {SHORTEST} words"
    if not compared:
        raise UserError(
            f"--decontaminate '{source.path}' has no text to compare with (texts: "
            f"{short}); give evaluation texts, or leave the option out"
        )
    left_out = f", and not with {short}" if compared < given else ""
    say(
        f"decontaminate: documents are compared with {compared:,} texts of "
        f"'{source.path}'{left_out}"
    )


def _check_places(settings: Preparation, out: Path, downloads: Path) -> None:
    """Refuses an output that would be read, or replaced with the data folder."""
    target, kept = out.resolve(), downloads.resolve()
    if kept.is_relative_to(target):
        raise UserError(
            f"--downloads '{downloads}' lies in --out '{out}', which is replaced"
        )
    for source in settings.sources:
        if source.is_remote or source.path == SAMPLE:
            continue
        path = Path(source.path).resolve()
        for option, place in (("out", target), ("downloads", kept)):
            if path.is_dir() and place.is_relative_to(path):
                raise UserError(
                    f"--{option} lies in the source '{source.path}'; write elsewhere"
                )
        files = source_files(Source(source.name, Path(source.path)))
        if any(file.resolve().is_relative_to(target) for file in files):
            raise UserError(
                f"source '{source.path}' lies in --out '{out}', which is replaced"
            )
    names = {source.name for source in settings.sources}
    # the names of the sample's held-out texts
    taken = sorted(names.intersection(sample.KINDS))
    if taken and any(source.path == SAMPLE for source in settings.sources):
        raise UserError(
            f"beside `sample` no source can be called '{taken[0]}'; name it apart"
        )


def _summary(manifest: Manifest) -> str:
    sources = manifest.sources
    left_out = {
        "rejected": sum(source.total_rejected for source in sources),
        "exact duplicates": sum(source.exact_duplicates for source in sources),
        "near-duplicates": sum(source.near_duplicates for source in sources),
        "held out": sum(source.validation for source in sources),
    }
    return (
        f"{manifest.tokens:,} tokens ({manifest.dtype}) of {manifest.documents:,} "
        f"documents, {manifest.text_bytes / manifest.tokens:.2f} bytes a token, "
        + "".join(
            f"{count:,} {reason}, " for reason, count in left_out.items() if count
        )
        + f"fingerprint {manifest.fingerprint[:12]}"
    )


def _warn(settings: Preparation, manifest: Manifest) -> None:
    """Prints faults, rejected documents, and the source that ended the mix."""
    for source in manifest.sources:
        for fault in source.faults:
            say(f"warning: {source.name}: {fault}")
        if settings.val_fraction and not source.validation:
            few = f"none of {source.read:,} documents is held out"
            say(
                f"warning: {source.name}: {few}; raise --val-fraction "
                f"{settings.val_fraction:g}"
            )
        for reason, count in source.rejected.items():
            rejected = (
                f"{count:,} of {source.read:,} documents {reason}; see "
                "rejected.jsonl.zst"
            )
            say(f"warning: {source.name}: {rejected}")
    # The source all of whose documents are used, as often as they may be repeated.
    pairs = zip(settings.sources, manifest.sources, strict=True)
    used_up = max(pairs, key=lambda pair: pair[1].passes / pair[0].max_epochs)[1]
    way_out = "lower its weight or raise its max_epochs in a recipe"
    if settings.tokens and manifest.tokens < settings.tokens:
        few = f"{manifest.tokens:,} tokens instead of {settings.tokens:,}"
        say(f"warning: {few}: source '{used_up.name}' has no more; {way_out}")
    elif not settings.tokens and settings.shares() and len(settings.sources) > 1:
        say(f"the mix ends with source '{used_up.name}'; for more, {way_out}")
