"""The words of `dualpath evaluate`, checked without importing anything slow."""

import importlib.util
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualpath_cli import overrides
from dualpath_cli.errors import UserError
from dualpath_cli.evaluation.benchmarks import BENCHMARKS, PAPER_LIMIT, SUITES
from dualpath_cli.files import read_text
from dualpath_cli.flops.paper import configurations
from dualpath_cli.intervention import Intervention
from dualpath_cli.options import (
    PRECISIONS,
    add_device,
    add_list_option,
    add_precision,
    check_choice,
    check_device,
    folder_of,
    whole_number,
)
from dualpath_cli.ranges import check_name
from dualpath_cli.run.trained import Trained, find
from dualpath_cli.text.documents import split_name, stem

LIBRARIES = ("lm_eval", "transformers", "accelerate")
"""The packages of the extra `eval`; a RUN needs the first alone."""
WINDOW = 2048
"""Tokens that a model sees at most, which is OLMES's default."""
BATCH_SIZE = 16
CACHES = ("exact", "none")
OF_THE_RECIPE = "recipe"
"""The paper's row that a run's recipe names."""


def add_arguments(parser: Any) -> None:
    """Adds the options to an argparse or a jsonargparse parser."""
    what = parser.add_argument_group("what is evaluated")
    text = "One or more: a run folder, a checkpoint inside one, or an exported file."
    add_list_option(what, "--ckpt-path", "RUN", text)
    text = "A Hugging Face directory instead."
    what.add_argument("--hf", metavar="DIR", help=text)
    text = "Run the code that is in DIR, as transformers does by the option of this name."
    what.add_argument("--trust-remote-code", action="store_true", help=text)
    text = "Folder for the scores; what it holds already is not computed again."
    what.add_argument("--out", metavar="DIR", help=text)
    _add_documents(parser.add_argument_group("on what"))
    _add_settings(parser.add_argument_group("how"))


def _add_documents(group: Any) -> None:
    sizes = ", ".join(f"{name} {len(tasks)}" for name, tasks in SUITES.items())
    text = (
        f"Benchmarks that belong together ({sizes}); by default paper, which stops at "
        f"{PAPER_LIMIT:,} documents of each, as the paper did."
    )
    group.add_argument("--suite", metavar="SUITE", help=text)
    add_list_option(group, "--tasks", "TASK", f"Benchmarks by name: {', '.join(BENCHMARKS)}.")
    text = "Texts whose rolling bits per byte are measured: .txt, .jsonl, .parquet, or a folder."
    add_list_option(group, "--sources", "NAME=PATH", text)
    text = "Folders with TASK.jsonl files; without any the Hugging Face hub is asked."
    add_list_option(group, "--data", "DIR", text)
    text = (
        "Folder with TASK.fewshot.txt, or TASK_train.jsonl to make one of; by default that of "
        "--data, or the benchmark's training split on the hub."
    )
    group.add_argument("--fewshot", metavar="DIR", help=text)
    text = "At most so many documents of each, drawn as OLMES draws them, or all."
    group.add_argument("--limit", metavar="N", help=text)
    text = "Write what models would be asked into --out, byte for byte, and ask none."
    group.add_argument("--requests", action="store_true", help=text)


def _add_settings(group: Any) -> None:
    overrides.add_arguments(group)
    text = f"Tokens that the model sees at most; by default {WINDOW:,}, or its length if smaller."
    group.add_argument("--window", metavar="T", default=str(WINDOW), help=text)
    text = f"Requests of a batch (default {BATCH_SIZE}); scores move with it."
    group.add_argument("--batch-size", metavar="N", default=str(BATCH_SIZE), help=text)
    add_precision(group)
    text = "Keys and values: exact, those of every step are kept (default), or none."
    group.add_argument("--cache", metavar="POLICY", default=CACHES[0], help=text)
    add_device(group)
    text = (
        "Set a row of the paper's tables beside the scores, such as f80m_a50_k4; by default that "
        "of the run's recipe."
    )
    group.add_argument("--compare-paper", metavar="ROW", nargs="?", const=OF_THE_RECIPE, help=text)


@dataclass(frozen=True)
class Subject:
    """A model that is evaluated: of a RUN, or a Hugging Face directory."""

    name: str
    """Of its folder in `--out`."""
    path: str
    """As it was given."""
    trained: Trained | None = None
    """The model of a RUN."""


@dataclass(frozen=True)
class Request:
    """The models, benchmarks and settings of an evaluation."""

    subjects: tuple[Subject, ...]
    """None where the requests alone are wanted."""
    tasks: tuple[str, ...]
    """Names of benchmarks, without the texts of `sources`."""
    named: bool
    """Whether each was asked for by its name: then its data must be there."""
    sources: dict[str, str]
    """NAME=PATH of texts, by name."""
    data: tuple[Path, ...]
    fewshot: Path | None
    limit: int | None
    intervention: Intervention | None
    window: int
    batch_size: int
    precision: str
    cache: str
    device: str
    trust_remote_code: bool
    """Whether the code in a Hugging Face directory is run."""
    paper: str | None
    """The paper's configuration beside ours: its label, or `OF_THE_RECIPE`."""
    out: Path


