"""`dualpath export`: formats, options, checks, the answer. Torch comes once all is checked."""

import re
from argparse import Namespace
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from dualpath_cli.cli.commands import resolve
from dualpath_cli.errors import UserError
from dualpath_cli.export.hf.results import read_results
from dualpath_cli.options import check_choice, path_of
from dualpath_cli.output.console import plain_console
from dualpath_cli.output.progress import Progress, bytes_of_bytes
from dualpath_cli.own_classes.checks import check_as_trained, option_of
from dualpath_cli.recipe.settings import Settings, settings_from
from dualpath_cli.run import average, run_file, run_folder
from dualpath_cli.run.checkpoint_files import files_of
from dualpath_cli.run.exported_folder import check_ours, is_exported
from dualpath_cli.run.run_folder import Run

_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]*")


@dataclass(frozen=True)
class Format:
    """A format: its words on the command line, and the function that writes it."""

    purpose: str
    """For --help."""
    suffix: str
    """The end of the names of its files; a folder has none."""
    write: str
    """Named `module:function`: gets the Run, its Settings, the Weights, the path to write to and
    the Progress, which it advances by the bytes of the weights written."""
    next: str
    """A command that uses it, with {out} and maybe {own_classes}, the option for them."""
    for_hub: bool = False
    """Whether the hub takes it: the writer then takes the `results` of an evaluation and a
    `license` for its model card."""


FORMATS = {
    "consolidated": Format(
        "one file of safetensors with recipe and tokenizer inside, which all commands take as "
        "their RUN",
        ".safetensors",
        "dualpath_cli.export.consolidated:write",
        "dualpath validate --ckpt-path {out}{own_classes}",
    ),
    "hf": Format(
        "a folder for transformers: configuration, safetensors, tokenizer, the model's code, a "
        "model card",
        "",
        "dualpath_cli.export.hf.folder:write",
        "lm_eval --model hf --model_args pretrained={out},trust_remote_code=True --tasks piqa",
        for_hub=True,
    ),
}
"""A new format is an entry here, and the function that it names."""


def add_arguments(parser: Any) -> None:
    """Adds the options to an argparse or a jsonargparse parser."""
    parser.add_argument(
        "--ckpt-path", metavar="RUN",
        help="Run folder, or a checkpoint inside one: a file, or a folder of shards.",
    )  # fmt: skip
    average.add_arguments(parser)
    formats = "; ".join(f"{name}: {format_.purpose}" for name, format_ in FORMATS.items())
    parser.add_argument("--format", metavar="FORMAT", help=f"{formats}.")
    parser.add_argument(
        "--out", metavar="PATH",
        help="What to write, a file or, for hf, a folder; by default "
        "RUN/export/RECIPE-NAME-step-N with the format's suffix.",
    )  # fmt: skip
    parser.add_argument(
        "--results", metavar="PATH",
        help="A results.json of dualpath evaluate, or its folder, for the model card of hf.",
    )  # fmt: skip
    parser.add_argument(
        "--license", metavar="NAME",
        help="The licence that the model card of hf names, as the hub spells it: apache-2.0.",
    )  # fmt: skip
    parser.add_argument(
        "--push", metavar="USER/REPO",
        help="Upload the folder of hf to this repository of the Hugging Face hub, which is made "
        "where there is none, with the token of HF_TOKEN or of `hf auth login`. Its recipe.yaml "
        "has the paths of data and runs as they were given.",
    )  # fmt: skip
    parser.add_argument(
        "--public", action="store_true",
        help="Let everybody see what --push uploads; without it a new repository is private.",
    )  # fmt: skip
    parser.add_argument(
        "--overwrite", action="store_true", help="Replace PATH where it is there already."
    )


