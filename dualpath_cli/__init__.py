"""Pretrain and study dual-path language models; `load` opens a trained one in
Python."""

from typing import TYPE_CHECKING, Any

from dualpath_cli.base.version import __version__

if TYPE_CHECKING:
    from dualpath_cli.api import LoadedModel, Loss, Routing, load

__all__ = ["LoadedModel", "Loss", "Routing", "__version__", "load"]


def __getattr__(name: str) -> Any:
    """Imports torch with the first use of a name, so that `dualpath --help` does
    not."""
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from dualpath_cli import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return list(__all__)
