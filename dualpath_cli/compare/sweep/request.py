"""The options of `dualpath sweep`, read and checked. Torch-free."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import folder_of, unfinished
from dualpath_cli.base.ranges import Place, check_range, check_ranges, parse_size
from dualpath_cli.compare.sweep.cells import CONTROLS, Wanted
from dualpath_cli.flops.widths import Match
from dualpath_cli.recipe import recipes
from dualpath_cli.recipe.keys import DECIDED_BY_SWEEP, FREE
from dualpath_cli.recipe.recipes import Recipe
from dualpath_cli.run.run_folder import RECIPE, VERSIONS, complete_checkpoints
from dualpath_cli.spec.config import RANGES

T = TypeVar("T")
N = TypeVar("N", int, float)

MOST_SEEDS = 100  # so that a slip of the hand plans no million runs
WRITTEN = (
    *("model.block", "model.loops", "model.d_ffn", "model.d_ffn_wide"),
    *("run.recipe", "run.name", "run.dir", "run.budget", "seed_everything"),
)
"""Keys that the sweep writes for each run: an option for one would be overwritten."""
DATA = ("data.path", "data.val")  # the beginnings of keys that decide what is read
# in OUT: the request, and a lock while runs are started
SWEEP, LOCK = "sweep.yaml", "sweep.lock"

Varied = dict[str, list[Any]]  # the values of each key that --set varies


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Solves the widths of dual-path models and their controls for a FLOP budget,
    writes a recipe for each run, shows the cost, and trains with --yes. The same
    command continues an interrupted sweep. Lists are separated by commas.
    """

    config: tuple[Place, ...] = field(metadata={"each": True})
    """Recipe with backbone, data, tokens and all other shared settings; of several,
    later ones win."""
    budget: str
    """FLOPs per token and layer of each model, such as 4M; several make several
    sweeps."""
    alphas: str = "25,50,75"
    """Percent of a dual block's FLOPs in its deep path; none trains controls alone."""
    loops: str = "2,4"
    """Numbers K of loops, of dual and loop blocks alike."""
    controls: str = "wide,loop"
    """Controls beside the dual models, or none: wide is PureWide, loop PureLoop,
    expanded PureWide of K times the layers."""
    positions: bool = False
    """Where does a loop pay? Give one layer at a time a deep path, at each place in
    turn; all other layers are PureWide of equal FLOPs."""
    match: Match = "linear"
    """FLOPs that meet the budget: linear ones, or total ones with attention scores (the
    budget then grows by the passes of a dual block with the most loops)."""
    set: tuple[str, ...] = ()
    """Also vary a key of the recipe, such as optim.lr=1e-3,2e-3; repeated, all
    combinations. A key is varied only in blocks that it affects. A list is written in
    brackets."""
    seeds: str = "3"
    """Seeds of each configuration: 3 is 0, 1 and 2; 3-5 is 3, 4 and 5. A seed gives the
    same order of data in all."""
    out: Place
    """Folder of the sweep; the same options continue it, more seeds or values extend
    it."""
    jobs: int = 1
    """Runs at the same time. On CPUs they share the cores; on GPUs each takes the next
    GPU, and several share one where there are more runs than GPUs."""
    slurm: bool = False
    """Write a SLURM array, OUT/jobs.sbatch, of --jobs tasks at a time, and run
    nothing."""
    tflops: float | None = None
    """TFLOP/s that a run sustains, for the hours of the plan; by default they follow
    from the first run of each family, once it has begun."""
    yes: bool = False
    """Start the runs after the plan."""
    given: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_ranges(self, {"jobs": (1, 256), "tflops": (1e-9, 1e9)})
        for key in WRITTEN:
            if key in self.given:
                raise UserError(
                    f"--{key} has no effect: the sweep sets it in each run; leave it "
                    "out, and give --alphas, --loops, --controls, --budget, --seeds "
                    "and --out"
                )
        if self.slurm and self.yes:
            raise UserError(
                "--slurm runs nothing, and --yes starts the runs; leave one out"
            )


@dataclass(frozen=True)
class Design:
    recipe: Recipe  # the settings that all runs share
    options: Sweep
    wanted: Wanted
    varied: Varied
    seeds: range
    out: Path


