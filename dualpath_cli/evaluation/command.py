"""`dualpath evaluate`: options and checks without slow imports, then the model."""

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import folder_of
from dualpath_cli.base.folders import check_inside, folder_inside
from dualpath_cli.base.ranges import Place, check_ranges
from dualpath_cli.base.version import device_name, package_versions
from dualpath_cli.decoding.options import DeviceOptions, Overrides, read_overrides
from dualpath_cli.evaluation.benchmarks import (
    FOLDER,
    HARNESS,
    NAMES,
    PAPER_LIMIT,
    REQUESTS,
    RESULTS,
    SAMPLES,
    SUITES,
    Benchmark,
    NoData,
    Report,
)
from dualpath_cli.run.exported_folder import hash_of_weights
from dualpath_cli.run.trained import Trained, find_trained
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.intervention import Intervention, parse_loops
from dualpath_cli.spec.own_checks import OwnClasses

if TYPE_CHECKING:
    from dualpath_cli.evaluation.depths import Depth
    from dualpath_cli.evaluation.harness_tasks import HarnessTask
    from dualpath_cli.evaluation.runner import LoadedTask


@dataclass(frozen=True, kw_only=True)
class Evaluate(DeviceOptions, OwnClasses, Overrides):
    """Scores a model on multiple choice, worked answers and texts, rendered as in
    OLMES: accuracies and bits per byte. Needs the extra eval.

    Texts get rolling_bpb: each window starts after the preceding token; in validate it
    starts after end-of-text. With several --loops all is scored at each depth, on the
    same requests.

      dualpath evaluate --ckpt-path runs/quickstart/default --tasks piqa --limit 100
      dualpath evaluate --ckpt-path runs/quickstart/default --tasks primitives \\
          --limit 20 --loops 1 2 3
    """

    ckpt_path: Place | None = None
    """A run folder, a checkpoint inside one, or an exported folder."""
    out: Place | None = None
    """Folder for the scores; by default RUN/evaluations, where compare finds them."""
    tasks: tuple[str, ...] = ()
    """Benchmarks, such as piqa,arc_easy, and groups of them: lm, commonsense, math, qa,
    all; by default all. primitives are sums and variable assignments made from a seed,
    by levels: addition_2, assignment_4. Any other name is a task or group of
    lm-evaluation-harness, scored by its own rules; so is harness:piqa."""
    include_path: tuple[Place, ...] = ()
    """Folders with more task files of lm-evaluation-harness, for --tasks."""
    loops: tuple[str, ...] = ()
    """Loops to force: R of a model with a core, else K of every deep path. Several,
    such as 1 2 4 or 1-8, are compared with the model's own, which is always scored,
    too."""
    data: tuple[Place, ...] = ()
    """Folders with TASK.jsonl, and few-shot examples as TASK.fewshot.txt or
    TASK_train.jsonl; without --data, benchmarks are downloaded from the Hugging Face
    hub."""
    limit: int | Literal["all"] | None = None
    """The most documents of each benchmark, drawn as in OLMES; by default 1,024, as in
    the paper. Of a task of the harness, the first N documents; by default every one.
    all takes every document."""
    requests: bool = False
    """Write all requests into --out, without running a model."""
    window: int = 2048
    """The most tokens that the model sees at once; the model's length if that is
    smaller."""
    batch_size: int = 16
    """Requests in a batch; scores change slightly with the batch size."""

    def __post_init__(self) -> None:
        DeviceOptions.__post_init__(self)
        check_ranges(self, {"window": (2, 1 << 24), "batch_size": (1, 1 << 16)})
        if self.limit != "all":
            check_ranges(self, {"limit": (1, 1 << 40)})
        if (self.ckpt_path is not None) == self.requests:
            raise UserError("evaluate needs either --ckpt-path RUN, or only --requests")
        if self.requests and self.out is None:
            raise UserError("--requests needs a folder to write to: --out DIR")
        if self.requests and (self.loops or self.intervention):
            raise UserError(
                "--requests runs no model: leave out --loops and --intervention"
            )
        if self.include_path and not self.harness_names:
            raise UserError(
                "--include-path adds tasks of lm-evaluation-harness; name one in "
                "--tasks"
            )
        if self.requests and self.harness_names:
            raise UserError(
                "--requests writes only requests of the built-in benchmarks, not of "
                f"'{self.harness_names[0]}'; use lm_eval with --write_out"
            )

    @property
    def names(self) -> list[str]:
        """The benchmarks and suites in --tasks, which may be joined by commas."""
        names = [name.strip() for joined in self.tasks for name in joined.split(",")]
        # A comma may end the names; commas alone name no benchmark, and are refused.
        return [name for name in names if name] or names

    @property
    def benchmarks(self) -> tuple[str, ...]:
        """The chosen benchmarks, in the order of the paper's table."""
        chosen: set[str] = set()
        for name in self.names or ["all"]:
            chosen |= set(SUITES.get(name, (name,)))
        return tuple(name for name in NAMES if name in chosen)

    @property
    def harness_names(self) -> tuple[str, ...]:
        """The chosen tasks and groups of lm-evaluation-harness, by its own names."""
        own = (*SUITES, *NAMES)
        names = [
            name.removeprefix(f"{HARNESS}:") for name in self.names if name not in own
        ]
        return tuple(dict.fromkeys(names))

    def depths(self, model: ModelConfig) -> list["Depth"]:
        """The depths to score, the model's own first; one, unless there are several
        --loops."""
        from dualpath_cli.evaluation.depths import Depth, own_loops, symbol_of

        counts = parse_loops(",".join(self.loops)) if self.loops else []
        symbol = symbol_of(model)
        depths = []
        for count in counts:
            change = read_overrides(self, f"{symbol}={count}")
            depths.append(Depth(symbol, count, is_own=False, change=change))
        if len(depths) == 1:
            return depths

        own = own_loops(model)
        as_trained = Depth(symbol, own, is_own=True, change=read_overrides(self))
        return [as_trained, *(depth for depth in depths if depth.loops != own)]

    @property
    def documents(self) -> int | None:
        """The most documents of each benchmark; None for all."""
        if self.limit == "all":
            return None
        return PAPER_LIMIT if self.limit is None else self.limit

    @property
    def harness_documents(self) -> int | None:
        """The first documents of each task of the harness; None for all."""
        return None if self.limit == "all" else self.limit

    def trained(self) -> Trained | None:
        """The model; None with --requests."""
        change = read_overrides(self)
        found = None
        if self.ckpt_path is not None:
            found = find_trained(self.ckpt_path, own_classes=self.own_classes)
            for depth in self.depths(found.settings.model):
                found.check(depth.change)

        if change is not None and change.kv_slots is not None:
            raise UserError(
                f"{change.name}: evaluate reads a text in one pass, so tokens see each "
                "other in every step; score texts with ablate --suite kv-slots"
            )

        if importlib.util.find_spec("lm_eval") is None:
            raise UserError(
                "evaluate needs lm_eval: in the clone, pip install '.[eval]'"
            )
        return found

    def folder(self, trained: Trained | None) -> Path:
        """The folder to write to; --out itself without a model.

        Raises UserError if a link leads out of it, or out of --out or RUN on the way to
        it.
        """
        if trained is None:
            assert self.out is not None
            folder = folder_of("--out", self.out)
            check_inside(folder, folder / REQUESTS)
            return folder

        name = _model_name(trained)
        if self.out is not None:
            out = folder_of("--out", self.out)
            folder = check_inside(out, out / name)
        else:
            folder = folder_inside(trained.run.folder, FOLDER, name)

        depths = self.depths(trained.settings.model)
        for place in (folder, *(folder / depth.name for depth in depths[1:])):
            check_inside(folder, place / SAMPLES / HARNESS)
        return folder

    def facts(self, trained: Trained, change: Intervention | None) -> dict[str, Any]:
        """The section `model` of results.json: the model, and how it was run."""
        from dualpath_cli.run.weights import device_of

        run = trained.run
        recipe = trained.settings
        trained_loops = recipe.model.loops if recipe.model.deep_layers else 1
        core = {}
        if recipe.model.core is not None:
            forced = change and change.core_loops
            core["core_loops"] = forced or recipe.model.core_loops
        return {
            "name": _model_name(trained),
            "path": trained.path,
            "run": f"{recipe.run.recipe}/{recipe.run.name}",
            "step": run.step,
            "checkpoint": str(run.checkpoint),
            "sha256": hash_of_weights(run.checkpoint),
            "model": asdict(recipe.model),
            "loops": (change and change.loops) or trained_loops,
            **core,
            "intervention": change.name if change else "learned",
            "device": device_name(device_of(self.device)),
            "precision": self.precision,
            "batch_size": self.batch_size,
            "window": min(self.window, recipe.model.max_seq_len),
            "versions": package_versions(("dualpath", "torch", "lm_eval")),
        }


