"""Tasks in this process, in several, and on a Ray cluster of two machines: each once,
with what they return or raise, and again where their process was killed."""

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from data_prep import command, encoding, ray_engine
from data_prep import prepare as pipeline
from data_prep.command import Prepare
from data_prep.engine import Between, Engine, ParallelEngine, Task, local_engine
from data_prep.input_files import Corpus, InputFile, RemoteFile
from dualpath_cli.base.errors import UserError
from tests.conftest import contents
from tests.data_prep.conftest import (
    interrupted_at_the_end,
    prepare,
    source,
    write_jsonl,
)


@dataclass(frozen=True)
class Double:
    """A task of the tests."""

    number: int

    def run(self, between: Between) -> int:
        between()
        if self.number == 13:
            raise UserError("13 is bad luck")
        return 2 * self.number


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of two Ray nodes on this machine."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "include_dashboard": False},
    )
    made.add_node(num_cpus=2)
    yield made.address
    made.shutdown()


@contextmanager
def on_ray(address: str) -> Iterator[Engine]:
    with ray_engine.ray_engine(address, None, []) as (engine, _):
        yield engine


@pytest.fixture(
    params=["here", "processes", pytest.param("ray", marks=pytest.mark.slow)]
)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    if request.param == "ray":
        opened = on_ray(request.getfixturevalue("cluster"))
    else:
        opened = local_engine({"here": 1, "processes": 2}[request.param])
    with opened as made:
        yield made


def test_every_task_runs_once_and_a_failure_is_that_of_the_task(engine):
    asked: list[int] = []

    def tasks() -> Iterator[Task | None]:
        for number in range(8):
            asked.append(number)
            yield Double(number)
            yield None  # a file that is on its way

    watched: list[bool] = []
    results = engine.run(tasks(), lambda: watched.append(True))
    first = next(results)
    assert len(asked) <= engine.workers + 4  # not all at once
    assert {task.number: result for task, result in [first, *results]} == {
        n: 2 * n for n in range(8)
    }
    assert watched
    with pytest.raises(UserError, match="13 is bad luck"):
        list(engine.run([Double(1), Double(13)]))


class Repeating(Engine):
    """Returns what tasks say that run again, as where their machine was lost after the
    work."""

    workers = 2

    def run(
        self, tasks: Iterable[Task | None], between: Between = lambda: None
    ) -> Iterator[tuple[Any, Any]]:
        for task in tasks:
            if task is not None:
                task.run(lambda: None)
                yield task, task.run(lambda: None)


def test_tasks_that_run_twice_leave_the_same_folder(ask, tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "PIECE_BYTES", 200)
    texts = [f"document {n} " + "hello " * (n % 7) for n in range(80)]
    path = write_jsonl(tmp_path / "a.jsonl", [*texts, "", *texts[:9]])

    def prepare_twice() -> None:
        pipeline.make_data_folder(
            ask(path, out=tmp_path / "twice", val_fraction=0.1),
            Repeating(),
            lambda file, on_received: file.origin,
            10**9,
        )

    prepare(ask(path, out=tmp_path / "once", val_fraction=0.1))
    with interrupted_at_the_end(), pytest.raises(KeyboardInterrupt):
        prepare_twice()

    damaged, *_ = (tmp_path / "twice.partial").rglob("00000-00003.arrow")
    damaged.write_bytes(b"")
    prepare_twice()
    assert contents(tmp_path / "twice") == contents(tmp_path / "once")


@dataclass(frozen=True)
class Dying:
    """A task whose process is killed before its work, and once."""

    task: Task
    mark: Path

    def run(self, between: Between) -> Any:
        if not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.task.run(between)


class Deadly(ParallelEngine):
    """Kills the process of the first task of each kind."""

    def __init__(self, engine: ParallelEngine, marks: Path) -> None:
        self.engine = engine
        self.marks = marks
        self.workers = engine.workers

    def begin(self, task: Task) -> Any:
        return self.engine.begin(Dying(task, self.marks / type(task).__name__))

    def wait(self, handles: Any, seconds: float) -> Any:
        return self.engine.wait(handles, seconds)

    def result(self, handle: Any) -> Any:
        return self.engine.result(handle)


@pytest.mark.slow
def test_on_ray_the_folder_is_the_same_though_a_process_of_each_kind_of_task_is_killed(
    ask, cluster, tmp_path, monkeypatch
):
    monkeypatch.setattr(encoding, "PIECE_BYTES", 200)
    texts = [f"document {n} " + "hello " * (n % 7) for n in range(80)]
    path = write_jsonl(tmp_path / "a.jsonl", [*texts, "", *texts[:9]])
    settings = {"duplicates": "near", "val_fraction": 0.1, "tokens": 900}
    prepare(ask(path, out=tmp_path / "here", **settings))

    marks = tmp_path / "marks"
    marks.mkdir()
    with on_ray(cluster) as engine:
        assert isinstance(engine, ParallelEngine)
        pipeline.make_data_folder(
            ask(path, out=tmp_path / "ray", **settings),
            Deadly(engine, marks),
            lambda file, on_received: file.origin,
            10**9,
        )
    assert contents(tmp_path / "ray") == contents(tmp_path / "here")
    killed = {mark.name for mark in marks.iterdir()}
    assert killed == {"Share", "Sort", "Match", "Settle", "WriteChunk", "Record"}


@pytest.mark.parametrize("address", ["127.0.0.1:9", "somewhere", "ray://here:x"])
def test_a_cluster_that_is_not_there_is_one_line(address):
    pytest.importorskip("ray")
    said = rf"^--ray '{address}': .*`ray start --head`"
    with pytest.raises(UserError, match=said), on_ray(address):
        pass


def test_a_cluster_without_a_core_is_one_line(monkeypatch):
    ray = pytest.importorskip("ray")
    head = {"Alive": True, "Resources": {"memory": 1e9}}
    monkeypatch.setattr(ray, "init", lambda **options: None)
    monkeypatch.setattr(ray, "nodes", lambda: [head])
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    said = "^--ray 'auto': no machine of the cluster has a core for tasks; start one"
    with pytest.raises(UserError, match=said), on_ray("auto"):
        pass


@pytest.mark.slow
def test_a_machine_with_another_version_or_without_the_files_is_named(
    cluster, tmp_path, monkeypatch
):
    with ray_engine.ray_engine(cluster, None, [tmp_path / "gone"]) as (engine, _):
        with pytest.raises(UserError, match=r"does not see .*gone"):
            list(engine.run([Double(1)]))
        monkeypatch.setattr(ray_engine, "__version__", "0.0.1")
        with pytest.raises(UserError, match=r"this command runs 0\.0\.1"):
            list(engine.run([Double(1)]))


def test_all_machines_must_see_the_downloads(monkeypatch, tmp_path):
    """Their folder is made first: a machine that lacks it is no fault of a file."""
    seen = []

    @contextmanager
    def recorded(address, memory, must_see):
        seen.extend(must_see)
        yield None, 0

    monkeypatch.setattr(ray_engine, "ray_engine", recorded)
    files = [InputFile("a", 1, "", RemoteFile("http://nowhere/a", "a"))]
    options = Prepare(out=tmp_path / "out", ray="auto")
    downloads = tmp_path / "downloads"
    corpora = [Corpus(source("a", "hf:owner/name/a"), files)]
    with command._engine(options, tmp_path / "out", downloads, corpora):
        assert seen == [tmp_path, downloads]
        assert downloads.is_dir()
