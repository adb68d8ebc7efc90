"""A Dask cluster on the loopback: the same bytes, whatever dies, and one line for what is wrong."""

import gzip
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("distributed", reason="no cluster: pip install 'dualpath[dask]'")

from distributed import Client

from data_prep import encoding
from data_prep.__main__ import main
from data_prep.executors import DaskCluster, Here
from data_prep.prepare import prepare
from dualpath_cli.base.errors import UserError
from tests.data_prep.preparing import contents, source, write_jsonl
from tests.data_prep.web import wait_for

PATIENCE = 60  # seconds for what takes one or two


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a scheduler with two workers, started as by hand, in folders of their own."""
    base = tmp_path_factory.mktemp("cluster")
    dask = [sys.executable, "-m", "dask"]
    # Two deaths are enough to give a task up, where four is Dask's default.
    environment = {**os.environ, "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1"}
    processes = []

    def start(name: str, *words: str) -> None:
        (base / name).mkdir()
        command = [*dask, *words, "--scheduler-file", str(base / "scheduler.json")]
        with open(base / f"{name}.log", "wb") as log:
            processes.append(
                subprocess.Popen(
                    [*command, "--no-dashboard", "--host", "127.0.0.1"],
                    cwd=base / name,
                    env=environment,
                    stdout=log,
                    stderr=log,
                )
            )

    start("scheduler", "scheduler", "--port", "0")
    for name in ("one", "two"):
        start(name, "worker", "--nthreads", "1", "--name", name, "--local-directory", ".")
    try:
        wait_for((base / "scheduler.json").exists)
        with Client(scheduler_file=str(base / "scheduler.json"), set_as_default=False) as found:
            found.wait_for_workers(2, timeout=PATIENCE)
            yield found
    finally:
        for process in reversed(processes):  # workers say farewell to a scheduler that is there
            process.terminate()
            process.wait(PATIENCE)


@pytest.fixture
def address(client: Client) -> str:
    client.wait_for_workers(2, timeout=PATIENCE)  # an earlier test may have killed one
    return client.scheduler.address


def busy(client: Client) -> list[str]:
    """The workers that have work."""
    return [worker for worker, tasks in client.processing().items() if tasks]


def test_a_cluster_makes_the_bytes_of_this_process(ask, address, tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "PIECE_BYTES", 5_000)
    monkeypatch.chdir(tmp_path)  # the workers have other working directories
    texts = [f"document {n} " + "hello " * (n % 50) for n in range(150)]
    write_jsonl(Path("a.jsonl"), [*texts, "", *texts[:20]])
    Path("many").mkdir()
    Path("many", "bad.jsonl").write_text('{"text": 3}\n[]\n')
    whole = gzip.compress(b'{"text": "hello"}\n' * 99)
    Path("many", "cut.jsonl.gz").write_bytes(whole[:-20])
    sources = (source("a", "a.jsonl"), source("many", "many"))
    how = {"duplicates": "near", "val_fraction": 0.1, "chunk_tokens": 4096}
    for name, executor in (("here", Here()), ("cluster", DaskCluster(address))):
        manifest = prepare(ask(sources, out=tmp_path / name, **how), executor)
        assert len(manifest.sources[1].faults) == 1
    made = contents(tmp_path / "here")
    assert len(made) > 5
    assert made == contents(tmp_path / "cluster")


@pytest.mark.slow
def test_work_that_kills_its_workers_is_given_up(address):
    with (
        pytest.raises(OSError, match="given up after 2 workers died"),
        DaskCluster(address) as cluster,
    ):
        cluster.submit(os._exit, 1).result(PATIENCE)


def test_a_worker_with_other_software_is_refused(address):
    with DaskCluster(address) as cluster:
        assert {"Python", "dualpath", "pyarrow"} < cluster._software.keys()
        cluster._software = {**cluster._software, "pyarrow": "0.1"}
        with pytest.raises(UserError, match=r"worker tcp://.* has pyarrow .* instead of 0\.1"):
            cluster.submit(print).result(PATIENCE)


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_cancels_what_runs_and_another_executor_continues(
    sent, code, client, address, tmp_path, small_folder
):
    (tmp_path / "many").mkdir()
    for number in range(20):
        texts = (f"{number} {n} hello there " * 1000 for n in range(12))
        write_jsonl(tmp_path / "many" / f"{number}.jsonl", texts)
    words = ["--source", str(tmp_path / "many"), "--tokenizer", str(small_folder), "--out"]
    command = [sys.executable, "-m", "data_prep", *words, str(tmp_path / "out")]
    command += ["--executor", "dask", "--scheduler", address]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )
    pieces = tmp_path / "out.partial" / "pieces"
    wait_for(lambda: busy(client) and list(pieces.rglob("*.arrow")))
    process.send_signal(sent)
    out, err = process.communicate(timeout=PATIENCE)
    lines = [line for line in err.splitlines() if not line.startswith("reading: ")]
    word = {130: "interrupted", 143: "stopped by SIGTERM"}[code]
    said = f"dualpath prepare: {word}; the same command continues\n"
    assert (process.returncode, out, lines) == (code, said, [])
    assert not list(pieces.rglob("orders-*"))
    # What was cancelled runs to its end all the same, after the scheduler has forgotten it.
    wait_for(
        lambda: not any(client.run(lambda dask_worker: dask_worker.state.executing_count).values())
    )
    stamps = {path: path.stat().st_mtime_ns for path in pieces.rglob("*.arrow")}
    assert 0 < len(stamps) < 20
    assert main([*words, str(tmp_path / "here"), "--workers", "1"]) == 0
    assert stamps == {path: path.stat().st_mtime_ns for path in pieces.rglob("*.arrow")}
    assert main([*words, str(tmp_path / "out"), "--workers", "1"]) == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "here")
