"""`dualpath export`: options, checks, the answer. Torch comes once all is checked."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.ranges import Place
from dualpath_cli.data import hub
from dualpath_cli.data.hub import FIRST_ANSWER_SECONDS, within
from dualpath_cli.export.hf.card import read_results
from dualpath_cli.recipe.options import Average, OwnClasses, path_of
from dualpath_cli.recipe.settings import Settings
from dualpath_cli.report.console import Progress, bytes_of_bytes, plain_console
from dualpath_cli.run.checkpoint_files import files_of
from dualpath_cli.run.exported_folder import MODELING, check_ours, is_exported
from dualpath_cli.run.run_folder import Run
from dualpath_cli.run.trained import find, label_of_average
from dualpath_cli.spec.own_checks import option_of

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import ModelInfo


@dataclass(frozen=True, kw_only=True)
class Export(Average, OwnClasses):
    """Writes a run's model as a folder that transformers loads and that every command takes as its
    RUN: configuration, safetensors, tokenizer, the model's code, a model card. It takes one process
    and no GPU.
    """

    ckpt_path: Place
    """Run folder, a checkpoint inside one, or an exported folder."""
    out: Place | None = None
    """Folder to write; by default RUN/export/RECIPE-NAME-step-N."""
    results: Place | None = None
    """A results.json of dualpath evaluate, or its folder, for the model card."""
    license: str | None = None
    """The licence that the model card names, as the hub spells it: apache-2.0."""
    push: str | None = None
    """USER/REPO: upload the folder to this repository of the Hugging Face hub, which is made where
    there is none, with the token of HF_TOKEN or of `hf auth login`. Its recipe.yaml has the paths
    of data and runs as they were given."""
    public: bool = False
    """Let everybody see what --push uploads; without it a new repository is private."""
    overwrite: bool = False
    """Replace what is at --out already."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.public and self.push is None:
            raise ValueError("public says who sees what --push USER/REPO uploads; give that, too")
        check_license(self.license)
        if self.average > 1 and self.results is not None:
            raise ValueError("results are of a checkpoint's weights, not of their --average")


def run(options: Export) -> str:
    """Exports, and returns what was written as text. Raises RunFailed where an upload fails."""
    found = find(options.ckpt_path, options.average, own_classes=options.own_classes)
    run, settings = found.run, found.settings
    name = f"{settings.run.recipe}-{settings.run.name}"
    of = f"-average-{len(run.average)}" if run.average else ""
    default = run.folder / "export" / f"{name}-step-{run.step:08d}{of}"
    out = default if options.out is None else path_of("--out", options.out)
    out = check_out(out, run.folder, options.overwrite)
    results = repository = None
    if options.results is not None:
        of_run = f"{settings.run.recipe}/{settings.run.name}"
        results = read_results(Path(options.results), of_run, run.step)
    if options.push is not None:
        repository = Repository(options.push)
    from dualpath_cli.export.hf import folder
    from dualpath_cli.run.weights import verify

    console = plain_console()
    checkpoints = run.average or (run.checkpoint,)
    size = sum(path.stat().st_size for one in checkpoints for path in files_of(one))
    with Progress(console, "checking", bytes_of_bytes, size) as progress:
        for checkpoint in checkpoints:
            verify(checkpoint, progress.advance)
    weights = folder.Weights.read(checkpoints, settings.model)
    if repository is not None:  # before the slowest part, and once there is something to upload
        repository.make(options.public)
    with Progress(console, "writing", bytes_of_bytes, weights.bytes) as progress:
        folder.write(run, settings, weights, out, progress, results, options.license)
    answer = _answer(run, settings, weights, out)
    if repository is None:
        return answer
    commit = repository.upload(out, f"{name}, step {run.step:,}")
    return f"{answer}\nuploaded: {repository.page}, commit {commit.rpartition('/')[2]}"


def check_license(name: str | None) -> None:
    """Raises UserError unless a name can be a licence's on the hub."""
    if name is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", name):
        raise UserError(
            f"--license '{name}' is no name of the hub's, such as apache-2.0 or other; "
            "https://huggingface.co/docs/hub/repositories-licenses lists them"
        )


def check_out(out: Path, read: Path, overwrite: bool) -> Path:
    """Returns the folder to write; UserError unless it is free, or an export to overwrite."""
    out = out.resolve()  # of a link, what it links to is replaced
    if out.is_file():
        raise UserError(f"--out '{out}' is a file; give a folder")
    if read.resolve() == out:
        raise UserError(f"--out '{out}' is the folder that is read; give another name")
    if out.is_dir() and any(out.iterdir()) and not is_exported(out):
        raise UserError(f"--out '{out}' is a folder of something else; give another name")
    if out.exists() and not overwrite:
        raise UserError(f"'{out}' is there already; give another --out, or --overwrite")
    check_ours(out, out)
    return out


def _answer(run: Run, settings: Settings, weights: Any, out: Path) -> str:
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    name = f"{settings.run.recipe}/{settings.run.name}, step {run.step:,}"
    label = label_of_average(run)
    name += f", {label}" if label else ""
    return (
        f"{name}: {weights.parameters / 1e6:,.1f}M parameters, {decimal(size)}\n{out}\n"
        f"next: dualpath validate --ckpt-path {out}{option_of(settings.model)}\n"
        f"or:   lm_eval --model hf --model_args pretrained={out},trust_remote_code=True "
        "--tasks piqa"
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
        from huggingface_hub import CommitOperationAdd, get_session

        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        adds = [CommitOperationAdd(path.relative_to(folder).as_posix(), path) for path in files]
        # The folder is written by now, and what was uploaded is not sent again.
        again = "run this again with --overwrite"
        get_session().timeout = hub.ANSWER_SECONDS  # between two signs of life; its own is none
        with hub.explained(self._what, self.page, self._api, again):
            commit = self._api.create_commit(self._name, adds, commit_message=message)
        return commit.commit_url