def _model_name(trained: Trained) -> str:
    run = trained.settings.run
    return f"{run.recipe}-{run.name}-step-{trained.run.step:08d}"


def evaluate(options: Evaluate) -> str:
    """Scores a model, or writes requests; returns the paths of the results."""
    from dualpath_cli.report.console import plain_console, print_line

    trained = options.trained()
    folder = options.folder(trained)
    os.environ.setdefault("TQDM_DISABLE", "1")  # this package shows its bars
    harness_tasks = _load_harness_tasks(options)
    benchmarks, skipped = _load_benchmarks(options)
    console = plain_console(goes_on=True)
    for name, reason in skipped.items():
        print_line(console, f"{name}: left out, {reason}")

    if trained is None:
        from dualpath_cli.evaluation.runner import write_requests

        return "\n".join(str(write_requests(task, folder)) for task in benchmarks)

    return _score(options, trained, folder, [*benchmarks, *harness_tasks], skipped)


def _score(
    options: Evaluate,
    trained: Trained,
    folder: Path,
    tasks: Sequence["LoadedTask | HarnessTask"],
    skipped: Mapping[str, str],
) -> str:
    """Scores the tasks at each depth; writes and prints the results."""
    from dualpath_cli.evaluation.depths import (
        compare_depths,
        depth_tables,
        write_depths,
    )
    from dualpath_cli.evaluation.harness import HarnessModel
    from dualpath_cli.evaluation.harness_report import report_tables
    from dualpath_cli.evaluation.harness_tasks import HarnessTask
    from dualpath_cli.evaluation.runner import score_tasks
    from dualpath_cli.report.console import plain_console, print_line
    from dualpath_cli.report.table import show
    from dualpath_cli.run.weights import autocast_of, device_of, load_model

    console = plain_console(goes_on=True)
    model = HarnessModel(
        load_model(trained, device_of(options.device)),
        trained.run.tokenizer,
        min(options.window, trained.settings.model.max_seq_len),
        options.batch_size,
        autocast=autocast_of(options.precision),
    )
    most = model.longest_answer
    for task in tasks:
        if isinstance(task, HarnessTask) and task.longest_answer > most:
            print_line(
                console,
                f"{task.title}: answers end after {most:,} tokens, half of the window, "
                f"not after {task.longest_answer:,}; scores may differ from the "
                "harness's",
            )

    depths = options.depths(trained.settings.model)
    facts = [
        {"model": options.facts(trained, depth.change), "skipped": skipped}
        for depth in depths
    ]
    reports: list[Report] = []
    for depth, own_facts in zip(depths, facts, strict=True):
        place = folder / depth.name if reports else folder
        name = depth.name if len(depths) > 1 else ""
        model.force(depth.change)
        reports.append(score_tasks(model, tasks, place, own_facts, console, name))

    first = facts[0]["model"]
    if len(depths) == 1:
        for table in report_tables(first, reports[0]):
            show(console, table)
        return str(folder / RESULTS)

    scores = compare_depths(depths, reports)
    for table in depth_tables(first["name"], depths, scores):
        show(console, table)
    return str(write_depths(folder, facts[0], depths, scores))


