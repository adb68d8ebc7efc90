"""Encoding: whoever reads the files, in whatever portions, the pieces are the same."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.documents import pieces
from data_prep.documents.encoding import Encoded, Encoder, Job, ReadingProgress
from data_prep.documents.pieces import PieceSettings
from data_prep.executors import Here
from data_prep.prepare import prepare
from data_prep.settings import SourceSettings
from data_prep.sources.corpora import find
from data_prep.sources.fetching import on_this_disk
from dualpath_cli.errors import UserError
from tests.data_prep.preparing import contents, write_jsonl

LINES = st.sampled_from(
    ["[]", "", '{"text": 3}', *(f'{{"text": "{"hello " * n}"}}' for n in (1, 9))]
)
FILES = st.lists(st.lists(LINES, max_size=8), min_size=1, max_size=12)


class Several(Here):
    """This process, which says that it is several: then they read whole files, if they can."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.called: list[tuple] = []

    def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        self.called.append((fn, args))
        return super().submit(fn, *args, **kwargs)


def encode(
    folder: Path, corpus: Path, executor: Here, tokenizer: Path, until: int | None
) -> Encoded:
    settings = PieceSettings(tokenizer, min_chars=1, near=False, contamination=None, strict=False)
    found = find(SourceSettings("a", str(corpus)), folder, "", None)
    (folder / "pieces").mkdir(parents=True)
    with (
        Encoder(settings, executor, folder / "pieces", on_this_disk) as encoder,
        ReadingProgress(0, None) as progress,
    ):
        (encoded,) = encoder.encode([Job(found, folder / "pieces" / "0", until)], progress)
    return encoded


@settings(max_examples=30)
@given(files=FILES, workers=st.integers(2, 3), until=st.none() | st.integers(1, 60))
def test_pieces_do_not_depend_on_who_reads(files, workers, until, small_folder):
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as name:
        patch.setattr("data_prep.documents.encoding.PIECE_BYTES", 40)
        patch.setattr("data_prep.documents.encoding.FILES_A_WORKER", 1)
        folder = Path(name)
        (folder / "corpus").mkdir()
        for number, lines in enumerate(files):
            text = "".join(f"{line}\n" for line in lines)
            (folder / "corpus" / f"{number:02d}.jsonl").write_text(text)
        here, several = (
            encode(folder / kind, folder / "corpus", executor, small_folder, until)
            for kind, executor in (("here", Here()), ("several", Several(workers)))
        )
        names = [[piece.path.name for piece in encoded.pieces] for encoded in (here, several)]
        assert names[0] == names[1]
        assert (here.faults, here.complete) == (several.faults, several.complete)
        for ours, theirs in zip(here.pieces, several.pieces, strict=True):
            assert ours.path.read_bytes() == theirs.path.read_bytes()
            rejected = [p.path.with_suffix(pieces.REJECTED) for p in (ours, theirs)]
            assert rejected[0].exists() == rejected[1].exists() == bool(ours.counts.rejected)
            if ours.counts.rejected:
                assert rejected[0].read_bytes() == rejected[1].read_bytes()


@pytest.mark.parametrize(
    ("files", "largest", "tokens", "by_file"),
    [(16, 1, None, True), (15, 1, None, False), (16, 9, None, False), (16, 1, 10**6, False)],
)
def test_workers_read_where_none_waits_long_for_the_last_file(
    files, largest, tokens, by_file, ask, tmp_path
):
    (tmp_path / "corpus").mkdir()
    for number in range(files):
        count = largest if number == 3 else 1
        write_jsonl(tmp_path / "corpus" / f"{number:02d}.jsonl", [f"{number:02d} hello"] * count)
    executor = Several(2)
    prepare(ask(tmp_path / "corpus", tokens=tokens), executor)
    assert {fn for fn, _ in executor.called} == {pieces.make_file if by_file else pieces.make}


def test_a_piece_of_a_run_that_ended_is_not_made(ask, tmp_path, monkeypatch):
    # A worker that nobody waits for any more: its folder may have become another preparation's.
    slow = Several(1)
    prepare(ask(["hello"], out=tmp_path / "out"), slow)
    before = contents(tmp_path)
    ((make, arguments),) = slow.called
    with pytest.raises((UserError, FileNotFoundError)):
        make(*arguments)
    pieces._worker.cache_clear()
    with pytest.raises(UserError, match="does not see"):
        make(*arguments)
    assert contents(tmp_path) == before


def test_a_piece_that_is_made_twice_is_not_replaced(ask):
    inodes = []

    class Twice(Here):
        def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]
            for _ in range(2):
                future = super().submit(fn, *args, **kwargs)
                inodes.append(future.result()[0].stat().st_ino)
            return future

    prepare(ask(["hello"]), Twice())
    assert inodes[0] == inodes[1]
