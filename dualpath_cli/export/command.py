"""`dualpath export`: options, checks, the answer. Torch comes once all is checked."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.filesize import decimal

from dualpath_cli.errors import UserError
from dualpath_cli.export.hf.results import read_results
from dualpath_cli.options import Average, OwnClasses, path_of
from dualpath_cli.output.console import Progress, bytes_of_bytes, plain_console
from dualpath_cli.own_classes.checks import option_of
from dualpath_cli.recipe.settings import Settings
from dualpath_cli.run import average
from dualpath_cli.run.checkpoint_files import files_of
from dualpath_cli.run.exported_folder import check_ours, is_exported
from dualpath_cli.run.run_folder import Run
from dualpath_cli.run.trained import find

FORMATS = {"consolidated": ".safetensors", "hf": ""}
"""The ends of the names of what they write; a folder has none."""


@dataclass(frozen=True)
class Export(Average, OwnClasses):
    """Writes a run's model, from a checkpoint of shards or of one file, in a format to hand on. It
    takes one process and no GPU.
    """

    ckpt_path: str | None = None
    """Run folder, or a checkpoint inside one: a file, or a folder of shards."""
    format: Literal["consolidated", "hf"] | None = None
    """consolidated: one file of safetensors with recipe and tokenizer inside, which all commands
    take as their RUN; hf: a folder for transformers: configuration, safetensors, tokenizer, the
    model's code, a model card."""
    out: str | None = None
    """What to write, a file or, for hf, a folder; by default RUN/export/RECIPE-NAME-step-N with the
    format's suffix."""
    results: str | None = None
    """A results.json of dualpath evaluate, or its folder, for the model card of hf."""
    license: str | None = None
    """The licence that the model card of hf names, as the hub spells it: apache-2.0."""
    push: str | None = None
    """USER/REPO: upload the folder of hf to this repository of the Hugging Face hub, which is made
    where there is none, with the token of HF_TOKEN or of `hf auth login`. Its recipe.yaml has the
    paths of data and runs as they were given."""
    public: bool = False
    """Let everybody see what --push uploads; without it a new repository is private."""
    overwrite: bool = False
    """Replace what is at --out already."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ckpt_path is None:
            raise UserError("export needs --ckpt-path RUN: a run folder or a checkpoint inside one")
        if self.format is None:
            raise UserError(f"export needs --format FORMAT: {', '.join(FORMATS)}")
        for name in ("results", "license", "push"):
            if getattr(self, name) is not None and self.format != "hf":
                what = "it takes such folders" if name == "push" else "it is for the model card"
                raise ValueError(f"{name} goes with --format hf alone: {what}")
        if self.public and self.push is None:
            raise ValueError("public says who sees what --push USER/REPO uploads; give that, too")
        if self.license is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", self.license):
            raise UserError(
                f"--license '{self.license}' is no name of the hub's, such as apache-2.0 or other; "
                "https://huggingface.co/docs/hub/repositories-licenses lists them"
            )
        if self.average > 1 and self.results is not None:
            raise ValueError("results are of a checkpoint's weights, not of their --average")


def run(options: Export) -> str:
    """Exports, and returns what was written as text.

    Raises:
        RunFailed: where an upload fails.
    """
    assert options.ckpt_path is not None
    assert options.format is not None
    found = find(options.ckpt_path, options.average)
    run, settings, suffix = found.run, found.settings, FORMATS[options.format]
    name = f"{settings.run.recipe}-{settings.run.name}"
    of = f"-average-{len(run.average)}" if run.average else ""
    default = run.home / "export" / f"{name}-step-{run.step:08d}{of}{suffix}"
    out = default if options.out is None else path_of("--out", options.out)
    out = out if suffix else out.resolve()  # of a link, what it links to is replaced
    _check_out(out, suffix)
    if out.exists() and not options.overwrite:
        raise UserError(f"'{out}' is there already; give another --out, or --overwrite")
    if not suffix:
        check_ours(out, out)
    results = repository = None
    if options.results is not None:
        of_run = f"{settings.run.recipe}/{settings.run.name}"
        results = read_results(Path(options.results), of_run, run.step)
    if options.push is not None:
        from dualpath_cli.export.hf.push import Repository

        repository = Repository(options.push)
    from dualpath_cli.export import consolidated
    from dualpath_cli.export.hf import folder
    from dualpath_cli.export.weights import Weights
    from dualpath_cli.training.state.integrity import verify

    console = plain_console()
    checkpoints = run.average or (run.checkpoint,)
    size = sum(path.stat().st_size for one in checkpoints for path in files_of(one))
    with Progress(console, "checking", bytes_of_bytes, size) as progress:
        for checkpoint in checkpoints:
            verify(checkpoint, progress.advance)
    weights = Weights.of_average(checkpoints, settings.model)
    if repository is not None:  # before the slowest part, and once there is something to upload
        repository.make(options.public)
    with Progress(console, "writing", bytes_of_bytes, weights.bytes) as progress:
        if suffix:
            consolidated.write(run, settings, weights, out, progress)
        else:
            folder.write(run, settings, weights, out, progress, results, options.license)
    answer = _answer(run, settings, weights, out)
    if repository is None:
        return answer
    commit = repository.upload(out, f"{name}, step {run.step:,}")
    return f"{answer}\nuploaded: {repository.page}, commit {commit.rpartition('/')[2]}"


def _check_out(out: Path, suffix: str) -> None:
    """Raises UserError for a path of another format, and for a folder that is not an export's."""
    if suffix:
        if out.suffix != suffix:
            raise UserError(f"--out '{out}' must end in {suffix}, which its readers go by")
        if out.is_dir():
            raise UserError(f"--out '{out}' is a folder; give a file")
        return
    if out.is_file():
        raise UserError(f"--out '{out}' is a file; give a folder")
    if out.is_dir() and any(out.iterdir()) and not is_exported(out):
        raise UserError(f"--out '{out}' is a folder of something else; give another name")


def _answer(run: Run, settings: Settings, weights: Any, out: Path) -> str:
    size = sum(path.stat().st_size for path in [out, *out.rglob("*")] if path.is_file())
    name = f"{run.folder.parent.name}/{run.folder.name}, step {run.step:,}"
    name += f", {average.label(run)}" if run.average else ""
    way_on = f"dualpath validate --ckpt-path {out}{option_of(settings.model)}"
    if out.is_dir():
        way_on = f"lm_eval --model hf --model_args pretrained={out},trust_remote_code=True"
        way_on += " --tasks piqa"
    return (
        f"{name}: {weights.parameters / 1e6:,.1f}M parameters, {decimal(size)}\n{out}\n"
        f"next: {way_on}"
    )
