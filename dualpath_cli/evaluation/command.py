"""`dualpath evaluate`: options and checks without slow imports, then the model."""

import importlib.util
import os
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
    from dualpath_cli.evaluation.runner import Asked


@dataclass(frozen=True, kw_only=True)
class Evaluate(DeviceOptions, OwnClasses, Overrides):
    """Scores a model on multiple choice, worked answers and texts, rendered as in
    OLMES: accuracies and bits per byte. Needs dualpath[eval].

    Texts get rolling_bpb: each window starts after the preceding token; in validate it
    starts after end-of-text.
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
            raise UserError(
                "evaluate needs either --ckpt-path RUN, or --requests alone"
            )
        if self.requests and self.out is None:
            raise UserError("--requests needs a folder to write to: --out DIR")
        known = (*SUITES, *NAMES)
        for name in self._named:
            if name not in known:
                hint = did_you_mean(name, known) or f"; choose from {', '.join(known)}"
                raise UserError(f"unknown benchmark '{name}'{hint}")

    @property
    def _named(self) -> list[str]:
        return [name for words in self.tasks for name in words.split(",")]

    @property
    def benchmarks(self) -> tuple[str, ...]:
        found = {
            name
            for word in self._named or ["all"]
            for name in SUITES.get(word, (word,))
        }
        return tuple(name for name in NAMES if name in found)

    @property
    def documents(self) -> int | None:
        if self.limit is None:
            return None if self.tasks else PAPER_LIMIT
        return None if self.limit == "all" else self.limit

    def trained(self) -> Trained | None:
        """The model; None with --requests."""
        change, found = read_overrides(self), None
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
        if self.out is not None:
            out = folder_of("--out", self.out)
            folder = out
            if trained is not None:
                folder = check_inside(out, out / _name_of(trained))
        else:
            assert trained is not None
            way_out = "remove the link, or give a folder by --out"
            run = trained.run.folder
            folder = check_inside(run, run / FOLDER / _name_of(trained), way_out)
        check_inside(folder, folder / (REQUESTS if trained is None else SAMPLES))
        return folder

    def facts(self, trained: Trained) -> dict[str, Any]:
        """The section `model` of results.json: the model, and how it was run."""
        from dualpath_cli.kernels.device import device_name
        from dualpath_cli.run.weights import device_of

        run, recipe, change = trained.run, trained.settings, read_overrides(self)
        return {
            "name": _name_of(trained),
            "path": trained.path,
            "run": f"{recipe.run.recipe}/{recipe.run.name}",
            "step": run.step,
            "checkpoint": str(run.checkpoint),
            "sha256": hash_of_weights(run.checkpoint),
            "model": asdict(recipe.model),
            "loops": (change and change.loops) or recipe.model.loops,
            "intervention": change.name if change else "learned",
            "device": device_name(device_of(self.device)),
            "precision": self.precision,
            "batch_size": self.batch_size,
            "window": min(self.window, recipe.model.max_seq_len),
            "versions": package_versions(("dualpath", "torch", "lm_eval")),
        }


def _name_of(trained: Trained) -> str:
    run = trained.settings.run
    return f"{run.recipe}-{run.name}-step-{trained.run.step:08d}"


def run(options: Evaluate) -> str:
    trained = options.trained()
    folder = options.folder(trained)
    os.environ.setdefault("TQDM_DISABLE", "1")  # this package shows its bars
    asked, skipped = _asked(options)
    from dualpath_cli.evaluation import runner
    from dualpath_cli.evaluation.harness import HarnessModel
    from dualpath_cli.report.console import plain_console
    from dualpath_cli.report.table import show
    from dualpath_cli.run.weights import autocast_of, device_of, load_model

    if trained is None:
        return "\n".join(str(runner.write_requests(one, folder)) for one in asked)
    console = plain_console()
    for name, reason in skipped.items():
        console.print(f"{name}: left out, {reason}", highlight=False, soft_wrap=True)
    facts = options.facts(trained)
    model = HarnessModel(
        load_model(trained, device_of(options.device)),
        trained.run.tokenizer,
        facts["window"],
        options.batch_size,
        read_overrides(options),
        autocast_of(options.precision),
    )
    report = runner.run(
        model, asked, folder, {"model": facts, "skipped": skipped}, console
    )
    show(console, score_table(facts, report))
    return str(folder / RESULTS)


def _asked(options: Evaluate) -> tuple[list["Asked"], dict[str, str]]:
    """The benchmarks with their documents; and the reasons for those that are left
    out."""
    data = [folder_of("--data", path) for path in options.data]
    if absent := next((path for path in data if not path.exists()), None):
        raise UserError(f"--data '{absent}' does not exist; give a folder")
    changes, skipped = {}, {}
    for name in options.benchmarks:
        try:
            changes[name] = Benchmark(name).local(data)
        except NoData as missing:
            skipped[name] = missing
    if skipped and (options.tasks or not changes):
        raise next(iter(skipped.values()))
    from dualpath_cli.evaluation.runner import ask

    asked = []
    for name, changed in changes.items():
        try:
            asked.append(ask(Benchmark(name), changed, options.documents))
        except NoData as missing:
            skipped[name] = missing
    if skipped and (options.tasks or not asked):
        raise next(iter(skipped.values()))
    return asked, {name: str(missing) for name, missing in skipped.items()}
