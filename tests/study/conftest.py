"""What tests of studies share: runs, studies of them, a tagger without spaCy, undrawn
figures."""

import base64
import dataclasses
import gzip
import io
import json
import re
import shutil
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from dualpath_cli.cli.main import main
from dualpath_cli.data.tokenizer import Tokenizer
from dualpath_cli.data.windows import Window
from dualpath_cli.decoding.decoding_pass import forward
from dualpath_cli.model import DualPathLM
from dualpath_cli.recipe.recipes import merge
from dualpath_cli.report.figures import save
from dualpath_cli.spec.intervention import Intervention
from tests.conftest import Share
from tests.export.conftest import model_of as model_of_run
from tests.training.tiny_run import digest_of, tiny_recipe, train

OPEN = {"model": {"gain_init": 0.0, "init_std": 0.3, "loops": 3}, "optim": {"lr": 0.05}}
"""A model whose gates, paths and loops matter after six steps."""


CORE = {
    "model": {
        "n_layers": 4,
        "block": ["wide", "wide", "dual", "dual"],
        "core": [1, 2],
        "core_loops": 3,
        "core_combination": "router",
        "injection": "linear",
        "loops": 2,
    },
    "run": {"gates_every": 0},
}
"""Changes to `OPEN`: a wide and a dual layer, repeated three times with a router,
between a wide layer and a dual one."""


@dataclasses.dataclass(frozen=True)
class Studied:
    """What a study of a run wrote and printed; tests read it, and change copies of the
    run."""

    run: Path
    """A run of its own, with what was written in it."""
    shown: str

    @property
    def folder(self) -> Path:
        """What was written."""
        (folder,) = [
            *self.run.glob("ablations/step-*"),
            *self.run.glob("routing/step-*"),
        ]
        return folder

    def copied(self, folder: Path) -> Path:
        """A copy of the run, where what is finished is kept."""
        return shutil.copytree(self.run, folder / "copy", symlinks=True)


Study = Callable[..., Studied]


@pytest.fixture(scope="session")
def opened(share: Share, texts: Path) -> Callable[..., Path]:
    """`opened(model={...})`: a run of `OPEN` with such changes, which tests only
    read."""

    def run(**changes: Any) -> Path:
        def fill(folder: Path) -> None:
            train(
                merge(tiny_recipe(texts, folder), merge(OPEN, changes)),
                folder / "recipe",
            )

        return share(f"study-run-{digest_of(changes)}", fill) / "tiny" / "default"

    return run


@pytest.fixture
def run(opened: Callable[..., Path], tmp_path: Path) -> Path:
    """A copy of a run of `OPEN`."""
    return shutil.copytree(
        opened(), tmp_path / "runs" / "tiny" / "default", symlinks=True
    )


@pytest.fixture(scope="session")
def studied(share: Share, opened: Callable[..., Path]) -> Study:
    """`studied("routing", *words, model=...)`: of a run of `OPEN`, once, with tags by
    letter.

    Figures are written where `drawn` is true.
    """

    def study(
        command: str, *words: str, drawn: bool = False, **changes: Any
    ) -> Studied:
        def fill(folder: Path) -> None:
            shutil.copytree(opened(**changes), folder / "default", symlinks=True)
            with (
                pytest.MonkeyPatch.context() as patch,
                redirect_stdout(io.StringIO()) as shown,
            ):
                tag_by_letter(patch)
                for user in USERS_OF_FIGURES:
                    patch.setattr(user, save if drawn else lambda folder, figures: [])
                assert (
                    main([command, "--ckpt_path", str(folder / "default"), *words]) == 0
                )
            (folder / "shown.txt").write_text(shown.getvalue())

        folder = share(f"study-{digest_of([changes, drawn, command, *words])}", fill)
        return Studied(folder / "default", (folder / "shown.txt").read_text())

    return study


def model_of(run: Path) -> tuple[DualPathLM, Tokenizer]:
    """The model of a run, as every command loads it, and its tokenizer."""
    return model_of_run(run), Tokenizer.load(run / "tokenizer.json")


def data_of(path: Path) -> dict[str, Any]:
    """What is packed in a page of routing."""
    packed = re.search(r'id="packed">(.*?)</script>', path.read_text(), re.DOTALL)[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


class ByLetter:
    """A tagger: what begins with an `h` is a number, with a blank a space, all else a
    noun."""

    facts = {"pipeline": "by letter"}  # noqa: RUF012

    def tags(self, windows):
        tag = {b"h": "NUM", b" ": "SPACE"}
        for values in windows:
            yield [tag.get(value[:1], "NOUN") for value in values]


def tag_by_letter(patch: pytest.MonkeyPatch) -> None:
    """Takes `ByLetter` for whatever pipeline is asked for."""
    for study in ("ablation", "routing"):
        patch.setattr(
            f"dualpath_cli.study.{study}.study.Tagger", lambda name: ByLetter()
        )
        patch.setattr(
            f"dualpath_cli.study.{study}.options.check_pipeline", lambda name: ""
        )


@pytest.fixture
def by_letter(monkeypatch):
    """Tags by first letters."""
    tag_by_letter(monkeypatch)


USERS_OF_FIGURES = [
    f"dualpath_cli.study.{user}.save" for user in ("ablation.figures", "routing.report")
]


@pytest.fixture(autouse=True)
def figures(monkeypatch) -> dict[str, Figure | None]:
    """Those of a study by name: laid out, but not written, which would take most of the
    time."""
    found: dict[str, Figure | None] = {}

    def keep(folder: Path, figures: dict[str, Figure | None]) -> list[Path]:
        found.update(figures)
        return []

    for user in USERS_OF_FIGURES:
        monkeypatch.setattr(user, keep)
    return found


@pytest.fixture
def drawn(figures, monkeypatch):
    """Figures are written, for a test that looks at their files."""
    for user in USERS_OF_FIGURES:
        monkeypatch.setattr(user, save)


def naive_loss(
    model: DualPathLM, windows: Iterable[Window], change: Intervention
) -> float:
    """Mean nats of the windows' tokens, one window at a time."""
    nats = 0.0
    tokens = 0
    for window in windows:
        ids = torch.from_numpy(window.astype(np.int64))[None]
        with torch.no_grad():
            nll = forward(model, ids[:, :-1], ids[:, 1:], intervention=change)
        nats += nll.double().sum().item()
        tokens += nll.numel()
    return nats / tokens


class Forwards:
    """The forward passes of a model: their interventions, and how many may be made."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.allowed = float("inf")

    @property
    def passes(self) -> list[str]:
        """The interventions, each once."""
        return list(dict.fromkeys(self.names))


@pytest.fixture
def forwards(monkeypatch) -> Forwards:
    """Counts forward passes, and presses Ctrl-C in the one after the last that is
    allowed."""
    counted, forward = Forwards(), DualPathLM.forward

    def watched(self, *arguments, intervention=None, **keywords):
        if len(counted.names) >= counted.allowed:
            raise KeyboardInterrupt
        counted.names.append("" if intervention is None else intervention.name)
        return forward(self, *arguments, intervention=intervention, **keywords)

    monkeypatch.setattr(DualPathLM, "forward", watched)
    return counted
