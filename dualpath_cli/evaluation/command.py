"""`dualpath evaluate`: options, checked without slow imports; first all questions, then models."""

import importlib.util
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dualpath_cli.base.errors import UserError, did_you_mean
from dualpath_cli.base.ranges import Place, check_name, check_ranges
from dualpath_cli.base.system import format_csv, without_nan, write_text
from dualpath_cli.base.version import package_versions
from dualpath_cli.data.documents import split_name, stem
from dualpath_cli.evaluation.benchmarks import NAMES, PAPER_LIMIT, SUITES, Benchmark, NoData
from dualpath_cli.flops.paper import configurations
from dualpath_cli.recipe.options import Overrides, OwnClasses, Where, folder_of, read_overrides
from dualpath_cli.run.exported_folder import hash_of_weights
from dualpath_cli.run.trained import Trained, find

if TYPE_CHECKING:
    from dualpath_cli.evaluation.runner import Asked

OF_THE_RECIPE = "recipe"  # the paper's row that a run's recipe names


@dataclass(frozen=True)
class Subject:
    """A model to evaluate."""

    path: str  # as it was given
    trained: Trained

    @property
    def name(self) -> str:
        """Name of the model's folder in `--out`."""
        run = self.trained.settings.run
        return f"{run.recipe}-{run.name}-step-{self.trained.run.step:08d}"

    def facts(self, options: "Evaluate") -> dict[str, Any]:
        """Facts about the model and the evaluation."""
        from dualpath_cli.kernels.device import device_name
        from dualpath_cli.run.weights import device_of

        trained, change = self.trained, read_overrides(options)
        recipe, checkpoint = trained.settings, trained.run.checkpoint
        return {
            "name": self.name,
            "path": self.path,
            "run": f"{recipe.run.recipe}/{recipe.run.name}",
            "step": trained.run.step,
            "checkpoint": str(checkpoint),
            "sha256": hash_of_weights(checkpoint),
            "model": asdict(recipe.model),
            "loops": (change and change.loops) or recipe.model.loops,
            "intervention": change.name if change else "learned",
            "cache": options.cache,
            "device": device_name(device_of(options.device)),
            "precision": options.precision,
            "batch_size": options.batch_size,
            "window": min(options.window, recipe.model.max_seq_len),
            "versions": package_versions(("dualpath", "torch", "lm_eval")),
        }


@dataclass(frozen=True, kw_only=True)
class Evaluate(Where, OwnClasses, Overrides):
    """Scores models on multiple choice, worked answers and texts as OLMES renders them: accuracies
    and bits per byte, straight from checkpoints. Needs dualpath[eval].

    Texts get rolling_bpb: each window starts after the preceding token; in validate it starts after
    end-of-text.
    """

    ckpt_path: tuple[Place, ...] = ()
    """One or more: a run folder, a checkpoint inside one, or an exported folder."""
    out: Place
    """Folder for the scores."""
    suite: Literal["lm", "commonsense", "math", "qa", "paper", "all"] | None = None
    """A group of benchmarks: lm, commonsense, math, qa, all, or paper, the default: all, with at
    most 1,024 documents of each, as in the paper."""
    tasks: tuple[str, ...] = ()
    """Benchmarks by name, such as piqa,arc_easy."""
    sources: tuple[Place, ...] = ()
    """NAME=PATH of texts to score by rolling bits per byte: .txt, .jsonl, .parquet, or a folder of
    these."""
    data: tuple[Place, ...] = ()
    """Folders with TASK.jsonl, and few-shot examples as TASK.fewshot.txt or TASK_train.jsonl; by
    default benchmarks are downloaded from the Hugging Face hub."""
    limit: int | Literal["all"] | None = None
    """The most documents of each benchmark, drawn as in OLMES; or all."""
    requests: bool = False
    """Write all requests to a model into --out, byte for byte, without a model."""
    window: int = 2048
    """The most tokens that the model sees at once; the model's length if that is smaller."""
    batch_size: int = 16
    """Requests in a batch; scores change slightly with the batch size."""
    cache: Literal["exact", "none"] = "exact"
    """Keys and values: exact keeps those of every step, none keeps no cache."""
    compare_paper: str | None = field(default=None, metadata={"alone": OF_THE_RECIPE})
    """Show a row of the paper's tables beside the scores, such as f80m_a50_k4; without a value, the
    row of the run's recipe."""

    def __post_init__(self) -> None:
        Overrides.__post_init__(self)
        Where.__post_init__(self)
        check_ranges(self, {"window": (2, 1 << 24), "batch_size": (1, 1 << 16)})
        if self.limit != "all":
            check_ranges(self, {"limit": (1, 1 << 40)})
        if bool(self.ckpt_path) == self.requests:
            raise UserError("evaluate needs either --ckpt-path RUN, or --requests alone")
        if self.tasks and self.suite is not None:
            raise UserError("--tasks and --suite exclude each other")
        for name in self._named:
            if name not in NAMES:
                hint = did_you_mean(name, NAMES) or f"; choose from {', '.join(NAMES)}"
                raise UserError(f"unknown benchmark '{name}'{hint}")

    @property
    def _named(self) -> list[str]:
        return [name for words in self.tasks for name in words.split(",")]

    def texts(self) -> dict[str, str]:
        sources: dict[str, str] = {}
        for spec in self.sources:
            name, path = split_name(spec)
            name = name or stem(Path(path))
            if name in sources:
                raise UserError(f"--sources has two texts named '{name}'; give NAME=PATH")
            if not Benchmark(name).is_text:
                problem = "is a benchmark of another kind; give another NAME"
                raise UserError(f"--sources '{name}' {problem}")
            sources[name] = spec
        return sources

    @property
    def benchmarks(self) -> tuple[str, ...]:
        if self.tasks:
            return tuple(name for name in NAMES if name in self._named)
        alone = self.suite is None and self.sources
        return () if alone else SUITES[self.suite or "paper"]

    @property
    def documents(self) -> int | None:
        if self.limit is None:
            default = self.suite is None and not self.tasks and not self.sources
            return PAPER_LIMIT if default or self.suite == "paper" else None
        return None if self.limit == "all" else self.limit

    def subjects(self) -> list[Subject]:
        found = [Subject(path, find(path, own_classes=self.own_classes)) for path in self.ckpt_path]
        names = [subject.name for subject in found]
        for subject in found:
            try:
                check_name("the model's name", subject.name)
            except ValueError as error:
                raise UserError(str(error)) from None
            if names.count(subject.name) > 1:
                raise UserError(f"two RUNs are called {subject.name}; evaluate them one by one")
            self._check_paper(subject)
        self._check_change(found)
        if importlib.util.find_spec("lm_eval") is None:
            raise UserError("evaluate needs lm_eval: pip install 'dualpath[eval]'")
        return found

    def paper_row(self, subject: Subject) -> str | None:
        """The paper's configuration beside the model's scores, named as its recipe."""
        named = self.compare_paper != OF_THE_RECIPE
        return self.compare_paper if named else subject.trained.settings.run.recipe

    def _check_paper(self, subject: Subject) -> None:
        row, rows = self.paper_row(subject), [one.recipe for one in configurations()]
        if row is not None and row not in rows:
            hint = did_you_mean(row, rows) or f"; name one, such as {rows[-1]}"
            raise UserError(f"--compare-paper: the paper has no row '{row}'{hint}")

    def _check_change(self, subjects: list[Subject]) -> None:
        change = read_overrides(self)
        if change is None:
            return
        for subject in subjects:
            subject.trained.check(change)
        if change.kv_slots is not None:
            raise UserError(
                f"{change.name}: evaluate reads a text in one pass, so tokens see each other in "
                "every step; score texts with ablate --suite kv-slots"
            )
        writing = [name for name in self.benchmarks if Benchmark(name).is_written]
        if writing and change.needs_whole_text and self.cache != "none":
            raise UserError(f"{change.name} needs whole texts: {writing[0]} needs --cache none")


