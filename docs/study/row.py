"""Keeps, restores and judges the runs of three preregistrations: row.md (named for *in
a row*, its word for in sequence), row_256.md and loops.md.

A row here is a line of the table of runs; in statistics, an arm at one rate.

python docs/study/row.py ...
    keep runs/row                 scores into row.csv, small files into row.tar.xz
    restore runs/row              on another machine, before the page's commands
    bends a50_k1:expanded_k2      the second check: the share of equal arms that differ
                                  as much (the bends themselves: compare)
    seeds a50_k1:expanded_k2      the difference seed by seed, not preregistered
    noise a50_k1:expanded_k2      how unequal noise changes the intervals
    verdicts runs/loops/a         the verdicts of loops.md, of a comparison's folder
    figure docs/study/row.png     scores over rates, of row and row_256

An arm that several sweeps trained is given as SWEEP/ARM. `--study row_256` does the
same for docs/study/row_256.md, `--study loops` for docs/study/loops.md. Only the last
five show scores, once all runs are in. They read the kept runs: `keep` comes first. A
kept run has no checkpoints; `sweep` and `compare` take it as finished.
"""

import argparse
import csv
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from dualpath_cli.compare.differences import SAME
from dualpath_cli.compare.rates import lowest, neighbours, resampled
from dualpath_cli.report.blocks import LEVEL, Spread, holm
from dualpath_cli.report.bootstrap import Floats
from dualpath_cli.report.figures import FAMILY_COLORS

SETS = ("novels", "peps", "rust_rfcs", "gsm8k")
FILES = ("recipe.yaml", "versions.json", "metrics.csv", "validation.csv", "routing.csv")
ARMS = (
    ("expanded_k2", "sequential: twice the layers", "expanded"),
    ("a50_k1", "parallel: dual, K = 1", "dual"),
    ("wide", "PureWide, not tested", "wide"),
)
DESIGNS = 10_000
"""Designs that `bends` (as preregistered) and `noise` simulate."""
RESAMPLES = 2_000
"""Resamples of each design of `noise`; `compare` takes ten times as many."""


class Study(NamedTuple):
    last: str
    """The step of the scores."""
    fewest: int
    """Seeds below which nothing is tested."""
    margin: float
    """The smallest difference that matters, as preregistered."""
    own_noise: bool
    """Whether `bends` draws the noise of each cell by itself, as preregistered."""
    table: Path
    archive: Path


STUDIES = {
    name: Study(
        last,
        fewest,
        margin,
        own_noise,
        Path(__file__).with_name(f"{name}.csv"),
        Path(__file__).with_name(f"{name}.tar.xz"),
    )
    for name, last, fewest, margin, own_noise in (
        ("row", "1500", 8, 0.014, False),
        ("row_256", "1600", 4, 0.010, False),
        ("loops", "1500", 8, 0.014, True),
    )
}


