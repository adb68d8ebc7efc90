"""The words that the commands about a trained run share; imports nothing slow."""

from argparse import ArgumentParser
from pathlib import Path

from dualpath_cli.errors import UserError
from dualpath_cli.options import add_list_option, folder_of
from dualpath_cli.recipe.recipes import Recipe
from dualpath_cli.run import run_folder
from dualpath_cli.sizes import parse_size
from dualpath_cli.text.documents import parse_source, split_name
from dualpath_cli.text.manifest import is_data_folder
from dualpath_cli.text.storage import is_remote

TAGGER = "en_core_web_sm"
"""The spaCy pipeline by default."""


def add_text_arguments(parser: ArgumentParser) -> None:
    text = (
        "Texts, .txt, .jsonl or .parquet, or prepared data folders; by default the run's "
        "validation sets."
    )
    add_list_option(parser, "--sources", "NAME=PATH", text)
    text = (
        "At most so many tokens of each source, such as 20K, drawn at random from all of its "
        "documents with the seed data.val_seed; by default data.val_tokens."
    )
    parser.add_argument("--max-tokens", metavar="N", help=text)


def take_sources(recipe: Recipe, sources: list[str], max_tokens: str | None) -> None:
    """Puts texts given as NAME=PATH in the place of the run's validation sets."""
    texts = [_name_and_location(source) for source in sources]
    names = [name for name, _ in texts]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"--sources has two texts named '{name}'; give NAME=PATH")
    if texts:
        recipe["data"]["val"] = dict(texts)
    if not recipe["data"]["val"]:
        raise UserError("the run names no validation set; give a text: --sources NAME=PATH")
    if max_tokens is not None:
        recipe["data"]["val_tokens"] = parse_size(str(max_tokens), "--max-tokens")


def _name_and_location(spec: str) -> tuple[str, str]:
    """Reads one of `--sources`; what lies on S3 is checked with the other validation sets."""
    if is_remote(spec):
        raise UserError(f"--sources '{spec}' has no name; give NAME={spec}")
    name, _, location = spec.partition("=")
    if is_remote(location):
        return name, location
    given, path = split_name(spec)
    if is_data_folder(path):
        return given or Path(path).resolve().name, path
    source = parse_source(spec)
    return source.name, str(source.path)


def out_folder(out: str | None, run: run_folder.Run, kind: str) -> Path:
    """Returns the folder for what a study writes: `--out`, or RUN/<kind>/step-N."""
    return folder_of("--out", run.home / kind / f"step-{run.step:08d}" if out is None else out)