def _there(option: str, path: str) -> Path:
    folder = folder_of(option, path)
    if not folder.exists():
        raise UserError(f"{option} '{path}' does not exist; give a folder")
    return folder


def run(options: Evaluate) -> str:
    """Evaluates all models; returns the paths of the scores as text."""
    out, subjects = folder_of("--out", options.out), options.subjects()
    os.environ.setdefault("TQDM_DISABLE", "1")  # this package shows its bars
    asked, skipped = _asked(options)
    from dualpath_cli.evaluation import runner, tables
    from dualpath_cli.evaluation.harness import HarnessModel
    from dualpath_cli.report.console import plain_console
    from dualpath_cli.report.table import show
    from dualpath_cli.run.weights import autocast_of, device_of, load_model

    if options.requests:
        return "\n".join(str(runner.write_requests(one, out)) for one in asked)
    console = plain_console()
    for name, reason in skipped.items():
        console.print(f"{name}: left out, {reason}", highlight=False, soft_wrap=True)
    own = {one.benchmark.name for one in asked if one.whole}
    reports, written = [], []
    for subject in subjects:
        trained = subject.trained
        model = HarnessModel(
            load_model(trained, device_of(options.device)), trained.tokenizer(),
            min(options.window, trained.settings.model.max_seq_len), options.batch_size,
            read_overrides(options), autocast_of(options.precision), options.cache == "exact",
        )  # fmt: skip
        facts, folder = subject.facts(options), out / subject.name
        report = runner.run(model, asked, folder, {"model": facts, "skipped": skipped}, console)
        show(console, tables.score_table(facts, report, options.paper_row(subject), own))
        written.append(str(folder / "results.json"))
        reports.append(report)
    if len(reports) > 1:
        rows = tables.compare([subject.name for subject in subjects], reports)
        show(console, tables.comparison_table(rows))
        records = [without_nan(asdict(row)) for row in rows]
        write_text(out / "comparison.json", json.dumps(records, indent=2) + "\n")
        write_text(out / "comparison.csv", format_csv(records))
        written.append(str(out / "comparison.csv"))
    return "\n".join(written)


def _asked(options: Evaluate) -> tuple[list["Asked"], dict[str, str]]:
    """All benchmarks with their documents, and the reasons for leaving out others of a suite."""
    sources, data = options.texts(), [_there("--data", path) for path in options.data]
    changes, skipped = {}, {}
    for name in options.benchmarks:
        try:
            if name not in sources:
                changes[name] = Benchmark(name).local(data)
        except NoData as missing:
            skipped[name] = missing
    if skipped and (options.tasks or not (sources or changes)):
        raise next(iter(skipped.values()))
    from dualpath_cli.evaluation.runner import ask, ask_text

    asked = [ask_text(name, spec, options.documents) for name, spec in sources.items()]
    for name, changed in changes.items():
        try:
            asked.append(ask(Benchmark(name), changed, options.documents))
        except NoData as missing:
            skipped[name] = missing
    if skipped and (options.tasks or not asked):
        raise next(iter(skipped.values()))
    return asked, {name: str(missing) for name, missing in skipped.items()}
