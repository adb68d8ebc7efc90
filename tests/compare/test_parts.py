"""A budget's configurations in parts: by what is matched, and by the PureWide of their settings."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from dualpath_cli.compare.groups import groups_of
from dualpath_cli.compare.runs import TrainedRun, find_folders, read_run
from dualpath_cli.config import ModelConfig
from dualpath_cli.recipe.settings import settings_from
from dualpath_cli.run.run_folder import read_recipe
from dualpath_cli.sweep.cells import Wanted, solve
from tests.compare.run_folders import BUDGET, model_of, write_run

BACKBONE = ModelConfig(
    vocab_size=4096, n_layers=4, d_model=64, n_heads=2, n_kv_heads=2, max_seq_len=256, d_ffn=64,
    d_ffn_wide=64, ffn_multiple_of=4,
)  # fmt: skip


def runs_in(folder: Path) -> list[TrainedRun]:
    runs = [read_run(path) for path in find_folders([str(folder)])]
    return [run for run in runs if isinstance(run, TrainedRun)]


def write_seeds(
    folder: Path, model: dict[str, Any], cell: str, optim: dict[str, float] | None = None
) -> None:
    """Two runs of a configuration."""
    for seed in (0, 1):
        write_run(folder / cell / f"{seed}", model, {"novels": 2.0 + seed}, cell=cell, seed=seed,
                  optim=optim or {})  # fmt: skip


def write_matched(folder: Path, budget: str = "") -> list[TrainedRun]:
    """Runs of a sweep that was matched in linear and in total FLOPs."""
    wanted = Wanted([BUDGET], [50], [2, 4], ["wide", "loop"], ["linear", "total"])
    for cell in solve(wanted, BACKBONE)[0]:
        write_seeds(folder / "runs", {**asdict(BACKBONE), **cell.model}, budget + cell.name)
    return runs_in(folder)


def test_each_kind_of_matching_has_its_own_pure_wide_and_line_of_an_alpha(tmp_path):
    linear, total = groups_of(write_matched(tmp_path))
    assert linear.name.endswith("equal linear FLOPs")
    for group, end in ((linear, ""), (total, "_total")):
        names = [f"{name}{end}" for name in ("wide", "loop_k2", "loop_k4", "a50_k2")]
        assert [c.name for c in group.configurations] == [*names, "a50_k4"]
        assert [c.name for c in group.baselines] == names[:1]
        assert len({c.line for c in group.configurations if c.family == "dual"}) == 1


def test_training_with_fewer_loops_is_not_of_equal_total_flops(tmp_path):
    write_matched(tmp_path)
    (folder,) = (tmp_path / "runs").glob("a50_k4/0")
    for part, equal in ((0.01, True), (0.5, False)):
        model = settings_from(read_recipe(folder)).as_recipe()["model"]
        cell, run = f"a50_k4-{part}", {"loop_schedule": [[0, 1], [part, 4]]}
        write_run(tmp_path / "runs" / cell / "0", model, {"novels": 3.0}, cell=cell, run=run)
        linear, total = groups_of(runs_in(tmp_path))
        assert cell in {c.name for c in linear.configurations}
        assert (cell in {c.name for c in total.configurations}) == equal


def test_what_was_matched_in_total_flops_stands_for_its_like_there(tmp_path):
    """Where few loops are all there are, also PureWide of equal linear FLOPs is within 2 %."""
    for cell in ("wide", "wide_total", "loop_k2", "loop_k2_total", "a50_k2"):
        kind = {"w": "wide", "l": "loop", "a": "dual"}[cell[0]]
        model = model_of(kind, 1 if kind == "wide" else 2)
        if cell.endswith("_total"):
            width = "d_ffn_wide" if kind == "wide" else "d_ffn"
            model[width] += 4
        write_seeds(tmp_path, model, cell)
    linear, total = groups_of(runs_in(tmp_path))
    assert [c.name for c in linear.configurations] == ["wide", "loop_k2", "a50_k2"]
    names = [c.name for c in total.configurations]
    assert not {"wide", "loop_k2"} & set(names)
    assert {"wide_total", "loop_k2_total"} <= set(names)
    assert [c.name for c in total.baselines] == ["wide_total"]


def test_two_sweeps_in_folders_with_hyphens_keep_their_total_tables(tmp_path):
    for sweep, init in (("sweep-1", -7.0), ("sweep-2", -2.0)):
        for cell in ("wide", "wide_total", "a50_k4"):
            kind = "dual" if cell == "a50_k4" else "wide"
            model = model_of(kind, 4 if kind == "dual" else 1) | {"gain_init": init}
            model["d_ffn_wide"] += 400 * (cell == "wide_total")
            write_seeds(tmp_path / sweep / "runs", model, cell)
    runs = [run for n in (1, 2) for run in runs_in(tmp_path / f"sweep-{n}")]
    names = [[c.name for c in group.baselines] for group in groups_of(runs)]
    assert names == [["sweep-1/wide"], ["sweep-2/wide"], ["sweep-1/wide_total"],
                     ["sweep-2/wide_total"]]  # fmt: skip


def test_a_setting_that_is_varied_everywhere_makes_a_part_of_each_value(tmp_path):
    for init in (-7.0, -2.0):
        for kind in ("wide", "dual"):
            name = f"{kind}-gain_init_{init:g}"
            model = model_of(kind, 2 if kind == "dual" else 1) | {"gain_init": init}
            write_seeds(tmp_path, model, name, {"lr": 1e-3 if kind == "wide" else 2e-3})
    groups = groups_of(runs_in(tmp_path))
    members = {g.name.rpartition(", ")[2]: [c.name for c in g.configurations] for g in groups}
    assert members == {
        "gain_init -7.0": ["wide-gain_init_-7", "dual-gain_init_-7"],
        "gain_init -2.0": ["wide-gain_init_-2", "dual-gain_init_-2"],
    }
    (group,) = groups_of(runs_in(tmp_path), ["wide-gain_init_-7"])
    assert len(group.configurations) == 4, "a baseline that is chosen is that of all"


def test_models_with_experts_stand_beside_the_dense_pure_wide_of_their_settings(tmp_path):
    for gain in (-7, -2):
        for experts in (0, 8):
            name = f"wide{f'_e{experts}' if experts else ''}-gain_init_{gain}"
            model = model_of("wide") | {"gain_init": gain, "n_experts": experts}
            write_seeds(tmp_path, model, name)
    groups = groups_of(runs_in(tmp_path))
    assert [[c.name for c in group.configurations] for group in groups] == [
        [f"wide-gain_init_{gain}", f"wide_e8-gain_init_{gain}"] for gain in (-2, -7)
    ]
    assert [[c.name for c in group.baselines] for group in groups] == [
        [f"wide-gain_init_{gain}"] for gain in (-2, -7)
    ]


def test_a_setting_of_dual_blocks_alone_leaves_them_beside_the_one_pure_wide(tmp_path):
    write_seeds(tmp_path, model_of("wide"), "wide")
    for gate in ("two_gates", "convex"):
        write_seeds(tmp_path, model_of("dual", 2) | {"gate": gate}, f"dual-gate_{gate}")
    (group,) = groups_of(runs_in(tmp_path))
    assert len(group.configurations) == 3


def test_a_baseline_may_be_named_without_its_budget(tmp_path):
    runs = write_matched(tmp_path, budget="f600k_")
    linear, total = groups_of(runs, ["loop_k2", "f600k_wide", "wide"])
    assert [c.name for c in linear.baselines] == ["f600k_loop_k2", "f600k_wide"]
    assert linear.wide is linear.baselines[1]
    assert total.baselines == ()
    assert total.note.startswith("no tests against 'loop_k2', 'f600k_wide', 'wide': there is none")
