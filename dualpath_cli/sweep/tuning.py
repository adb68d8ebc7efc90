"""The learning rate of each family, by as many trials for each. Torch-free.

A trial trains one configuration of the family at one rate, with a seed that no run of the sweep
has, usually on fewer tokens. The best rate has the fewest bits per byte, averaged over validation
sets; a trial whose numbers went wrong (`fit` leaves went_wrong.txt) counts as infinitely bad. While
the best rate of any family lies at an end of the grid, the grid grows there by one, for all.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from dualpath_cli.errors import RunFailed, UserError
from dualpath_cli.recipe import recipes
from dualpath_cli.recipe.recipes import Recipe
from dualpath_cli.recipe.settings import Settings
from dualpath_cli.run import run_folder
from dualpath_cli.run.run_folder import RECIPE, WENT_WRONG
from dualpath_cli.sweep.request import MOST_SEEDS, RATES_EACH, Request
from dualpath_cli.sweep.runs import LENGTH, RATE, Configuration, Run, runs_of
from dualpath_cli.system import format_csv, read_csv, write_text

SEED = MOST_SEEDS  # the seed of all trials
MOST_RATES = 7  # trials of a family at most, with those that the grid grows by

Family = tuple[int, str]  # a family of a budget: its configurations share a learning rate
Rates = Mapping[Family, float]


@dataclass(frozen=True)
class Trial:
    budget: int
    family: str
    configuration: str  # the configuration that was trained
    tokens: int
    lr: float
    bits_per_byte: float
    chosen: bool

    @property
    def group(self) -> Family:
        return self.budget, self.family


def family_of(configuration: Configuration) -> Family:
    return configuration.cell.budget, configuration.cell.family


def representatives(found: Sequence[Configuration]) -> dict[Family, Configuration]:
    """The model of each family's trials: the most loops, alpha nearest to 50 %, first settings."""

    def order(configuration: Configuration) -> tuple[float, float]:
        cell = configuration.cell
        return -cell.model["loops"], abs((cell.alpha or 50) - 50)

    best: dict[Family, Configuration] = {}
    for configuration in sorted(found, key=order):
        best.setdefault(family_of(configuration), configuration)
    return best


def first_rates(request: Request, settings: Settings, families: int) -> list[float]:
    """The grid to begin with; a single rate means that nothing is tried."""
    own, tokens = settings.optim.lr, request.options.tune_tokens
    if request.tune is not None:
        rates = request.tune or [own]
    elif families < 2 or RATE in request.varied:
        rates = [own]
    else:
        rates = [own * factor for factor in RATES_EACH]
    if tokens is not None and len(rates) == 1:
        raise UserError(
            "--tune-tokens is the length of trials of learning rates, but this sweep has none; "
            "leave it out, or give several rates (--tune)"
        )
    if tokens is not None and tokens < settings.run.batch_tokens:
        raise UserError(
            f"--tune-tokens {tokens:,} is less than a step has, which is "
            f"run.batch_tokens={settings.run.batch_tokens:,}; give at least that"
        )
    return rates


def with_rate(recipe: Recipe, settings: Settings, lr: float) -> Recipe:
    """A recipe at another peak rate; the rates at both ends and Muon's keep their ratio to it."""
    optim = settings.optim
    rates = {
        "lr": lr,
        "lr_start": _short(optim.lr_start * lr / optim.lr),
        "lr_end": _short(optim.lr_end * lr / optim.lr),
    }
    if optim.muon_lr is not None:
        rates["muon_lr"] = _short(optim.muon_lr * lr / optim.lr)
    return recipes.merge(recipe, {"optim": rates})


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def known(request: Request, settings: Settings, found: Sequence[Configuration]) -> Rates:
    """The rate of each family where nothing is tried: given one by one, or the same for all."""
    rate = (request.tune or [settings.optim.lr])[0]
    rates = request.known_rates
    for configuration in found:
        if rates and configuration.cell.family not in rates:
            raise UserError(
                f"--tune gives no rate for the family '{configuration.cell.family}' of "
                f"{configuration.name}; add {configuration.cell.family}=RATE"
            )
    return {family_of(c): rates.get(c.cell.family, rate) for c in found}


def recorded(out: Path) -> list[Trial]:
    return [
        Trial(
            int(row["budget"]), row["family"], row["configuration"], int(row["tokens"]),
            float(row["lr"]), float(row["bits_per_byte"]), row["chosen"] == "True",
        )
        for row in read_csv(out / "tune/chosen.csv")
    ]  # fmt: skip


def record(out: Path, rows: Sequence[Trial]) -> None:
    """Writes them there instead of what it had of their families."""
    groups = {row.group for row in rows}
    others = [row for row in recorded(out) if row.group not in groups]
    if rows:
        text = format_csv([asdict(row) for row in (*others, *rows)])
        write_text(out / "tune/chosen.csv", text)


