"""`dualpath export`: options and checks; torch is imported after the checks."""

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.filesize import decimal

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.files import path_of
from dualpath_cli.base.folders import folder_inside
from dualpath_cli.base.output import say
from dualpath_cli.base.ranges import Place
from dualpath_cli.recipe.settings import Settings
from dualpath_cli.report.console import Progress, bytes_of_bytes, plain_console
from dualpath_cli.run.checkpoint_files import files_of
from dualpath_cli.run.exported_folder import check_ours, is_exported
from dualpath_cli.run.run_folder import Run
from dualpath_cli.run.tables import lost, read_tables
from dualpath_cli.run.trained import find_trained
from dualpath_cli.spec.own_checks import OwnClasses, option_of


@dataclass(frozen=True, kw_only=True)
class Export(OwnClasses):
    """Writes a run's model as a folder that transformers loads and that every command
    takes as its RUN: configuration, safetensors, tokenizer, the model's code, a model
    card. Export takes one process and no GPU.

      dualpath export --ckpt-path runs/quickstart/default --out exported
    """

    ckpt_path: Place
    """Run folder, a checkpoint inside one, or an exported folder."""
    out: Place | None = None
    """Folder to write; by default RUN/export/RECIPE-NAME-step-N."""
    license: str | None = None
    """Licence for the model card, as the hub spells it: apache-2.0."""
    overwrite: bool = False
    """Replace an exported folder at --out."""

    def __post_init__(self) -> None:
        check_license(self.license)


def export(options: Export) -> str:
    found = find_trained(options.ckpt_path, options.own_classes)
    run = found.run
    settings = found.settings
    out = _out_of(options, run, settings)
    tables = read_tables(run.folder, run.step)
    for line in lost(run.folder, settings, run.step, tables):
        say(line, sys.stdout)

    # Slow imports, after the checks.
    from dualpath_cli.export.hf.folder import Weights, write_folder
    from dualpath_cli.run.weights import verify

    console = plain_console()
    size = sum(path.stat().st_size for path in files_of(run.checkpoint))
    with Progress(console, "checking", bytes_of_bytes, size) as progress:
        verify(run.checkpoint, progress.advance)

    weights = Weights.of_checkpoint(run.checkpoint, settings.model)
    with Progress(console, "writing", bytes_of_bytes, weights.bytes) as progress:
        write_folder(run, settings, weights, out, progress, options.license)

    shown = f"{settings.run.recipe}/{settings.run.name}, step {run.step:,}"
    quoted = shlex.quote(str(out))
    arguments = shlex.quote(f"pretrained={out},trust_remote_code=True")
    return (
        f"{summary(shown, weights.parameters, out)}\n"
        f"next: dualpath validate --ckpt-path {quoted}{option_of(settings.model)}\n"
        f"or:   lm_eval --model hf --model_args {arguments} --tasks piqa"
    )


def _out_of(options: Export, run: Run, settings: Settings) -> Path:
    """The folder to write, which is free or may be replaced."""
    if options.out is not None:
        out = path_of("--out", options.out)
    else:
        name = f"{settings.run.recipe}-{settings.run.name}-step-{run.step:08d}"
        out = folder_inside(run.folder, "export", name)
    return check_out(out, run.folder, options.overwrite)


def summary(name: str, parameters: int, out: Path) -> str:
    """The first lines of the answer: the model, its sizes, its folder."""
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    return f"{name}: {parameters / 1e6:,.1f}M parameters, {decimal(size)}\n{out}"


def check_license(name: str | None) -> None:
    """Raises UserError unless a name can be a licence's on the hub."""
    if name is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", name):
        raise UserError(
            f"--license '{name}' is not a licence on the hub, such as apache-2.0 or "
            "other"
        )


def check_out(out: Path, read: Path, overwrite: bool) -> Path:
    """Returns the folder to write; raises UserError unless it may be written."""
    out = out.resolve()  # a link's target is replaced
    if out.exists() and not out.is_dir():
        kind = "file" if out.is_file() else "pipe, a socket or a device"
        raise UserError(f"--out '{out}' is a {kind}; give a folder")

    if out.exists() and read.resolve() == out:
        raise UserError(f"--out '{out}' is also the folder to read; give another name")

    full = out.is_dir() and any(out.iterdir())
    if full and not is_exported(out):
        raise UserError(
            f"--out '{out}' holds files that no export wrote; give another name"
        )

    if out.exists() and not overwrite:
        raise UserError(f"'{out}' exists already; give another --out, or --overwrite")

    check_ours(out, out)
    return out
