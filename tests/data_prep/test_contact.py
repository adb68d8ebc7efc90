"""Without a network a preparation ends within seconds; with one it waits as long as always."""

import fcntl
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import data_prep.download
from data_prep.__main__ import main
from data_prep.download import RemoteFile, Unreachable, first_contact
from data_prep.download.transfer import Downloads, with_sizes
from data_prep.sources.corpora import hub_files
from dualpath_cli.errors import RunFailed, UserError
from dualpath_cli.text import tokenizer
from dualpath_cli.text.tokenizer import Tokenizer
from tests.data_prep.web import Fault, Web

SECONDS = 0.5
ENOUGH = 10.0
"""Seconds within which even a busy machine gives up; without the rule it takes a minute or more."""


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (data_prep.download, tokenizer):
        monkeypatch.setattr(module, "FIRST_ANSWER_SECONDS", SECONDS)


@pytest.fixture(params=["a dead address", "a black hole", "an unknown name", "no name server"])
def nowhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a server that does not answer, which is given up soon."""

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    start = time.monotonic()
    if request.param in ("a dead address", "a black hole"):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
            if request.param == "a dead address":
                listener.close()  # an open one accepts, and never answers
            yield url
    else:
        over = threading.Event()
        silent = request.param == "no name server"
        monkeypatch.setattr(socket, "getaddrinfo", (lambda *_: over.wait()) if silent else unknown)
        yield "http://nowhere.localhost/"
        over.set()
    assert time.monotonic() - start < ENOUGH


def get(file: RemoteFile, folder: Path) -> bytes:
    with Downloads([file], folder) as downloads:
        return downloads.get(file).read_bytes()


def test_a_preparation_says_that_the_mirror_cannot_be_reached(
    nowhere, tmp_path, small_folder, capsys
):
    words = ["--source", "nemotron-cc", "--mirror", nowhere, "--tokenizer", str(small_folder)]
    assert main([*words, "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"dualpath prepare: failed: {nowhere}")
    assert "cannot be reached" in said
    assert "check the network" in said
    assert said.count("\n") == 1


def test_files_of_a_list_that_is_here_are_given_up_as_soon(nowhere, tmp_path):
    file = RemoteFile(f"{nowhere}a", "a")
    with pytest.raises(Unreachable):
        get(with_sizes([file])[0], tmp_path)


def test_gpt2_is_given_up_as_soon(nowhere, tmp_path, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tokenizer, "_GPT2_MERGES_URL", f"{nowhere}vocab.bpe")
    with pytest.raises(UserError, match="train one by `dualpath tokenizer --source"):
        Tokenizer.load("gpt2")


def test_a_hub_that_does_not_answer_is_given_up_as_soon(nowhere):
    pytest.importorskip("huggingface_hub")
    with pytest.raises(RunFailed, match=r"cannot be reached .*check the network"):
        hub_files("owner/corpus", endpoint=nowhere.rstrip("/"))


@pytest.fixture
def slow_file() -> Iterator[RemoteFile]:
    """A file whose server answers, but late."""
    with Web({"/a": b"content"}) as web:
        web.faults["/a"] = [Fault(silent=2 * SECONDS)]
        yield RemoteFile(f"{web.url}/a", "a")


def test_a_first_answer_that_is_too_late_is_none(slow_file, tmp_path):
    with pytest.raises(Unreachable, match=r"cannot be reached \(no answer\)"):
        get(slow_file, tmp_path)


def test_patience_has_no_end_once_a_server_has_answered(slow_file, tmp_path):
    first_contact.made = True
    assert get(slow_file, tmp_path) == b"content"


def test_patience_has_no_end_where_bytes_arrived_another_time(slow_file, tmp_path):
    (tmp_path / "a.part").write_bytes(b"con")
    assert get(slow_file, tmp_path) == b"content"


def test_patience_has_no_end_while_another_process_fetches_the_file(slow_file, tmp_path):
    with open(tmp_path / "a.part", "wb") as part:
        fcntl.flock(part, fcntl.LOCK_EX)
        threading.Timer(2 * SECONDS, fcntl.flock, (part.fileno(), fcntl.LOCK_UN)).start()
        assert get(slow_file, tmp_path) == b"content"