def _load_harness_tasks(options: Evaluate) -> list["HarnessTask"]:
    """The harness's own tasks; an unknown name is refused before benchmarks are
    read."""
    folders = _folders("--include-path", options.include_path)
    if not options.harness_names:
        return []

    from dualpath_cli.evaluation.harness_tasks import load_harness_tasks

    return load_harness_tasks(options.harness_names, folders, options.harness_documents)


def _load_benchmarks(
    options: Evaluate,
) -> tuple[list["LoadedTask"], dict[str, str]]:
    """The benchmarks with their documents; and the reasons for those that are left
    out."""
    data = _folders("--data", options.data)

    # Missing files are found before the slow import.
    changes: dict[str, dict[str, Any]] = {}
    skipped: dict[str, NoData] = {}
    for name in options.benchmarks:
        try:
            changes[name] = Benchmark(name).local(data)
        except NoData as missing:
            skipped[name] = missing
    _check_skipped(options, skipped, remaining=len(changes))

    from dualpath_cli.evaluation.runner import load_task

    tasks = []
    for name, task_changes in changes.items():
        try:
            tasks.append(load_task(Benchmark(name), task_changes, options.documents))
        except NoData as missing:
            skipped[name] = missing
    _check_skipped(options, skipped, remaining=len(tasks))

    return tasks, {name: str(missing) for name, missing in skipped.items()}


def _folders(option: str, paths: Sequence[str]) -> list[Path]:
    folders = [folder_of(option, path) for path in paths]
    for path in folders:
        if not path.exists():
            raise UserError(f"{option} '{path}' does not exist; give a folder")
    return folders


def _check_skipped(
    options: Evaluate, skipped: Mapping[str, NoData], remaining: int
) -> None:
    """Raises the first NoData of a benchmark that was named itself, or if none
    remains."""
    for name, missing in skipped.items():
        if name in options.names or not remaining:
            raise missing
