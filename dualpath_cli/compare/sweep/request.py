"""The options of `dualpath sweep`, read and checked. Torch-free."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import find_unfinished, folder_of
from dualpath_cli.base.ranges import Place, check_ranges, parse_size
from dualpath_cli.compare.sweep.cells import CONTROLS, Grid
from dualpath_cli.flops.widths import FlopMatch
from dualpath_cli.recipe import recipes
from dualpath_cli.recipe.keys import DECIDED_BY_SWEEP, FREE
from dualpath_cli.recipe.recipes import Recipe, merge, nested
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
SWEEP = "sweep.yaml"  # in OUT: the request
LOCK = "sweep.lock"  # in OUT, while runs are started

Varied = dict[str, list[Any]]  # the values of each key that --set varies


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Solves the widths of dual-path models and their controls for a FLOP budget,
    writes a recipe for each run, shows the cost, and trains with --yes. The same
    command continues an interrupted sweep. Lists are separated by commas.

      dualpath sweep --config quickstart --budget 1M --alphas 50 --loops 3 \\
          --seeds 3 --out sweeps/first
    """

    config: tuple[Place, ...] = field(metadata={"each": True})
    """Recipe with backbone, data, tokens and all other shared settings; of several,
    later ones win."""
    budget: str
    """FLOPs per token and layer of each model, such as 4M; several make several
    sweeps."""
    alphas: str = "25,50,75"
    """Percent of a dual block's FLOPs in its deep path; none trains only controls."""
    loops: str = "2,4"
    """Numbers of loops: K of dual and loop blocks, and R of the control core."""
    controls: str = "wide,loop"
    """Controls beside the dual models, or none: wide is PureWide, loop PureLoop, core
    PureWide whose middle half is applied R times, at equal FLOPs and at equal
    parameters, expanded PureWide of K times the layers."""
    positions: bool = False
    """Give a deep path to one layer at a time, each layer in turn, to find where a loop
    pays; all other layers are PureWide of equal FLOPs."""
    match: FlopMatch = "linear"
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
    """Folder of the sweep; the same options continue it, more seeds extend it."""
    jobs: int = 1
    """Runs at the same time. On CPUs they share the cores; on GPUs each takes the next
    GPU, and several share one where there are more runs than GPUs."""
    slurm: bool = False
    """Write a SLURM array, OUT/jobs.sbatch, of --jobs tasks at a time, and run
    nothing."""
    tflops: float | None = None
    """TFLOP/s that a run sustains, from which the plan computes hours; by default the
    speed of the first run of each family, once it has begun."""
    yes: bool = False
    """Start the runs after the plan."""
    given: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_ranges(self, {"jobs": (1, 256), "tflops": (1e-9, 1e9)})
        for key in WRITTEN:
            if key in self.given:
                raise UserError(
                    f"--{key} has no effect: the sweep sets this key in each run; "
                    "leave it out, and use the sweep's --budget, --alphas, --loops, "
                    "--controls, --seeds or --out"
                )
        if self.slurm and self.yes:
            raise UserError(
                "--slurm runs nothing, and --yes starts the runs; leave one out"
            )


@dataclass(frozen=True)
class Design:
    """The request for a sweep, read and checked."""

    recipe: Recipe  # the settings that all runs share
    options: Sweep
    grid: Grid
    varied: Varied
    seeds: range
    out: Path


def read_request(options: Sweep, recipe: Recipe) -> Design:
    """Reads the lists of the options, and checks them against the recipe."""
    out = folder_of("--out", options.out)
    _check_own(out)
    grid = _grid(options)
    if not recipe.get("data", {}).get("val"):
        raise UserError(
            "the recipe has no validation sets, by which models are compared; give "
            "one: --data.val.NAME FILE_OR_FOLDER"
        )
    varied, fixed = _varied_and_fixed(options.set)
    for key, value in fixed.items():
        recipe = merge(recipe, nested(key, value))
    return Design(recipe, options, grid, varied, _seeds(options.seeds), out)


def _check_own(out: Path) -> None:
    """Checks that a folder is a sweep's, empty or new, and no part of a run."""
    here = out.resolve()
    another = "give a new or an empty folder"
    for folder in (here, *here.parents):
        begun = (folder / RECIPE).is_file() and (folder / VERSIONS).is_file()
        if begun or complete_checkpoints(folder):
            raise UserError(
                f"--out {out}: '{folder}' is the folder of a run; {another}"
            )

    if not here.is_dir() or _is_sweep(here):
        return
    # A sweep locks its folder and writes sweep.yaml before all else.
    of_sweep = [here / LOCK, *find_unfinished(here / SWEEP)]
    if others := {*here.iterdir()}.difference(of_sweep):
        raise UserError(
            f"--out {out} holds '{min(others).name}', but no {SWEEP} of a sweep; "
            f"{another}"
        )


