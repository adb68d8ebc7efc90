"""Downloads: the right bytes or no file, whatever the server, the line and the process
do."""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from huggingface_hub import constants

from data_prep import corpora, download
from data_prep.corpora import hub_files
from data_prep.download import Downloads, Unavailable
from data_prep.fetching import Fetcher
from data_prep.input_files import Corpus, InputFile, RemoteFile
from data_prep.settings import SourceSettings
from dualpath_cli.base.errors import RunFailed, UserError
from dualpath_cli.cli.main import main
from dualpath_cli.data import tokenizer
from dualpath_cli.data.tokenizer import Tokenizer
from tests.data_prep.web import Fault, Web, wait_for

CONTENT = bytes(range(256)) * 1000
SIZE = len(CONTENT)
CUT = 100_000


@pytest.fixture
def web() -> Iterator[Web]:
    with Web({"/a": CONTENT}) as web:
        yield web


def fetch(web: Web, folder: Path, waits: list[float] | None = None, **known) -> Path:
    """Fetches /a; `waits` takes the seconds between two attempts, which are not waited
    for."""
    downloads = Downloads(folder)
    if waits is not None:
        downloads.leaving.wait = waits.append  # type: ignore[method-assign, assignment]
    return downloads.get(RemoteFile(f"{web.url}/a", "a", **known))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


MENDED = {
    **{f"{n} three times": [Fault(n)] * 3 for n in (408, 429, 500, 503)},
    "no answer": [Fault(reset=True)],
    "a cut, then overload": [Fault(cut=CUT), Fault(503)],
}


@pytest.mark.parametrize("faults", MENDED.values(), ids=MENDED)
def test_the_file_is_whole_in_the_end(web, tmp_path, faults):
    web.faults["/a"] = list(faults)
    assert fetch(web, tmp_path, []).read_bytes() == CONTENT
    assert names(tmp_path) == ["a"]
    assert fetch(web, tmp_path, size=SIZE).exists()
    assert len(web.requests) == len(faults) + 1, "what is there is not fetched again"


def test_a_file_is_stored_as_it_comes_whatever_its_encoding(web, tmp_path):
    web.fallback = Fault(headers={"Content-Encoding": "gzip"})
    assert fetch(web, tmp_path, []).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("fault", "known", "reason"),
    [
        *((Fault(status), {}, str(status)) for status in (404, 410)),
        (
            Fault(endless=True),
            {"most": SIZE},
            "more than the 256,000 bytes that are accepted",
        ),
    ],
)
def test_what_no_patience_mends_is_said_at_once_and_leaves_nothing(
    web, tmp_path, fault, known, reason
):
    web.fallback, waits = fault, []
    with pytest.raises(Unavailable, match=reason):
        fetch(web, tmp_path, waits, **known)
    assert (names(tmp_path), waits) == ([], [])


def test_the_endless_body_of_a_redirect_is_not_read(web, tmp_path):
    web.files["/to"] = CONTENT
    web.faults["/a"] = [Fault(302, {"Location": "/to"}, endless=True)]
    assert fetch(web, tmp_path).read_bytes() == CONTENT


def test_a_circle_of_redirects_is_no_answer(web, tmp_path):
    web.fallback = Fault(302, {"Location": "/a"})
    with pytest.raises(ConnectionError, match=r"cannot be reached .*30 redirects"):
        fetch(web, tmp_path, [])


