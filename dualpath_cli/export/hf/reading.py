"""`dualpath import`: a folder that `export --format hf` wrote, as a run in one file."""

import dataclasses
from pathlib import Path

from dualpath_cli.config import RENAMED, ModelConfig
from dualpath_cli.errors import UserError, of_content
from dualpath_cli.files import read_json
from dualpath_cli.options import OwnClasses, path_of
from dualpath_cli.own_classes import consent
from dualpath_cli.own_classes.checks import check_as_trained, option_of
from dualpath_cli.ranges import check_range
from dualpath_cli.recipe.settings import Settings, settings_from
from dualpath_cli.run import run_folder
from dualpath_cli.run.checkpoint_files import files_of
from dualpath_cli.run.exported_folder import CONFIG, check_unchanged
from dualpath_cli.run.run_file import MOST_STEPS, SUFFIX
from dualpath_cli.run.run_folder import RECIPE, TOKENIZER, VERSIONS, Run


@dataclasses.dataclass(frozen=True)
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


def run(options: Import) -> str:
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
    from dualpath_cli.export import consolidated
    from dualpath_cli.export.weights import Weights
    from dualpath_cli.output.console import Progress, bytes_of_bytes, plain_console

    console = plain_console()
    size = sum(path.stat().st_size for path in files_of(folder))
    with Progress(console, "checking", bytes_of_bytes, size) as progress:
        check_unchanged(folder, progress.advance)
    weights = Weights.of_folder(folder, settings.model)
    with Progress(console, "writing", bytes_of_bytes, weights.bytes) as progress:
        consolidated.write(found, settings, weights, out, progress)
    name = f"{settings.run.recipe}/{settings.run.name}, step {found.step:,}"
    return f"{name}: {weights.parameters / 1e6:,.1f}M parameters\n{out}\n" + (
        f"next: dualpath validate --ckpt-path {out}{option_of(settings.model)}"
    )


def read_folder(folder: Path) -> tuple[Run, Settings]:
    """The run that a folder is of, and its settings."""
    for name in (CONFIG, RECIPE, VERSIONS, TOKENIZER):
        if not (folder / name).is_file():
            hint = ""
            if name in (RECIPE, VERSIONS):
                hint = "; copy it from the folder that dualpath export wrote"
            raise UserError(f"--hf '{folder}' holds no {name}{hint}")
    try:
        config = read_json(folder / CONFIG)
        step = config["dualpath"]["step"]
        if type(step) is not int:
            raise ValueError(f"its step is {step!r:.40}")
        check_range("its step", step, (0, MOST_STEPS))
        names = [field.name for field in dataclasses.fields(ModelConfig)]
        written = {name: RENAMED.get(name, name) for name in names}
        # Earlier versions lack fields that came later, with their defaults.
        model = {name: config[key] for name, key in written.items() if key in config}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"'{folder / CONFIG}' is not of a model of dualpath: {of_content(error)}"
        ) from None
    consent.note_read(folder, model)
    way_out = f"put {CONFIG} back, or export the run again"
    run_folder.check_same_recipe(folder, {"model": model}, ("model",), way_out=way_out)
    run_folder.check_as_written(folder, folder)
    settings = settings_from(run_folder.read_recipe(folder))
    return Run(folder, folder, step, home=folder), settings