def _is_sweep(folder: Path) -> bool:
    """Whether sweep.yaml lists cells; files of this name by other tools do not."""
    file = folder / SWEEP
    if not file.is_file():
        return False
    text = file.read_text(encoding="utf-8", errors="replace")
    return any(line.startswith("cells:") for line in text.splitlines())


def _grid(options: Sweep) -> Grid:
    grid = Grid(
        budgets=_list("budget", options.budget, parse_size, "sizes as 4M"),
        alphas=_list("alphas", options.alphas, _percent, "percents below 100"),
        loops=_list(
            "loops", options.loops, _number(int, *RANGES["loops"]), "numbers from 1 on"
        ),
        controls=_list("controls", options.controls, _control, ", ".join(CONTROLS)),
        match=options.match,
        positions=options.positions,
    )
    if grid.positions and "expanded" in grid.controls:
        raise UserError(
            "--positions does not go with the control expanded; leave it out of "
            "--controls"
        )
    return grid


def _list(
    option: str, text: str, read_word: Callable[[str], T], allowed: str
) -> list[T]:
    """The values of a list, each once; `none` is an empty list, where that is
    allowed."""
    may_be_empty = option in ("alphas", "controls")
    if may_be_empty and text == "none":
        return []

    try:
        values = [read_word(word.strip()) for word in text.split(",")]
    except ValueError:
        allowed += ", separated by commas"
        if may_be_empty:
            allowed += ", or none"
        raise UserError(f"--{option} must be {allowed}, not '{text:.60}'") from None
    return list(dict.fromkeys(values))


def _control(word: str) -> str:
    if word not in CONTROLS:
        raise ValueError(word)
    return word


def _percent(word: str) -> float:
    return _number(float, 1e-9, 99.999)(word.removesuffix("%"))


def _number(kind: type[N], least: float, most: float) -> Callable[[str], N]:
    """A reader of a number in a range."""

    def read_number(word: str) -> N:
        value = kind(word)
        if not least <= value <= most:
            raise ValueError(word)
        return value

    return read_number


def _seeds(text: str) -> range:
    first, dash, last = text.partition("-")
    try:
        seeds = range(int(first), int(last) + 1) if dash else range(int(text))
        if seeds and seeds[0] >= 0 and seeds[-1] < MOST_SEEDS:
            return seeds
    except ValueError:
        pass

    raise UserError(
        f"--seeds must be a count (3) or a range (3-5) below {MOST_SEEDS}, not "
        f"'{text:.60}'"
    )


def _varied_and_fixed(words: Sequence[str]) -> tuple[Varied, dict[str, Any]]:
    """The keys and values of --set, unchecked; values of a key that is given twice add
    up.

    A key that decides no numbers is fixed: it has one value, which all runs get.
    """
    varied: Varied = {}
    fixed: dict[str, Any] = {}
    for word in words:
        key, values = _key_and_values(word)
        if key in FREE:
            if len(values) > 1:
                raise UserError(
                    f"--set {key}: it changes no number of a run; give one value"
                )
            fixed[key] = values[0]
            continue

        together = [*varied.get(key, []), *values]
        # By their texts: True equals 1, but is another value.
        varied[key] = list({repr(value): value for value in together}.values())
    return varied, fixed


def _key_and_values(word: str) -> tuple[str, list[Any]]:
    """KEY=A,B,... of --set. Raises UserError for a key that no sweep can vary."""
    key, equals, text = word.partition("=")
    _, _, name = key.partition(".")
    listed = recipes.parse_recipe(f"values: [{text}]", f"of --set '{word:.60}'")
    values = listed["values"]
    if key in DECIDED_BY_SWEEP:
        raise UserError(
            f"--set {key}: the sweep sets this key, or solves widths for it; use "
            "--alphas, --loops, --budget and --seeds, or run a sweep for each value"
        )
    if not (equals and name and values):
        raise UserError(
            f"--set needs KEY=A,B,... such as optim.lr=1e-3,2e-3, not '{word:.60}'"
        )
    if key.startswith(DATA):
        raise UserError(
            f"--set {key}: runs that read other data cannot be compared; run a sweep "
            "for each value"
        )
    if key == "optim.lr":
        text = ",".join(map(str, values))
        rate = _number(float, 1e-12, 1e9)
        values = _list("set optim.lr", text, rate, "rates above 0")
    return key, values