def run(options: Namespace) -> str:
    """Exports, and returns what was written as text.

    Raises:
        RunFailed: where an upload fails.
    """
    if options.ckpt_path is None:
        raise UserError("export needs --ckpt-path RUN: a run folder or a checkpoint inside one")
    if options.format is None:
        raise UserError(f"export needs --format FORMAT: {', '.join(FORMATS)}")
    format_ = FORMATS[check_choice("--format", options.format, tuple(FORMATS))]
    _check_for_hub(options, format_)
    found = average.averaged(run_file.find(options.ckpt_path), average.read(options.average))
    if found.average and options.results is not None:
        raise UserError("--results are of a checkpoint's weights, not of their --average")
    settings = settings_from(run_folder.read_recipe(found.folder))
    check_as_trained(found, settings.model)
    name = f"{settings.run.recipe}-{settings.run.name}"
    of = f"-average-{len(found.average)}" if found.average else ""
    default = found.home / "export" / f"{name}-step-{found.step:08d}{of}{format_.suffix}"
    out = default if options.out is None else path_of("--out", options.out)
    out = out if format_.suffix else out.resolve()  # of a link, what it links to is replaced
    _check_out(out, format_)
    if out.exists() and not options.overwrite:
        raise UserError(f"'{out}' is there already; give another --out, or --overwrite")
    if not format_.suffix:
        check_ours(out, out)
    card, repository = _card(options, found, settings), None
    if options.push is not None:
        from dualpath_cli.export.hf.push import Repository

        repository = Repository(options.push)
    write = partial(resolve(format_.write), **card)
    console = plain_console()
    from dualpath_cli.export.weights import Weights
    from dualpath_cli.training.state.integrity import verify

    checkpoints = found.average or (found.checkpoint,)
    size = sum(path.stat().st_size for one in checkpoints for path in files_of(one))
    with Progress(console, "checking", bytes_of_bytes, size) as progress:
        for checkpoint in checkpoints:
            verify(checkpoint, progress.advance)
    weights = Weights.of_average(checkpoints, settings.model)
    if repository is not None:  # before the slowest part, and once there is something to upload
        repository.make(options.public)
    with Progress(console, "writing", bytes_of_bytes, weights.bytes) as progress:
        write(found, settings, weights, out, progress)
    answer = _answer(found, settings, weights, out, format_)
    if repository is None:
        return answer
    commit = repository.upload(out, f"{name}, step {found.step:,}")
    return f"{answer}\nuploaded: {repository.page}, commit {commit.rpartition('/')[2]}"


def _check_for_hub(options: Namespace, format_: Format) -> None:
    """Raises UserError for options that the format, or another option, makes meaningless."""
    for name in ("results", "license", "push"):
        if getattr(options, name) is not None and not format_.for_hub:
            what = "it takes such folders" if name == "push" else "it is for the model card"
            raise UserError(f"--{name} goes with --format hf alone: {what}")
    if options.public and options.push is None:
        raise UserError("--public says who sees what --push USER/REPO uploads; give that, too")
    if options.license is not None and not _LICENSE.fullmatch(options.license):
        raise UserError(
            f"--license '{options.license}' is no name of the hub's, such as apache-2.0 or other; "
            "https://huggingface.co/docs/hub/repositories-licenses lists them"
        )


def _card(options: Namespace, run: Run, settings: Settings) -> dict[str, Any]:
    """The arguments that the words for the model card add to the call of the format's writer."""
    given: dict[str, Any] = {} if options.license is None else {"license": options.license}
    if options.results is not None:
        name = f"{settings.run.recipe}/{settings.run.name}"
        given["results"] = read_results(Path(options.results), name, run.step)
    return given


def _check_out(out: Path, format_: Format) -> None:
    """Raises UserError for a path of another format, and for a folder that is not an export's."""
    if format_.suffix:
        if out.suffix != format_.suffix:
            raise UserError(f"--out '{out}' must end in {format_.suffix}, which its readers go by")
        if out.is_dir():
            raise UserError(f"--out '{out}' is a folder; give a file")
        return
    if out.is_file():
        raise UserError(f"--out '{out}' is a file; give a folder")
    if out.is_dir() and any(out.iterdir()) and not is_exported(out):
        raise UserError(f"--out '{out}' is a folder of something else; give another name")


def _answer(run: Run, settings: Settings, weights: Any, out: Path, format_: Format) -> str:
    size = sum(path.stat().st_size for path in [out, *out.rglob("*")] if path.is_file())
    name = f"{run.folder.parent.name}/{run.folder.name}, step {run.step:,}"
    name += f", {average.label(run)}" if run.average else ""
    return (
        f"{name}: {weights.parameters / 1e6:,.1f}M parameters, {decimal(size)}\n{out}\n"
        f"next: {format_.next.format(out=out, own_classes=option_of(settings.model))}"
    )
