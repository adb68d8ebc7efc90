"""`dualpath export`: options, checks, upload. Torch is imported after the checks."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.filesize import decimal

from dualpath_cli.base.errors import UserError
from dualpath_cli.base.ranges import Place
from dualpath_cli.data import hub
from dualpath_cli.export.hf.card import read_results
from dualpath_cli.recipe.options import Average, OwnClasses, path_of
from dualpath_cli.report.console import Progress, bytes_of_bytes, plain_console
from dualpath_cli.run.checkpoint_files import files_of
from dualpath_cli.run.exported_folder import MODELING, check_ours, is_exported
from dualpath_cli.run.trained import find, label_of_average
from dualpath_cli.spec.own_checks import option_of

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import ModelInfo


@dataclass(frozen=True, kw_only=True)
class Export(Average, OwnClasses):
    """Writes a run's model as a folder that transformers loads and that every command takes as its
    RUN: configuration, safetensors, tokenizer, the model's code, a model card. Export takes one
    process and no GPU.
    """

    ckpt_path: Place
    """Run folder, a checkpoint inside one, or an exported folder."""
    out: Place | None = None
    """Folder to write; by default RUN/export/RECIPE-NAME-step-N."""
    results: Place | None = None
    """A results.json of dualpath evaluate, or its folder, for the model card."""
    license: str | None = None
    """Licence for the model card, as the hub spells it: apache-2.0."""
    push: str | None = None
    """USER/REPO: upload the folder to this repository of the Hugging Face hub, with the token of
    HF_TOKEN or of `hf auth login`. A missing repository is made. The uploaded recipe.yaml has the
    paths of data and runs."""
    public: bool = False
    """Make a new repository of --push public; without this option it is private."""
    overwrite: bool = False
    """Replace an exported folder at --out."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.public and self.push is None:
            raise ValueError("public is for the repository of --push USER/REPO; give that, too")
        check_license(self.license)
        if self.average > 1 and self.results is not None:
            raise ValueError("results are scores of one checkpoint, not of an --average")


def run(options: Export) -> str:
    """Exports; returns the answer to print. Raises RunFailed if an upload fails."""
    found = find(options.ckpt_path, options.average, own_classes=options.own_classes)
    run, settings = found.run, found.settings
    name = f"{settings.run.recipe}-{settings.run.name}"
    of = f"-average-{len(run.average)}" if run.average else ""
    default = run.folder / "export" / f"{name}-step-{run.step:08d}{of}"
    out = default if options.out is None else path_of("--out", options.out)
    out = check_out(out, run.folder, options.overwrite)
    scores, shown = "", f"{settings.run.recipe}/{settings.run.name}"
    if options.results is not None:
        scores = read_results(Path(options.results), shown, run.step)
    repository = None if options.push is None else Repository(options.push)
    from dualpath_cli.export.hf import folder
    from dualpath_cli.run.weights import verify

    console = plain_console()
    checkpoints = run.average or (run.checkpoint,)
    size = sum(path.stat().st_size for one in checkpoints for path in files_of(one))
    with Progress(console, "checking", bytes_of_bytes, size) as progress:
        for checkpoint in checkpoints:
            verify(checkpoint, progress.advance)
    weights = folder.Weights.read(checkpoints, settings.model)
    if repository is not None:  # before the slowest part, after the last refusal
        repository.make(options.public)
    with Progress(console, "writing", bytes_of_bytes, weights.bytes) as progress:
        folder.write(run, settings, weights, out, progress, scores, options.license)
    label = label_of_average(run)
    shown += f", step {run.step:,}" + (f", {label}" if label else "")
    answer = (
        f"{summary(shown, weights.parameters, out)}\n"
        f"next: dualpath validate --ckpt-path {out}{option_of(settings.model)}\n"
        f"or:   lm_eval --model hf --model_args pretrained={out},trust_remote_code=True "
        "--tasks piqa"
    )
    if repository is None:
        return answer
    commit = repository.upload(out, f"{name}, step {run.step:,}")
    return f"{answer}\nuploaded: {repository.page}, commit {commit.rpartition('/')[2]}"


def summary(name: str, parameters: int, out: Path) -> str:
    """The first lines of the answer: the model, its sizes, its folder."""
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    return f"{name}: {parameters / 1e6:,.1f}M parameters, {decimal(size)}\n{out}"


def check_license(name: str | None) -> None:
    """Raises UserError unless a name has the form of the hub's licences."""
    if name is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", name):
        raise UserError(
            f"--license '{name}' is no name of the hub's, such as apache-2.0 or other; "
            "https://huggingface.co/docs/hub/repositories-licenses lists them"
        )


def check_out(out: Path, read: Path, overwrite: bool) -> Path:
    """Returns the folder to write; raises UserError unless it is free, or may be replaced."""
    out = out.resolve()  # a link's target is replaced
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


class Repository:
    """A repository USER/REPO of models on the Hugging Face hub; the constructor sends nothing."""

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
        """Makes a missing repository, and checks the files and visibility of an existing one.

        Raises RunFailed if the hub does not answer.
        """
        with hub.explained(self._what, self.page, self._api):
            # huggingface_hub alone waits without end for a server that accepts and never answers.
            info = hub.within(hub.FIRST_ANSWER_SECONDS, lambda: self._made(public))
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
        """Uploads the files of a folder in one commit, all or none; returns the commit's address.

        Unchanged files are not sent; if all are unchanged, the address is that of the last commit.
        Other files of the repository stay. Raises RunFailed if the transfer or the hub fails.
        """
        from huggingface_hub import get_session

        again = "run this again with --overwrite"  # the folder is written by now
        get_session().timeout = hub.ANSWER_SECONDS  # between two signs of life; by default none
        with hub.explained(self._what, self.page, self._api, again):
            commit = self._api.upload_folder(
                repo_id=self._name, folder_path=folder, commit_message=message
            )
        return commit.commit_url