@pytest.mark.parametrize(
    ("fault", "known", "reason"),
    [
        (Fault(503, {"Retry-After": "7"}), {}, "503 Service Unavailable"),
        (Fault(cut=CUT), {}, "IncompleteRead"),  # one cut after the other
        *((Fault(status), {}, str(status)) for status in (400, 401)),
        (Fault(403), {}, "403 Forbidden .no access, or too many requests"),
        (Fault(403), {"token": "expired"}, "403 Forbidden .set HF_TOKEN"),
        (Fault(), {"sha256": "0" * 64}, "sha256 is not 0000"),
        (Fault(), {"size": SIZE + 1}, "256,000 bytes instead of 256,001"),
        (Fault(), {"size": SIZE - 1}, "more than the 255,999 bytes that it has"),
        (
            Fault(endless=True),
            {"size": SIZE},
            "more than the 256,000 bytes that it has",
        ),
    ],
)
def test_lasting_trouble_ends_after_minutes(web, tmp_path, fault, known, reason):
    web.fallback, waits = fault, []
    with pytest.raises(ConnectionError, match=f"{web.url}/a: .*{reason}.*, 10 times"):
        fetch(web, tmp_path, waits, **known)
    least = float(fault.headers.get("Retry-After", 0))
    for wait, most in zip(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60], strict=True):
        assert max(most / 2, least) <= wait <= max(most, least)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"<html>log in</html>", Fault()),
        (None, Fault(headers={"Content-Length": None}, cut=CUT)),
    ],
    ids=["a page", "a part of unannounced length"],
)
def test_a_compressed_file_gets_its_name_when_it_can_be_decompressed(
    web, tmp_path, content, fault
):
    whole = zstandard.compress(os.urandom(SIZE))
    web.files["/a"], web.fallback = content or whole, fault
    downloads = Downloads(tmp_path)
    downloads.leaving.wait = lambda seconds: None  # type: ignore[method-assign, assignment]
    file = RemoteFile(f"{web.url}/a", "a.jsonl.zstd")
    with pytest.raises(
        ConnectionError, match=r"cannot be decompressed: .* 10 times in a row"
    ):
        downloads.get(file)
    assert names(tmp_path) == []
    web.files["/a"], web.fallback = whole, Fault()
    assert downloads.get(file).read_bytes() == whole


def test_a_server_that_sends_byte_by_byte_is_given_up(web, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "SLOW_SECONDS", 0.0)
    monkeypatch.setattr(download, "LEAST_BYTES", 1)
    assert fetch(web, tmp_path, []).read_bytes() == CONTENT
    monkeypatch.setattr(download, "LEAST_BYTES", SIZE)
    with pytest.raises(ConnectionError, match=r"bytes in 0 seconds, 10 times in a row"):
        fetch(web, tmp_path / "slow", [])


def test_names_are_paths_below_the_folder_and_never_above_it():
    for name in ("../a", "/a", "a/../../b", ""):
        with pytest.raises(UserError, match="outside the download folder"):
            RemoteFile("http://nowhere", name)


def test_a_full_disk_is_named_and_not_waited_for(web, tmp_path):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    downloads = Downloads(tmp_path, full)
    with pytest.raises(OSError, match=r"No space left on device.*/a"):
        downloads.get(RemoteFile(f"{web.url}/a", "a"))
    assert len(web.requests) == 1


def test_a_token_is_sent_to_its_host_alone_and_never_shown(web, tmp_path, monkeypatch):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password mine\n")
    monkeypatch.setenv("NETRC", str(netrc))  # gives way
    with Web({"/b": CONTENT}) as elsewhere:
        there = elsewhere.url.replace("127.0.0.1", "localhost")
        web.faults["/a"] = [Fault(302, {"Location": f"{there}/b"})]
        assert fetch(web, tmp_path, token="secret").read_bytes() == CONTENT
    assert [request.headers["authorization"] for request in web.requests] == [
        "Bearer secret"
    ]
    assert "authorization" not in elsewhere.requests[0].headers
    assert "secret" not in repr(RemoteFile(web.url, "a", token="secret"))


FETCH = """
import sys
from pathlib import Path
from data_prep.fetching import Fetcher
from data_prep.settings import SourceSettings
from data_prep.input_files import Corpus, InputFile, RemoteFile
file = InputFile("a", 1, "", RemoteFile(sys.argv[1], "a"))
corpus = Corpus(SourceSettings("a", "a"), [file])
with Fetcher([corpus], Path(sys.argv[2]), [1]) as fetcher:
    fetcher.get(file, lambda count: None)
"""


