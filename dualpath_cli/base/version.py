"""What tells the results of two machines apart: versions and the device.

`pyproject.toml` reads the package's own version here.
"""

import importlib.metadata
import platform
import subprocess
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__version__ = "0.1.0"

_PACKAGES = (
    "dualpath",
    "torch",
    "lightning",
    "litdata",
    "torchmetrics",
    "jsonargparse",
)


def versions() -> dict[str, Any]:
    """Versions of packages and Python, and the commit, as a run records them."""
    return {
        "packages": package_versions(_PACKAGES),
        "python": platform.python_version(),
        "git_commit": _git_commit(),
    }


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """Versions of installed packages, by their names."""
    found = {}
    for name in names:
        # This one may be a checkout on the path, not installed.
        is_ours = name == "dualpath"
        found[name] = __version__ if is_ours else importlib.metadata.version(name)
    return found


def device_name(device: "torch.device") -> str:
    """The GPU's name; for a CPU, the kind of PyTorch's kernels: `cpu (AVX2)`."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "cpu":
        return f"cpu ({torch.backends.cpu.get_cpu_capability()})"
    return device.type


def _git_commit() -> str | None:
    """The checkout's commit, with `+changes` where files differ from it.

    None outside of a checkout.
    """
    file = Path(__file__)
    run = partial(
        subprocess.run, cwd=file.parent, capture_output=True, text=True, check=True
    )
    try:
        # Fails where the package is installed inside of another repository.
        run(["git", "ls-files", "--error-unmatch", file.name])

        commit = run(["git", "rev-parse", "HEAD"]).stdout.strip()
        has_changes = bool(run(["git", "status", "--porcelain"]).stdout)
    except (OSError, subprocess.CalledProcessError):
        return None

    return f"{commit}+changes" if has_changes else commit