def kept(out: Path, found: Sequence[Configuration]) -> tuple[list[Trial], Sequence[Configuration]]:
    """The trials of families whose runs are begun, which keep their rate, and what is tuned."""
    rows, begun = recorded(out), set()
    rates = chosen_rates(rows)
    for configuration in found:
        for path in sorted((out / "runs" / configuration.name).glob(f"seed_*/{RECIPE}")):
            rate = float(run_folder.read_recipe(path.parent)["optim"]["lr"])
            family = family_of(configuration)
            if rates.get(family) != rate:
                raise UserError(
                    f"{path.parent} was begun with optim.lr={rate:g}, which no trial chose; give "
                    f"this sweep another --out, or all rates (--tune {family[1]}={rate:g},...)"
                )
            begun.add(family)
    return (
        [row for row in rows if row.group in begun],
        [configuration for configuration in found if family_of(configuration) not in begun],
    )


def notes(rows: Sequence[Trial], found: Sequence[Configuration]) -> list[str]:
    """A line for each family that keeps its rate, where another trial would decide it today."""
    tried = representatives(found)
    families = {row.group for row in rows}
    fewer = len(families) < len(tried)
    return [
        f"{row.family} at a budget of {row.budget:,} keeps the learning rate {row.lr:g}, chosen by "
        f"the trial {row.configuration}: its runs are begun"
        for row in rows
        if row.chosen and (fewer or _trial_name(tried[row.group], row.lr) != row.configuration)
    ]


def trials(
    request: Request, settings: Settings, found: Sequence[Configuration], rates: Sequence[float]
) -> list[Run]:
    """The trials of all families at all rates; `settings` are those of all runs."""
    run = settings.run
    tokens = max(int(run.batch_tokens), request.options.tune_tokens or run.max_tokens // 2)
    tried, shared = [], {}
    for configuration in representatives(found).values():
        for rate in rates:
            name = _trial_name(configuration, rate)
            # Tokens are the trial's own, also where --set varies them.
            varied = {k: v for k, v in configuration.settings.items() if k != LENGTH}
            tried.append(Configuration(name, configuration.cell, varied))
            short = {"run": {"max_tokens": tokens, "branch_from": None}}
            shared[name] = recipes.merge(with_rate(request.recipe, settings, rate), short)
    return runs_of(tried, shared, [SEED], request.out / "tune")


def _trial_name(configuration: Configuration, rate: float) -> str:
    return f"{configuration.name}-lr_{rate:g}"


def went_wrong(run: Run) -> bool:
    """Whether the numbers of a trial went wrong, and not the machine, as `fit` wrote down."""
    return (run.folder / WENT_WRONG).is_file()


def judge(runs: Sequence[Run]) -> list[Trial]:
    """A row a trial, one chosen for each family. Raises RunFailed if all of one went wrong."""
    scores = {run: _score(run) for run in runs}
    best: dict[Family, Run] = {}
    for run, score in scores.items():
        family = family_of(run.configuration)
        if family not in best or score < scores[best[family]]:
            best[family] = run
    for (budget, name), run in best.items():
        if scores[run] == math.inf:
            evidence = run.folder / (WENT_WRONG if went_wrong(run) else "validation.csv")
            raise RunFailed(
                f"the numbers of all trials of {name} at a budget of {budget:,} went wrong, as "
                f"{evidence} says; give lower rates (--tune), or remove such a file to try "
                "its trial again"
            )
    return [
        Trial(
            *family_of(run.configuration), run.configuration.name, run.settings.run.max_tokens,
            run.settings.optim.lr, score, best[family_of(run.configuration)] is run,
        )
        for run, score in scores.items()
    ]  # fmt: skip


def _score(run: Run) -> float:
    """Bits per byte at the end, the mean of the validation sets; infinite where there is no end."""
    if not run.is_finished:
        return math.inf
    path = run.folder / "validation.csv"
    rows = [row for row in read_csv(path) if int(row["step"]) == run.steps]
    try:
        score = fmean(float(row["bits_per_byte"]) for row in rows)
    except (KeyError, ValueError):
        raise UserError(
            f"{path} step {run.steps}: bits_per_byte is missing or no number; mend it, or remove "
            "the folder to try this rate again"
        ) from None
    return score if math.isfinite(score) else math.inf


def grown(rates: Sequence[float], rows: Sequence[Trial]) -> list[float]:
    """The grid, longer by one at each end that is any family's best."""
    chosen = {row.lr for row in rows if row.chosen}
    longer = list(rates)
    if len(rates) > 1 and len(rates) < MOST_RATES and rates[0] in chosen:
        longer = [_short(rates[0] ** 2 / rates[1]), *longer]
    if len(rates) > 1 and len(longer) < MOST_RATES and rates[-1] in chosen:
        longer = [*longer, _short(rates[-1] ** 2 / rates[-2])]
    return longer


def at_the_end(rows: Sequence[Trial]) -> list[Trial]:
    """The chosen trials whose rate is the lowest or the highest that was tried."""
    rates = {row.lr for row in rows}
    return [row for row in rows if row.chosen and row.lr in (min(rates), max(rates))]


def chosen_rates(rows: Sequence[Trial]) -> Rates:
    return {row.group: row.lr for row in rows if row.chosen}