@pytest.fixture
def other(
    web: Web, tmp_path: Path
) -> Iterator[tuple[subprocess.Popen[str], threading.Event]]:
    """A process that has a part of the file; the second half comes when the event is
    set."""
    until = threading.Event()
    web.faults["/a"] = [Fault(until=until)]
    command = [sys.executable, "-c", FETCH, f"{web.url}/a", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: any(path.stat().st_size for path in tmp_path.glob("a.*.partial")))
    yield process, until
    process.kill()
    process.wait()
    until.set()


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_a_process_ends_at_once_and_the_next_one_fetches(web, tmp_path, other, sent):
    process, _ = other
    process.send_signal(sent)
    _, printed = process.communicate(timeout=300)  # the server is silent for longer
    assert ("KeyboardInterrupt" in printed) == (sent == signal.SIGINT)
    assert fetch(web, tmp_path).read_bytes() == CONTENT
    assert names(tmp_path) == ["a"]


def test_files_are_fetched_ahead_and_leaving_ends_it(web, tmp_path):
    web.files = {f"/{n}": CONTENT + bytes([n]) for n in range(9)}
    files = [InputFile(n, 1, "", RemoteFile(web.url + n, n[1:])) for n in web.files]
    until, counts = threading.Event(), []
    web.faults["/3"] = [Fault(until=until)]
    with Fetcher([Corpus(SourceSettings("a", "a"), files)], tmp_path, [9]) as fetcher:
        for n in range(3):
            assert (
                fetcher.get(files[n], counts.append).read_bytes() == web.files[f"/{n}"]
            )
            assert {int(request.path[1:]) for request in web.requests} <= set(
                range(n + 5)
            )
        # All but the one that lasts; bytes are counted before their file has its name.
        wait_for(lambda: all((tmp_path / name).exists() for name in "456"))
        assert sum(counts) > 6 * SIZE
    until.set()
    wait_for(lambda: not (tmp_path / "3.lock").exists())
    assert names(tmp_path) == ["0", "1", "2", "4", "5", "6"]


def test_files_beyond_those_announced_are_fetched_ahead_too(tmp_path):
    origins = [RemoteFile(f"http://none/{n}", str(n)) for n in range(9)]
    files = [InputFile(origin.name, 1, "", origin) for origin in origins]
    fetcher = Fetcher([Corpus(SourceSettings("a", "a"), files)], tmp_path, [3])
    begun = [len(fetcher._ahead[origin]) for origin in origins]
    assert begun == [3, 2, 1, 5, 5, 4, 3, 2, 1]


@pytest.fixture(params=["a black hole", "an unknown name"])
def nowhere(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The URL of a server that does not answer, which is given up within seconds."""
    for module in (download, tokenizer, corpora):
        monkeypatch.setattr(module, "FIRST_ANSWER_SECONDS", 0.5)
    start = time.monotonic()
    # which accepts, and never answers
    with socket.create_server(("127.0.0.1", 0)) as listener:
        unknown = request.param == "an unknown name"
        host = "no.invalid" if unknown else "127.0.0.1"
        yield f"http://{host}:{listener.getsockname()[1]}/"
    least = 0.5 * sum(min(2**n, 60) for n in range(download.ATTEMPTS - 1))
    assert time.monotonic() - start < least, (
        "without the rule there are ten tries, and pauses"
    )


def test_without_a_network_a_command_ends_within_seconds_with_one_line(
    nowhere, tmp_path, small_folder, capsys, monkeypatch
):
    words = [
        "--source",
        "nemotron-cc",
        "--mirror",
        nowhere,
        "--tokenizer",
        str(small_folder),
    ]
    assert main(["prepare", *words, "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"dualpath prepare: failed: {nowhere}")
    assert "cannot be reached" in said
    assert said.endswith("needed; the same command continues\n")
    assert said.count("\n") == 1
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tokenizer, "_GPT2_MERGES_URL", f"{nowhere}vocab.bpe")
    with pytest.raises(UserError, match="train one by `dualpath tokenizer --source"):
        Tokenizer.load("gpt2")
    monkeypatch.setattr(constants, "ENDPOINT", nowhere.rstrip("/"))
    with pytest.raises(RunFailed, match=r"failed .*check the network"):
        hub_files("hf:owner/corpus")
