"""`dualpath evaluate`: options and checks without slow imports, then the model."""

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dualpath_cli.base.errors import UserError, did_you_mean
from dualpath_cli.base.files import folder_of
from dualpath_cli.base.folders import check_inside
from dualpath_cli.base.ranges import Place, check_ranges
from dualpath_cli.base.version import package_versions
from dualpath_cli.decoding.options import DeviceOptions, Overrides, read_overrides
from dualpath_cli.evaluation.benchmarks import (
    FOLDER,
    NAMES,
    PAPER_LIMIT,
    REQUESTS,
    RESULTS,
    SAMPLES,
    SUITES,
    Benchmark,
    NoData,
    score_table,
)
from dualpath_cli.run.exported_folder import hash_of_weights
from dualpath_cli.run.trained import Trained, find_trained
from dualpath_cli.spec.own_checks import OwnClasses

if TYPE_CHECKING:
    from dualpath_cli.evaluation.runner import LoadedTask


@dataclass(frozen=True, kw_only=True)
class Evaluate(DeviceOptions, OwnClasses, Overrides):
    """Scores a model on multiple choice, worked answers and texts, rendered as in
    OLMES: accuracies and bits per byte. Needs dualpath[eval].

    Texts get rolling_bpb: each window starts after the preceding token; in validate it
    starts after end-of-text.

      dualpath evaluate --ckpt-path runs/quickstart/default --tasks piqa --limit 100
    """

    ckpt_path: Place | None = None
    """A run folder, a checkpoint inside one, or an exported folder."""
    out: Place | None = None
    """Folder for the scores; by default RUN/evaluations, where compare finds them."""
    tasks: tuple[str, ...] = ()
    """Benchmarks, such as piqa,arc_easy, and groups of them: lm, commonsense, math, qa,
    all. By default all, with at most 1,024 documents of each, as in the paper."""
    data: tuple[Place, ...] = ()
    """Folders with TASK.jsonl, and few-shot examples as TASK.fewshot.txt or
    TASK_train.jsonl; without --data, benchmarks are downloaded from the Hugging Face
    hub."""
    limit: int | Literal["all"] | None = None
    """The most documents of each benchmark, drawn as in OLMES; or all."""
    requests: bool = False
    """Write all requests into --out, without running a model."""
    window: int = 2048
    """The most tokens that the model sees at once; the model's length if that is
    smaller."""
    batch_size: int = 16
    """Requests in a batch; scores change slightly with the batch size."""

    def __post_init__(self) -> None:
        Overrides.__post_init__(self)
        DeviceOptions.__post_init__(self)
        check_ranges(self, {"window": (2, 1 << 24), "batch_size": (1, 1 << 16)})
        if self.limit != "all":
            check_ranges(self, {"limit": (1, 1 << 40)})
        if (self.ckpt_path is not None) == self.requests:
            raise UserError("evaluate needs either --ckpt-path RUN, or only --requests")
        if self.requests and self.out is None:
            raise UserError("--requests needs a folder to write to: --out DIR")
        known = (*SUITES, *NAMES)
        for name in self._names:
            if name not in known:
                hint = did_you_mean(name, known) or f"; choose from {', '.join(known)}"
                raise UserError(f"unknown benchmark '{name}'{hint}")

    @property
    def _names(self) -> list[str]:
        """The benchmarks and suites in --tasks, which may be joined by commas."""
        return [name for joined in self.tasks for name in joined.split(",")]

    @property
    def benchmarks(self) -> tuple[str, ...]:
        """The chosen benchmarks, in the order of the paper's table."""
        chosen: set[str] = set()
        for name in self._names or ["all"]:
            chosen |= set(SUITES.get(name, (name,)))
        return tuple(name for name in NAMES if name in chosen)

    @property
    def documents(self) -> int | None:
        """The most documents of each benchmark; None for all."""
        if self.limit == "all":
            return None
        if self.limit is None and not self.tasks:
            return PAPER_LIMIT
        return self.limit

    def trained(self) -> Trained | None:
        """The model; None with --requests."""
        change = read_overrides(self)
        found = None
        if self.ckpt_path is not None:
            found = find_trained(self.ckpt_path, own_classes=self.own_classes)
            found.check(change)

        if change is not None and change.kv_slots is not None:
            raise UserError(
                f"{change.name}: evaluate reads a text in one pass, so tokens see each "
                "other in every step; score texts with ablate --suite kv-slots"
            )

        if importlib.util.find_spec("lm_eval") is None:
            raise UserError("evaluate needs lm_eval: pip install 'dualpath[eval]'")
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
            way_out = "remove the link, or give a folder by --out"
            run = trained.run.folder
            folder = check_inside(run, run / FOLDER / name, way_out)
        check_inside(folder, folder / SAMPLES)
        return folder

    def facts(self, trained: Trained) -> dict[str, Any]:
        """The section `model` of results.json: the model, and how it was run."""
        from dualpath_cli.kernels.device import device_name
        from dualpath_cli.run.weights import device_of

        run = trained.run
        recipe = trained.settings
        change = read_overrides(self)
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
            "loops": (change and change.loops) or recipe.model.loops,
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
    trained = options.trained()
    folder = options.folder(trained)
    os.environ.setdefault("TQDM_DISABLE", "1")  # this package shows its bars
    tasks, skipped = _load_tasks(options)

    from dualpath_cli.evaluation.harness import HarnessModel
    from dualpath_cli.evaluation.runner import score_tasks, write_requests
    from dualpath_cli.report.console import plain_console
    from dualpath_cli.report.table import show
    from dualpath_cli.run.weights import autocast_of, device_of, load_model

    if trained is None:
        return "\n".join(str(write_requests(task, folder)) for task in tasks)

    console = plain_console()
    for name, reason in skipped.items():
        console.print(f"{name}: left out, {reason}", highlight=False, soft_wrap=True)

    model_facts = options.facts(trained)
    model = HarnessModel(
        load_model(trained, device_of(options.device)),
        trained.run.tokenizer,
        model_facts["window"],
        options.batch_size,
        read_overrides(options),
        autocast_of(options.precision),
    )
    facts = {"model": model_facts, "skipped": skipped}
    report = score_tasks(model, tasks, folder, facts, console)
    show(console, score_table(model_facts, report))
    return str(folder / RESULTS)


def _load_tasks(options: Evaluate) -> tuple[list["LoadedTask"], dict[str, str]]:
    """The benchmarks with their documents; and the reasons for those that are left
    out."""
    data = [folder_of("--data", path) for path in options.data]
    for path in data:
        if not path.exists():
            raise UserError(f"--data '{path}' does not exist; give a folder")

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


def _check_skipped(
    options: Evaluate, skipped: Mapping[str, NoData], remaining: int
) -> None:
    """Raises the first NoData if the benchmark was named, or none remains."""
    for missing in skipped.values():
        if options.tasks or not remaining:
            raise missing