def read(options: Namespace) -> Request:
    """Checks the words."""
    if bool(options.ckpt_path) + (options.hf is not None) + options.requests != 1:
        raise UserError("evaluate needs either --ckpt-path RUN or --hf DIR, or --requests alone")
    if options.out is None:
        raise UserError("evaluate needs --out DIR, a folder for the scores")
    out = _folder("--out", options.out, must_exist=False)
    tasks, named = _tasks(options)
    sources = _sources(options.sources)
    subjects = tuple(map(_run, options.ckpt_path))
    if options.hf is not None:
        subjects += (_directory(options.hf, options.trust_remote_code),)
    _check_names(subjects)
    for name, allowed in (("precision", PRECISIONS), ("cache", CACHES)):
        check_choice(f"--{name}", getattr(options, name), allowed)
    check_device(options.device)
    request = Request(
        subjects=subjects,
        tasks=tuple(name for name in tasks if name not in sources),
        named=named,
        sources=sources,
        data=tuple(_folder("--data", path) for path in options.data),
        fewshot=None if options.fewshot is None else _folder("--fewshot", options.fewshot),
        limit=_limit(options),
        intervention=overrides.read(options),
        window=whole_number("--window", options.window, 2, 1 << 24),
        batch_size=whole_number("--batch-size", options.batch_size, 1, 1 << 16),
        precision=options.precision,
        cache=options.cache,
        device=options.device,
        trust_remote_code=options.trust_remote_code,
        paper=_paper(options.compare_paper, subjects),
        out=out,
    )
    _check_intervention(request)
    if subjects:
        for name in LIBRARIES[:1] if options.hf is None else LIBRARIES:
            if importlib.util.find_spec(name) is None:
                raise UserError(f"evaluate needs {name}: pip install 'dualpath[eval]'")
    return request


def _tasks(options: Namespace) -> tuple[list[str], bool]:
    names = [name for words in options.tasks for name in words.split(",")]
    for name in names:
        check_choice("--tasks", name, tuple(BENCHMARKS))
    if names and options.suite is not None:
        raise UserError("--tasks and --suite exclude each other")
    if names:
        return [name for name in BENCHMARKS if name in names], True
    if options.suite is None and options.sources:
        return [], True
    suite = "paper" if options.suite is None else options.suite
    check_choice("--suite", suite, tuple(SUITES))
    return list(SUITES[suite]), False


def _sources(specs: list[str]) -> dict[str, str]:
    sources: dict[str, str] = {}
    for spec in specs:
        name, path = split_name(spec)
        name = name or stem(Path(path))
        if name in sources:
            raise UserError(f"--sources has two texts named '{name}'; give NAME=PATH")
        if name in BENCHMARKS and BENCHMARKS[name].kind != "text":
            raise UserError(f"--sources '{name}' is a benchmark of another kind; give another NAME")
        sources[name] = spec
    return sources


def _limit(options: Namespace) -> int | None:
    if options.limit is None:
        default = options.suite is None and not options.tasks and not options.sources
        return PAPER_LIMIT if default or options.suite == "paper" else None
    return None if options.limit == "all" else whole_number("--limit", options.limit, 1, 1 << 40)


def _run(path: str) -> Subject:
    trained = find(path)
    run = trained.settings.run
    return Subject(f"{run.recipe}-{run.name}-step-{trained.run.step:08d}", path, trained)


def _directory(path: str, trusted: bool) -> Subject:
    folder = _folder("--hf", path)
    if not (folder / "config.json").is_file():
        raise UserError(f"--hf '{path}' holds no config.json: it is no directory of transformers")
    for file in sorted(folder.glob("*config.json")):
        if not trusted and "auto_map" in read_text(file):
            raise UserError(
                f"--hf '{path}': its {file.name} names code of its own (auto_map); give "
                "--trust-remote-code to run it, if you trust it"
            )
    return Subject(folder.resolve().name, path)


def _check_names(subjects: tuple[Subject, ...]) -> None:
    names = [subject.name for subject in subjects]
    for subject in subjects:
        try:
            check_name("the model's name", subject.name)
        except ValueError as error:
            raise UserError(str(error)) from None
        if names.count(subject.name) > 1:
            raise UserError(f"two RUNs are called {subject.name}; evaluate them one by one")


def _check_intervention(request: Request) -> None:
    change = request.intervention
    if change is None:
        return
    for subject in request.subjects:
        if subject.trained is None:
            raise UserError("--hf goes without --loops and --intervention: its code decides")
        subject.trained.check(change)
    if change.kv_slots is not None:
        raise UserError(
            f"{change.name}: a text is read in one pass here, whose tokens see each other in every "
            "step; score texts with ablate --suite kv-slots"
        )
    if change.needs_whole_text and request.cache != "none":
        writing = [name for name in request.tasks if BENCHMARKS[name].kind == "writing"]
        if writing:
            raise UserError(f"{change.name} needs whole texts: {writing[0]} goes with --cache none")


def _paper(row: str | None, subjects: tuple[Subject, ...]) -> str | None:
    if row is None:
        return None
    rows = [configuration.recipe for configuration in configurations()]
    if row != OF_THE_RECIPE:
        check_choice("--compare-paper", row, tuple(rows))
        return row
    for subject in subjects:
        if subject.trained is None or subject.trained.settings.run.recipe not in rows:
            raise UserError(
                f"--compare-paper: {subject.name} is of none of the paper's recipes; name a row, "
                f"such as {rows[-1]}"
            )
    return row


def _folder(option: str, path: str, must_exist: bool = True) -> Path:
    folder = folder_of(option, path)
    if must_exist and not folder.exists():
        raise UserError(f"{option} '{path}' does not exist; give a folder")
    return folder
