"""Encoding: who reads the files, and that no piece is made late or twice."""

import pytest

from data_prep.documents import pieces
from data_prep.executors import Here
from data_prep.prepare import prepare
from dualpath_cli.base.errors import UserError
from tests.data_prep.preparing import contents, write_jsonl


class Several(Here):
    """This process, which says that it is several: then they read whole files, if they can."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.called: list[tuple] = []

    def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        self.called.append((fn, args))
        return super().submit(fn, *args, **kwargs)


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
