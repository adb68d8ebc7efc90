"""The weights of a folder of transformers, by the model's own names."""

from pathlib import Path

from dualpath_cli.config import ModelConfig
from dualpath_cli.errors import UserError, of_content
from dualpath_cli.export.weights import Weights
from dualpath_cli.files import read_json
from dualpath_cli.ranges import check_name
from dualpath_cli.run.exported_folder import PREFIX, WEIGHTS
from dualpath_cli.training.state.weights import read_safetensors


def weights_of(folder: Path, config: ModelConfig) -> Weights:
    """Those in its files of safetensors, one or several.

    Raises:
        UserError: where they cannot be read, or are not of this model.
    """
    files = [folder / name for name in _files(folder)]
    held = read_safetensors(files, config, f"the weights in '{folder}'", PREFIX)
    return Weights(folder, config, held)


def _files(folder: Path) -> list[str]:
    """Names of the files that hold the weights: transformers divides large models among several.

    Raises:
        UserError: where the index cannot be read, or names what is not in the folder.
    """
    index = folder / f"{WEIGHTS}.index.json"
    if not index.exists():
        return [WEIGHTS]
    try:
        names = sorted(set(read_json(index)["weight_map"].values()))
        for name in names:
            check_name("a file of weights", name)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"'{index}' cannot be used: {of_content(error)}") from None
    return names
