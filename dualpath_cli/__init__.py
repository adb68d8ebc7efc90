"""Pretrain and study dual-path language models; `load` opens a trained one in Python."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dualpath_cli.evaluation.loaded import LoadedModel, Loss, Routing, load

__all__ = ["LoadedModel", "Loss", "Routing", "__version__", "load"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Imports torch with the first use of a name, so that `dualpath --help` does not."""
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from dualpath_cli.evaluation import loaded

    return getattr(loaded, name)
