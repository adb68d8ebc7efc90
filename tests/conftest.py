"""Settings and paths that all tests share."""

import errno
import importlib
import ipaddress
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from dualpath_cli.base.locks import exclusive
from dualpath_cli.cli.main import main
from tests.data.s3 import s3_bucket, s3_server

pytest_plugins = ["tests.training.tiny_run", "tests.data.faulty_data"]

# Tiny models gain nothing from threads and lose 40 times on a busy machine.
os.environ["OMP_NUM_THREADS"] = "1"  # also of the processes that tests start
os.fsync = lambda descriptor: None  # the files of a test need not outlive the machine
# A job in the background is deaf to Ctrl-C, and so would be what its tests start and
# interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _refuse_to_start_ranks() -> None:
    """Ranks would be copies of the tests' own process, which they end and leave
    hanging."""
    raise AssertionError(
        "a test of several ranks starts them by tests/cli/processes.py"
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Imports Lightning as `dualpath` does, where tests run: not in xdist's
    controller."""
    if getattr(session.config.option, "numprocesses", None):
        return
    import torch
    from lightning.pytorch.strategies.launchers import subprocess_script

    torch.set_num_threads(1)
    subprocess_script._basic_subprocess_cmd = _refuse_to_start_ranks


class Lazy:
    """A module that is imported at its first use: every worker collects every test."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


# Everyday the same examples, so that a change that passes here passes elsewhere; at
# night others. `derandomize` is said in each profile: left out, it is that of
# hypothesis' own profile, which is another one where CI is set. On a busy machine the
# time of an example says nothing.
EXAMPLES = 50
hypothesis.settings.register_profile(
    "everyday",
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
)
for name, count in {"nightly": 4 * EXAMPLES, "torture": 400 * EXAMPLES}.items():
    hypothesis.settings.register_profile(
        name,
        max_examples=count,
        derandomize=False,
        deadline=None,
        print_blob=True,
    )
hypothesis.settings.load_profile("everyday")


def examples(everyday: int) -> int:
    """The examples of a property that takes long: so many everyday, and as many times
    more as in other tests in another profile."""
    return everyday * hypothesis.settings.default.max_examples // EXAMPLES


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kills",
        type=int,
        default=1,
        help="How often test_kills.py kills a preparation.",
    )


Share = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def share(tmp_path_factory: pytest.TempPathFactory) -> Share:
    """`share(name, fill)`: a folder that is filled once in a session, for the tests of
    all workers.

    Tests read it, and change copies of it.
    """
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def folder(name: str, fill: Callable[[Path], object]) -> Path:
        path, filled = base / "shared" / name, base / "shared" / f"{name}.filled"
        path.mkdir(parents=True, exist_ok=True)
        with exclusive(base / "shared" / f"{name}.lock", path, wait=True):
            if not filled.exists():
                fill(path)
                filled.touch()
        return path

    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder by its path there."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


OutputOf = Callable[..., str]


@pytest.fixture
def output_of(capsys: pytest.CaptureFixture[str]) -> OutputOf:
    """`output_of(*words)`: what `dualpath WORDS`, which must succeed, prints."""

    def run(*words: object) -> str:
        capsys.readouterr()
        assert main([str(word) for word in words]) == 0
        return capsys.readouterr().out

    return run


Said = Callable[..., str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """`said(*words)`: the one line with which a command refuses them, or fails with
    `code` 1."""

    def run(*words: object, code: int = 2) -> str:
        capsys.readouterr()
        assert main([str(word) for word in words]) == code
        out, error = capsys.readouterr()
        assert error.startswith(f"dualpath {words[0]}: ")
        assert error.count("\n") == 1
        assert code != 2 or out == "" or words[0] == "fit", (
            "which says first what it begins"
        )
        return error

    return run


@pytest.fixture(scope="module", autouse=True)
def _no_graphs_of_other_files() -> None:
    """torch keeps so many graphs of a function and no more, whoever compiled it."""
    import torch

    torch.compiler.reset()


@pytest.fixture(autouse=True)
def _no_ranks_of_other_tests() -> Iterator[None]:
    """`fit` with DDP or FSDP in the tests' process leaves its process group and its
    rank there."""
    yield
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        distributed.destroy_process_group()
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "NODE_RANK", "LOCAL_RANK"):
        os.environ.pop(name, None)


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What was verified is remembered away from the user's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DUALPATH_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_proxy() -> Iterator[None]:
    """The tests' own servers are asked directly where the machine has a proxy."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("no_proxy", "NO_PROXY"):  # a program reads one of the two
            patch.setenv(name, "127.0.0.1,localhost")
        yield


def _stays_here(end: socket.socket, address: Any) -> bool:
    """Whether a connection is to this machine."""
    # To connect a socket of datagrams sends nothing; this way one learns one's address.
    if end.family not in (socket.AF_INET, socket.AF_INET6):
        return True
    if end.type != socket.SOCK_STREAM:
        return True

    host, _, *scope = address
    with suppress(ValueError):  # a name
        if ipaddress.ip_address(host).is_loopback:  # also where there is no IPv6
            return True
    if host == "localhost":
        return True

    # An address of any interface of this machine can be bound, and no other one.
    with socket.socket(end.family) as own, suppress(OSError):
        own.bind((host, 0, *scope))
        return True
    return False


@pytest.fixture(autouse=True)
def _no_network() -> Iterator[None]:
    """Fails a test that connects to another machine, by Python in this process."""
    refused: list[str] = []
    connect = socket.socket.connect

    def connect_here(end: socket.socket, address: Any) -> None:
        if not _stays_here(end, address):
            refused.append(f"{address[0]}, port {address[1]}")
            raise ConnectionRefusedError(
                errno.ECONNREFUSED, f"a test connects to {refused[-1]}"
            )
        connect(end, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", connect_here)
        yield
    assert not refused, "a test needs no other machine"


@pytest.fixture(scope="session")
def remote_code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Code that exported folders bring along is copied away from the user's own cache.

    One place for all tests of a process: Python remembers where a package was.
    """
    with pytest.MonkeyPatch.context() as patch:
        place = "transformers.dynamic_module_utils.HF_MODULES_CACHE"
        patch.setattr(place, str(tmp_path_factory.getbasetemp() / "remote code"))
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real text beside the checkout; tests that need it skip where it is absent."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}")
    return folder


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The endpoint of an S3 of our own."""
    with s3_server() as url:
        yield url


@pytest.fixture
def bucket(endpoint: str, tmp_path: Path) -> Iterator[Any]:
    """A boto3 client of the empty s3://bucket."""
    with s3_bucket(endpoint, tmp_path / "cache") as client:
        yield client


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser, where there is one."""
    # Not for the whole session: playwright's event loop runs on meanwhile, beside which
    # other tests cannot run one of their own.
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs the package playwright"
    )
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs the program chromium")
    with playwright.sync_playwright() as driver:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = driver.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()