def rows_of(folder: Path, step: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The folder and the row of each run with scores at `step`, by sweep, arm, rate and
    seed."""
    for run in sorted(folder.glob("*/runs/*/seed_*")):
        path = run / "validation.csv"
        with path.open(encoding="utf-8") if path.exists() else io.StringIO() as file:
            last = {
                row["set"]: row for row in csv.DictReader(file) if row["step"] == step
            }
        if last.keys() == set(SETS):
            arm, _, rate = run.parent.name.replace("-lr_", " ").partition(" ")
            facts = json.loads((run / "versions.json").read_text(encoding="utf-8"))
            scores = {name: last[name]["bits_per_byte"] for name in SETS}
            known = {key: facts[key] for key in ("git_commit", "started", "device")}
            named = {
                "sweep": run.parts[-4],
                "arm": arm,
                "rate": rate,
                "seed": run.name[5:],
            }
            yield run, named | scores | known


def cpu() -> str:
    """The machine's CPU: its model and its instructions for products in bf16."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    lines = dict(line.split("\t", 1) for line in text.splitlines() if "\t" in line)
    flags = {"amx_bf16", "avx512_bf16"} & {*lines["flags"].split()}
    return " ".join([lines["model name"].strip(": "), *sorted(flags)])


def read(table: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(table.open(encoding="utf-8"))) if table.exists() else []


def key_of(row: dict[str, Any]) -> tuple[str, ...]:
    return row["sweep"], row["arm"], row["rate"], row["seed"]


def keep(study: Study, folder: Path) -> None:
    """Writes the table and the archive anew, of all runs in the folder.

    Raises SystemExit if the folder lacks runs of the table, of which the archive would
    lose the files.
    """
    known = {key_of(row): row for row in read(study.table)}
    found, here = dict(rows_of(folder, study.last)), cpu()
    theirs = {key_of(row) for row in found.values()}
    missing = known.keys() - theirs
    if missing or not found:
        raise SystemExit(
            f"{folder} has {len(found)} runs, and lacks {len(missing)} of those in "
            f"{study.archive}; restore them there first, or delete the rows of those "
            "that the page says leave"
        )
    anew = 0
    for row in found.values():
        kept = known.get(key_of(row))
        # A run that was restored keeps the CPU that trained it.
        if kept and all(kept[name] == row[name] for name in (*SETS, "started")):
            continue
        anew += kept is not None
        known[key_of(row)] = row | {"cpu": here}
    rows = [
        known[key] for key in sorted(known, key=lambda key: (*key[:3], int(key[3])))
    ]
    with study.table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    with tarfile.open(study.archive, "w:xz") as archive:
        paths = [run / name for run in found for name in FILES]
        paths += folder.glob("*/sweep.yaml")
        for path in sorted([path for path in paths if path.exists()]):
            info = archive.gettarinfo(path, str(path.relative_to(folder)))
            info.uid = info.gid = info.mtime = 0
            info.uname = info.gname = ""
            with path.open("rb") as content:
                archive.addfile(info, content)
    print(f"{len(rows)} runs in {study.table}, {len(found)} in {study.archive}")
    if anew:
        print(f"{anew} of them trained anew: their rows are replaced")


def restore(study: Study, folder: Path) -> None:
    with tarfile.open(study.archive) as archive:
        archive.extractall(folder, filter="data")


def score(row: dict[str, str]) -> float:
    return fmean(float(row[name]) for name in SETS)


def scores_by_rate_and_seed(
    arm: str, rows: list[dict[str, str]]
) -> dict[tuple[float, int], float]:
    """The scores of an ARM, of all sweeps but pilots; of a SWEEP/ARM, of this sweep.

    Raises SystemExit for two runs of a rate and seed.
    """
    sweep, _, name = arm.rpartition("/")
    found: dict[tuple[float, int], float] = {}
    for row in rows:
        is_pilot = row["sweep"].startswith("pilot")
        is_meant = row["sweep"] == sweep if sweep else not is_pilot
        if row["arm"] != name or not is_meant:
            continue
        key = float(row["rate"]), int(row["seed"])
        if key in found:
            raise SystemExit(
                f"{arm} has two runs of a rate and seed; give SWEEP/{name}"
            )
        found[key] = score(row)
    return found


def scores_of(
    arm: str, rows: list[dict[str, str]], fewest: int
) -> tuple[Floats, Floats]:
    """Log rates (K,), and the scores of an arm in bits per byte by seed and rate, (N,
    K).

    Raises SystemExit unless each rate has the same seeds, at least `fewest`.
    """
    found = scores_by_rate_and_seed(arm, rows)
    rates, seeds = (
        sorted({rate for rate, _ in found}),
        sorted({seed for _, seed in found}),
    )
    if len(seeds) < fewest or len(found) != len(rates) * len(seeds):
        raise SystemExit(
            f"{arm} has {len(found)} runs of {len(rates)} rates and {len(seeds)} seeds"
        )
    return np.log(rates), np.array(
        [[found[rate, seed] for rate in rates] for seed in seeds]
    )


def share_as_large(
    ours: tuple[Floats, Floats],
    theirs: tuple[Floats, Floats],
    designs: int = DESIGNS,
    own_noise: bool = False,
) -> dict[str, float]:
    """Designs without a difference, whose curves bend as the two that were found: the
    share of them in which the lowest points are as far apart.

    A design draws the mean of each rate around the parabola through the lowest mean and
    its neighbours, moved to a lowest point of zero. The noise is that of randomised
    blocks: the scores' residuals after the means of rows (an arm at a rate) and of
    blocks (a seed). With `own_noise` each row has its own standard deviation over
    seeds.
    """
    error, _ = error_of_a_mean(np.hstack([ours[1], theirs[1]]))
    rng = np.random.default_rng(0)
    found = []
    drawn = []
    for logs, scores in (ours, theirs):
        _, value, _ = lowest(logs, scores.mean(0))
        found.append(float(value))
        errors = scores.std(0, ddof=1) / np.sqrt(len(scores)) if own_noise else error
        noise = errors * rng.normal(size=(designs, len(logs)))
        drawn.append(lowest(logs, curve_from_zero(logs, scores) + noise)[1])

    difference = found[0] - found[1]
    share = float((abs(drawn[0] - drawn[1]) >= abs(difference)).mean())
    return {"difference": difference, "error of a mean": error, "share": share}


def error_of_a_mean(rows: Floats) -> tuple[float, int]:
    """The standard error of a row's mean over seeds, and its degrees of freedom.

    `rows` are scores by seed and row, (N, C); the noise is that of randomised blocks.
    """
    N, C = rows.shape
    left = rows - rows.mean(0) - rows.mean(1, keepdims=True) + rows.mean()
    df = (N - 1) * (C - 1)
    return float(np.sqrt((left**2).sum() / df / N)), df


def curve_from_zero(logs: Floats, scores: Floats) -> Floats:
    """An arm's parabola at each rate, moved to a lowest point of zero."""
    means = scores.mean(0)
    place, _, _ = lowest(logs, means)
    near = neighbours(means)
    curve: Floats = np.polyfit(logs[near], means[near], 2)[0] * (logs - place) ** 2
    return curve


def by_seed(ours: tuple[Floats, Floats], theirs: tuple[Floats, Floats]) -> Floats:
    """The difference of each seed, (N,), at the rates where the arms' means are lowest.

    Each seed's parabola is read there: its own lowest point would be too low by chance.
    """
    values = []
    for logs, scores in (ours, theirs):
        means = scores.mean(0)
        place, _, _ = lowest(logs, means)
        near = neighbours(means)
        values.append(np.polyval(np.polyfit(logs[near], scores[:, near].T, 2), place))
    return values[0] - values[1]


def under_own_noise(
    ours: tuple[Floats, Floats],
    theirs: tuple[Floats, Floats],
    margin: float,
    designs: int,
) -> dict[str, float]:
    """Shares of simulated designs of two equal arms in which each rate of an arm
    scatters over seeds as it was found to, while the analysis pools one noise, as
    `compare --best lr` does.

    An arm that is truly better or worse by `margin` shifts the interval by as much.
    """
    logs = ours[0]
    K = len(logs)
    truth = np.hstack([curve_from_zero(*arm) for arm in (ours, theirs)])
    rows = np.hstack([ours[1], theirs[1]])
    own_noise = rows.std(0, ddof=1)

    rng = np.random.default_rng(0)
    found = []
    for _ in range(designs):
        drawn = truth + own_noise * rng.normal(size=rows.shape)
        error, df = error_of_a_mean(drawn)
        means = drawn.mean(0)
        found.append(
            resampled((logs, means[:K]), (theirs[0], means[K:]), error, df, RESAMPLES)
        )

    low, high, low_90, high_90 = (
        np.array([one[key] for one in found])
        for key in ("low", "high", "low_90", "high_90")
    )
    better = (low_90 > 0) & (high_90 < 2 * margin)
    worse = (high_90 < 0) & (low_90 > -2 * margin)
    return {
        "95 % intervals that hold the true difference": (
            (low <= 0) & (high >= 0)
        ).mean(),
        f"true {-margin:+.3f} taken for no difference that matters": better.mean(),
        f"true {margin:+.3f} taken for no difference that matters": worse.mean(),
    }


def figure(study: Study, file: Path) -> None:
    """A mark is a seed; a curve is the parabola through an arm's best rate and its
    neighbours, a line its lowest point. PureWide has marks alone. Raises SystemExit as
    `scores_of`."""
    rows = [row for row in read(study.table) if not row["sweep"].startswith("pilot")]
    drawn = Figure(figsize=(8.6, 3.6), layout="constrained")
    ax = drawn.subplots()
    for place, (arm, label, family) in enumerate(ARMS):
        own = [row for row in rows if row["arm"] == arm]
        if not own:
            continue
        color = FAMILY_COLORS[family]
        aside = [float(row["rate"]) * 1.025 ** (2 * place - 2) for row in own]
        ax.plot(
            aside,
            [score(row) for row in own],
            "o",
            color=color,
            markersize=4,
            label=label,
        )
        if family == "wide":
            continue
        logs, scores = scores_of(arm, rows, study.fewest)
        means = scores.mean(0)
        near = neighbours(means)
        line = np.linspace(*logs[near][[0, 2]], 99)
        ax.plot(
            np.exp(line),
            np.polyval(np.polyfit(logs[near], means[near], 2), line),
            color=color,
        )
        ax.axhline(
            float(lowest(logs, means)[1]), color=color, linewidth=0.8, linestyle=":"
        )
    ax.set_xscale("log", base=2)
    ticks = sorted({float(row["rate"]) for row in rows})
    ax.set_xticks(ticks, [f"{rate:g}" for rate in ticks])
    ax.minorticks_off()
    ax.set_xlabel("peak learning rate")
    ax.set_ylabel("bits per byte, mean of four sets")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(fontsize=8)
    drawn.savefig(file, dpi=120)


def pair_of(study: Study, pair: str) -> list[tuple[Floats, Floats]]:
    """Log rates and scores of both arms, as of `scores_of`.

    Raises SystemExit for other seeds in one than in the other: a seed is a block.
    """
    rows = read(study.table)
    arms = pair.split(":")
    found = [scores_of(arm, rows, study.fewest) for arm in arms]
    of_each = [
        sorted({seed for _, seed in scores_by_rate_and_seed(arm, rows)}) for arm in arms
    ]
    if of_each[0] != of_each[-1]:
        raise SystemExit(
            f"{pair}: {arms[0]} has the seeds {of_each[0]}, {arms[-1]} {of_each[-1]}; "
            "keep runs of the same seeds"
        )
    return found


def bends(study: Study, pair: str, designs: int = DESIGNS) -> None:
    """Prints the second check of a pair: difference, error of a mean, share."""
    ours, theirs = pair_of(study, pair)
    shares = share_as_large(ours, theirs, designs, study.own_noise)
    for name, value in shares.items():
        print(f"{name}: {value:.4f}")


def seeds(study: Study, pair: str) -> None:
    """Prints the difference of each seed, and their mean with Student's intervals and
    p."""
    found = by_seed(*pair_of(study, pair))
    spread = Spread(float(found.std(ddof=1) / np.sqrt(len(found))), len(found) - 1)
    mean = float(found.mean())
    print("by seed:", " ".join(f"{value:+.4f}" for value in found))
    for level, reach in ((95, spread.reach), (90, spread.reach_90)):
        print(f"{level} %: {mean:+.4f} ({mean - reach:+.4f} to {mean + reach:+.4f})")
    print(f"p: {spread.p(mean):.2f}")


def noise(study: Study, pair: str, designs: int = DESIGNS) -> None:
    """Prints what the noise of each rate of each arm does to the intervals of
    `compare`."""
    ours, theirs = pair_of(study, pair)
    for name, value in under_own_noise(ours, theirs, study.margin, designs).items():
        print(f"{name}: {value:.3f}")


def verdict(found: dict[str, Any], p_holm: float, share: float, margin: float) -> str:
    """The verdict of loops.md, *Tests*, on a pair.

    `found` has the pair's `difference`, `p`, `low_90` and `high_90`; `share` is that of
    the second check.
    """
    is_within_margin = -margin < found["low_90"] and found["high_90"] < margin
    if p_holm < LEVEL and share < LEVEL:
        word = "better" if found["difference"] < 0 else "worse"
        return f"{word}, by less than matters" if is_within_margin else word
    if found["p"] >= LEVEL and is_within_margin:
        return SAME
    return "undecided"


def arms_of(comparison: Path) -> dict[str, str]:
    """SWEEP/ARM of each configuration of a comparison that one sweep trained, by the
    folders in its `runs.csv`: SWEEP/runs/ARM-lr_RATE/seed_SEED."""
    found: dict[str, set[str]] = {}
    for row in read(comparison / "runs.csv"):
        sweep, _, recipe, _ = Path(row["run"]).parts[-4:]
        arm, _, _ = recipe.partition("-lr_")
        found.setdefault(row["configuration"], set()).add(f"{sweep}/{arm}")
    return {name: arms.pop() for name, arms in found.items() if len(arms) == 1}


def verdicts(study: Study, folder: Path, designs: int = DESIGNS) -> None:
    """Prints the verdicts of loops.md on the pairs of a comparison, `tests.csv` in its
    folder.

    A pair without a test counts as p = 1 in Holm's correction.
    """
    tests = read(folder / "tests.csv")
    arms = arms_of(folder)
    corrected = holm([float(test["p"] or 1) for test in tests])
    for test, p_holm in zip(tests, corrected, strict=True):
        pair = f"{test['configuration']}:{test['baseline']}"
        if not test["p"]:
            print(f"{pair}: no verdict, {test['test']}")
            continue

        names = (test["configuration"], test["baseline"])
        of_sweeps = ":".join(arms.get(name, name) for name in names)
        ours, theirs = pair_of(study, of_sweeps)
        second = share_as_large(ours, theirs, designs, study.own_noise)
        keys = ("difference", "p", "low_90", "high_90")
        found = {key: float(test[key]) for key in keys}
        if not np.isclose(found["difference"], second["difference"], atol=1e-9):
            raise SystemExit(f"{pair}: compared other runs than are kept; keep them")
        said = verdict(found, p_holm, second["share"], study.margin)
        print(
            f"{pair}: {said}: {found['difference']:+.4f} (90 %: "
            f"{found['low_90']:+.4f} to {found['high_90']:+.4f}), p {found['p']:.4f}, "
            f"Holm {p_holm:.4f}, share {second['share']:.4f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Keeps, restores or judges the runs of a study."
    )
    parser.add_argument(
        "task",
        choices=["keep", "restore", "bends", "seeds", "noise", "verdicts", "figure"],
    )
    parser.add_argument(
        "what",
        help="Folder of the study's sweeps; of `verdicts`, of a comparison; of "
        "`figure`, its file; else ARM:BASELINE, an arm as SWEEP/ARM where several "
        "sweeps trained it.",
    )
    parser.add_argument("--study", choices=STUDIES, default="row", help="Its page.")
    parser.add_argument(
        "--designs", type=int, default=DESIGNS, help="Designs that are simulated."
    )
    given = parser.parse_args()
    study = STUDIES[given.study]
    if given.task == "seeds":
        seeds(study, given.what)
    elif given.task in ("bends", "noise"):
        {"bends": bends, "noise": noise}[given.task](study, given.what, given.designs)
    elif given.task == "verdicts":
        verdicts(study, Path(given.what), given.designs)
    else:
        {"keep": keep, "restore": restore, "figure": figure}[given.task](
            study, Path(given.what)
        )


if __name__ == "__main__":
    main()