def read(options: Sweep, recipe: Recipe) -> Design:
    """Reads the lists of the options, and checks them against the recipe."""
    out = folder_of("--out", options.out)
    _check_own(out)
    controls = dict(zip(CONTROLS, CONTROLS, strict=True))
    wanted = Wanted(
        budgets=_list(
            "budget", options.budget, lambda word: parse_size(word, ""), "sizes as 4M"
        ),
        alphas=_list(
            "alphas", options.alphas, _number(float, 1e-9, 99.999), "percents below 100"
        ),
        loops=_list(
            "loops", options.loops, _number(int, *RANGES["loops"]), "numbers from 1 on"
        ),
        controls=_list(
            "controls", options.controls, controls.__getitem__, ", ".join(CONTROLS)
        ),
        match=options.match,
        positions=options.positions,
    )
    if wanted.positions and "expanded" in wanted.controls:
        raise UserError(
            "--positions goes with the controls wide and loop alone, not expanded; "
            "leave it out of --controls"
        )
    if not recipe.get("data", {}).get("val"):
        raise UserError(
            "the recipe has no validation sets, by which models are compared; give "
            "one: --data.val.NAME FILE_OR_FOLDER"
        )
    varied = _varied(options.set, recipe)
    return Design(recipe, options, wanted, varied, _seeds(options.seeds), out)


def _check_own(out: Path) -> None:
    """Checks that a folder is a sweep's, empty or new, and no part of a run."""
    here, another = out.resolve(), "give a new or an empty folder"
    for folder in (here, *here.parents):
        begun = (folder / RECIPE).is_file() and (folder / VERSIONS).is_file()
        if begun or complete_checkpoints(folder):
            raise UserError(
                f"--out {out}: '{folder}' is the folder of a run; {another}"
            )
    if not here.is_dir():
        return
    sweep = here / SWEEP
    text = (
        sweep.read_text(encoding="utf-8", errors="replace") if sweep.is_file() else ""
    )
    if any(line.startswith("cells:") for line in text.splitlines()):
        return  # a sweep's; files of this name by other tools have no cells
    # A sweep locks its folder and writes sweep.yaml before all else.
    if others := {*here.iterdir()}.difference([here / LOCK, *unfinished(sweep)]):
        raise UserError(
            f"--out {out} holds '{min(others).name}', but no {SWEEP} of a sweep; "
            f"{another}"
        )


def _list(option: str, text: str, read_one: Callable[[str], T], wanted: str) -> list[T]:
    """The values of a list, each once; `none` is an empty list, where that is
    allowed."""
    none = option in ("alphas", "controls")
    if none and text == "none":
        return []
    try:
        return list(dict.fromkeys(read_one(word.strip()) for word in text.split(",")))
    except (ValueError, KeyError, UserError):
        wanted += ", separated by commas" + (", or none" if none else "")
        raise UserError(f"--{option} must be {wanted}, not '{text:.60}'") from None


def _number(kind: type[N], least: float, most: float) -> Callable[[str], N]:
    """A reader of a number in a range, which may end in a percent sign."""

    def read_one(word: str) -> N:
        value = kind(word.removesuffix("%"))
        check_range("it", value, (least, most))
        return value

    return read_one


def _seeds(text: str) -> range:
    first, dash, last = text.partition("-")
    try:
        seeds = range(int(first), int(last) + 1) if dash else range(int(text))
        if seeds and seeds[0] >= 0 and seeds[-1] < MOST_SEEDS:
            return seeds
    except ValueError:
        pass
    raise UserError(
        "--seeds must be a number of them such as 3, or the first and the last such as "
        f"3-5, below {MOST_SEEDS}, not '{text:.60}'"
    )


def _varied(words: Sequence[str], recipe: Recipe) -> Varied:
    """The keys and values of --set, unchecked; values of a key that is given twice add
    up.

    A key that decides no numbers has one value, which is put into the recipe.
    """
    varied: Varied = {}
    for word in words:
        key, equals, text = word.partition("=")
        section, _, name = key.partition(".")
        listed = recipes.parse_recipe(f"values: [{text}]", f"of --set '{word:.60}'")
        values = listed["values"]
        if key in DECIDED_BY_SWEEP:
            raise UserError(
                f"--set {key}: the sweep decides it, or solves its widths for it; "
                "--alphas, --loops, --budget and --seeds say how, or give a sweep for "
                "each"
            )
        if not (equals and name and values):
            raise UserError(
                f"--set needs KEY=A,B,... such as optim.lr=1e-3,2e-3, not '{word:.60}'"
            )
        if key.startswith(DATA):
            why = "runs that read other data cannot be compared"
            raise UserError(f"--set {key}: {why}; give a sweep for each")
        if key in FREE:
            if len(values) > 1:
                raise UserError(
                    f"--set {key}: it decides no numbers of a run; give one value"
                )
            recipe.setdefault(section, {})[name] = values[0]
            continue
        if key == "optim.lr":
            values = _list(
                "set optim.lr",
                ",".join(map(str, values)),
                _number(float, 1e-12, 1e9),
                "rates above 0",
            )
        together = [*varied.get(key, []), *values]
        varied[key] = list({repr(value): value for value in together}.values())
    return varied
