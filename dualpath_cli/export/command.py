"""`dualpath export` and `import`: options, checks, the answer. Torch comes once all is checked."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.filesize import decimal

from dualpath_cli.errors import UserError
from dualpath_cli.export.hf.card import read_results
from dualpath_cli.options import Average, OwnClasses, path_of
from dualpath_cli.output.console import Progress, bytes_of_bytes, plain_console
from dualpath_cli.own_classes.checks import check_as_trained, option_of
from dualpath_cli.recipe.settings import Settings
from dualpath_cli.run.checkpoint_files import files_of
from dualpath_cli.run.exported_folder import (
    MODELING,
    check_ours,
    check_unchanged,
    is_exported,
    read_folder,
)
from dualpath_cli.run.run_file import SUFFIX
from dualpath_cli.run.run_folder import Run
from dualpath_cli.run.trained import find, label_of_average
from dualpath_cli.text import hub
from dualpath_cli.text.hub import FIRST_ANSWER_SECONDS, within

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import ModelInfo

FORMATS = {"consolidated": SUFFIX, "hf": ""}  # ends of names of what they write


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
    """Exports, and returns what was written as text. Raises RunFailed where an upload fails."""
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
        repository = Repository(options.push)
    from dualpath_cli.export import weights as consolidated
    from dualpath_cli.export.hf import folder
    from dualpath_cli.training.state.loading import verify

    console = plain_console()
    checkpoints = run.average or (run.checkpoint,)
    size = sum(path.stat().st_size for one in checkpoints for path in files_of(one))
    with Progress(console, "checking", bytes_of_bytes, size) as progress:
        for checkpoint in checkpoints:
            verify(checkpoint, progress.advance)
    weights = consolidated.Weights.of_average(checkpoints, settings.model)
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
    name += f", {label_of_average(run)}" if run.average else ""
    way_on = f"dualpath validate --ckpt-path {out}{option_of(settings.model)}"
    if out.is_dir():
        way_on = f"lm_eval --model hf --model_args pretrained={out},trust_remote_code=True"
        way_on += " --tasks piqa"
    return (
        f"{name}: {weights.parameters / 1e6:,.1f}M parameters, {decimal(size)}\n{out}\n"
        f"next: {way_on}"
    )


@dataclass(frozen=True)
class Import(OwnClasses):
    """Reads a folder of transformers that `export --format hf` wrote, and writes its model as one
    file, which all commands take as their RUN.
    """

    hf: str | None = None
    """Folder that export --format hf wrote; transformers may have saved it since."""
    out: str | None = None
    """What to write; by default DIR.safetensors, beside the folder."""
    overwrite: bool = False
    """Replace what is at --out already."""

    def __post_init__(self) -> None:
        if self.hf is None:
            raise UserError(
                "import needs --hf DIR: a folder that dualpath export --format hf wrote"
            )


def run_import(options: Import) -> str:
    """Writes the file, and returns what it is as text."""
    assert options.hf is not None
    folder = path_of("--hf", options.hf)
    found, settings = read_folder(folder)
    check_as_trained(found, settings.model)
    folder = folder.resolve()
    default = folder.with_name(folder.name + SUFFIX)
    out = default if options.out is None else path_of("--out", options.out)
    if out.suffix != SUFFIX or out.is_dir():
        raise UserError(f"--out '{out}' must be a file whose name ends in {SUFFIX}")
    if folder in out.resolve().parents:
        raise UserError(f"--out '{out}' is inside the folder; give a path outside of it")
    if out.exists() and not options.overwrite:
        raise UserError(f"'{out}' is there already; give another --out, or --overwrite")
    from dualpath_cli.export.weights import Weights, write

    console = plain_console()
    size = sum(path.stat().st_size for path in files_of(folder))
    with Progress(console, "checking", bytes_of_bytes, size) as progress:
        check_unchanged(folder, progress.advance)
    weights = Weights.of_folder(folder, settings.model)
    with Progress(console, "writing", bytes_of_bytes, weights.bytes) as progress:
        write(found, settings, weights, out, progress)
    name = f"{settings.run.recipe}/{settings.run.name}, step {found.step:,}"
    return f"{name}: {weights.parameters / 1e6:,.1f}M parameters\n{out}\n" + (
        f"next: dualpath validate --ckpt-path {out}{option_of(settings.model)}"
    )


class Repository:
    """A repository USER/REPO of models on the Hugging Face hub; nothing is asked yet."""

    def __init__(self, name: str) -> None:
        self._name, self._what = name, f"--push '{name}'"
        if name.count("/") != 1:
            raise UserError(f"{self._what} is not a name on the hub; give USER/REPO")
        self._api: HfApi = hub.connect(self._what)
        self.page = f"{self._api.endpoint}/{name}"
        if not self._api.token:
            raise UserError(
                f"{self._what} needs a token: make one with the right to write at "
                f"{self._api.endpoint}/settings/tokens, then `hf auth login` or set HF_TOKEN"
            )

    def make(self, public: bool) -> None:
        """Makes the repository where there is none, and looks what is in it.

        Raises RunFailed where the hub does not answer.
        """
        with hub.explained(self._what, self.page, self._api):
            # huggingface_hub itself waits without end for a server that accepts and never answers.
            info = within(FIRST_ANSWER_SECONDS, lambda: self._made(public))
        if public and info.private:
            raise UserError(f"{self.page} is private; leave --public out, or make it public there")
        if not public and not info.private:
            raise UserError(f"{self.page} is public; say --public, or give another name")
        names = {file.rfilename for file in info.siblings or ()}
        if MODELING not in names and names - {".gitattributes", "README.md"}:
            raise UserError(f"{self.page} holds files of something else; give another name")

    def _made(self, public: bool) -> "ModelInfo":
        self._api.create_repo(self._name, private=not public, exist_ok=True)
        return self._api.model_info(self._name)

    def upload(self, folder: Path, message: str) -> str:
        """Uploads all files of a folder, all or none, in a commit, and returns its address.

        Files that are there already are neither sent again nor part of the commit, and without
        any other there is none: the address is then that of the last. Others in the repository
        stay. Raises RunFailed where the transfer fails, or the hub.
        """
        from huggingface_hub import CommitOperationAdd

        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        adds = [CommitOperationAdd(path.relative_to(folder).as_posix(), path) for path in files]
        # The folder is written by now, and what was uploaded is not sent again.
        again = "run this again with --overwrite"
        with hub.explained(self._what, self.page, self._api, again):
            commit = self._api.create_commit(self._name, adds, commit_message=message)
        return commit.commit_url
