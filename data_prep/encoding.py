"""Encoding, the first stage: the files of corpora -> pieces, by tasks."""

import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from rich.filesize import decimal

from data_prep.download import Unavailable
from data_prep.engine import Engine
from data_prep.input_files import Corpus, InputFile
from data_prep.pieces import (
    Piece,
    PieceCounts,
    piece_path,
    place_and_number,
    read_sealed,
    write_sealed,
)
from data_prep.shares import ENOUGH, Check, FileEnd, Made, Share
from dualpath_cli.base.errors import UserError, listed
from dualpath_cli.data.rows import OnRead, kind_of
from dualpath_cli.report.console import Progress, bytes_of_bytes, counted, plain_console

PIECE_BYTES = 8 << 20
"""Uncompressed size of the rows that make a piece; a longer row goes by itself."""

EXPANSION = 3  # of compressed text, at most; only decides into how many shares it goes

Fetch = Callable[[InputFile, OnRead], Path | None]
"""Gives a file's path; None where the file is not there yet."""


@dataclass(frozen=True)
class Job:
    """A corpus to encode."""

    corpus: Corpus
    folder: Path  # the folder of its pieces
    until: int | None  # tokens that are enough; None: all there are

    def note(self, place: int) -> Path:
        """The note that a file, by its place in the corpus, is done."""
        return self.folder / f"{place:05d}.json"


@dataclass
class Encoded:
    """The pieces of a corpus, from its beginning on."""

    pieces: list[tuple[int, int]] = field(default_factory=list)
    """The place of each one's file in the corpus, and its number in the file."""
    counts: list[PieceCounts] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """Files that could not be read to their end, and why."""
    tokens: int = 0
    complete: bool = False  # whether every file was read
    fetched: bool = True  # whether every file was there to be read


@dataclass
class _File:
    """What is known of a file."""

    counts: dict[int, PieceCounts] = field(default_factory=dict)  # by piece
    mistakes: dict[int, str] = field(default_factory=dict)  # by piece
    ends: list[FileEnd] = field(default_factory=list)
    """The end that each share found; none of a share that ended early."""
    end: FileEnd | None = None  # known when all pieces are there


class _Walk:
    """Goes through a corpus's pieces in order, as far as they are there."""

    def __init__(self, job: Job, files: Sequence[_File], strict: bool) -> None:
        self.job = job
        self.files = files
        self.encoded = Encoded()
        self.is_enough = False  # whether there are the tokens that are wanted
        self._strict = strict
        self._place = 0
        self._number = 0

    def go_on(self) -> None:
        """Raises UserError where `strict` is set and something cannot be read."""
        while not self.is_enough and self._place < len(self.files):
            file = self.files[self._place]
            counts = file.counts.get(self._number)
            if counts:
                self._add(counts)
            elif self._number in file.mistakes:
                raise UserError(file.mistakes[self._number])
            elif file.end:
                self._end_file(file.end)
            else:
                return

    def _add(self, counts: PieceCounts) -> None:
        self.encoded.pieces.append((self._place, self._number))
        self.encoded.counts.append(counts)
        self.encoded.tokens += counts.tokens
        self._number += 1

        until = self.job.until
        if until is not None and self.encoded.tokens >= until:
            self._check_unchanged(self.job.corpus.files[self._place])
            self.stop()

    def stop(self) -> None:
        """Ends the walk, and tasks before their next piece."""
        self.is_enough = True
        (self.job.folder / ENOUGH).touch()

    @property
    def is_complete(self) -> bool:
        """Whether every file was read."""
        return self._place == len(self.files)

    def _end_file(self, end: FileEnd) -> None:
        self._check_unchanged(self.job.corpus.files[self._place])
        if end.fault:
            if self._strict:
                raise UserError(end.fault)
            self.encoded.faults.append(end.fault)
        self.encoded.fetched &= end.fetched
        self._place += 1
        self._number = 0

    def _check_unchanged(self, file: InputFile) -> None:
        if file.has_changed():
            raise UserError(
                f"{file.name}: changed while it was prepared; start again with "
                "--overwrite"
            )

    def next_files(self) -> list[int]:
        """The places of files to read next, by an estimate of what they hold."""
        if self.is_enough:
            return []

        places = [place for place, file in enumerate(self.files) if not file.end]
        if self.job.until is None:
            return places

        density = self._tokens_per_byte()
        missing = float(self.job.until - self.encoded.tokens)
        chosen = []
        for place in places:
            if missing <= 0.0:
                break
            file = self.job.corpus.files[place]
            by_density = density * max(file.size, 1)
            missing -= by_density if density else file.likely_tokens
            chosen.append(place)
        return chosen

    def _tokens_per_byte(self) -> float:
        """Tokens in a stored byte of the pieces that are there; 0 without any."""
        pieces = [counts for file in self.files for counts in file.counts.values()]
        stored = sum(counts.stored for counts in pieces)
        tokens = sum(counts.tokens for counts in pieces)
        return tokens / stored if stored else 0.0


class _EncodingProgress(Progress):
    """Shows on stderr how much of the corpora is read, or of the tokens wanted."""

    def __init__(self, jobs: Sequence[Job], found: Iterable[PieceCounts]) -> None:
        """`found` are pieces that are there already."""
        tokens = sum(job.until or 0 for job in jobs)
        size = sum(file.size for job in jobs for file in job.corpus.files)
        self._by_bytes = not tokens
        self._tokens = 0
        self._received = 0
        self._begun = time.monotonic()

        amounts = counted("tokens") if tokens else bytes_of_bytes
        total = tokens or size or None
        console = plain_console(goes_on=True, stderr=True)
        super().__init__(console, "reading", amounts, total, transient=True)
        # They took no time now: the time left is by the pace of new ones.
        self.begin(total, sum(map(self._amount, found)))

    def add_received(self, size: int) -> None:
        """Counts bytes downloaded; called from other threads."""
        self._received += size
        self._show_more(0)

    def add_piece(self, counts: PieceCounts) -> None:
        self._tokens += counts.tokens
        self._show_more(self._amount(counts))

    def _amount(self, counts: PieceCounts) -> int:
        return counts.stored if self._by_bytes else counts.tokens

    def _show_more(self, amount: int) -> None:
        speed = self._tokens / max(time.monotonic() - self._begun, 1e-9)
        downloaded = f", {decimal(self._received)} downloaded" if self._received else ""
        self.advance(amount, status=f"{speed:,.0f} tokens/s{downloaded}")


class Encoder:
    """Makes the pieces that are not there yet.

    Pieces depend on the files and settings only.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Path,
        fetch: Fetch,
        strict: bool,
        needs_all: bool,
    ) -> None:
        """`settings` are shared `PieceSettings`; with `needs_all` a corpus without text
        ends the reading of all."""
        self._engine = engine
        self._settings = settings
        self._fetch = fetch
        self._strict = strict
        self._needs_all = needs_all
        self._files: dict[Path, list[_File]] = {}
        """The files of each corpus, by the folder of its pieces."""

    def encode(self, jobs: Sequence[Job]) -> list[Encoded]:
        """Encodes each corpus's documents in order, until they hold enough tokens.

        Pieces that are there are not made again. Raises UserError where `strict` is set
        and something cannot be read, OSError where the disk is full or a server does
        not answer for long.
        """
        for job in jobs:
            if job.folder not in self._files:
                self._find_pieces(job)
            (job.folder / ENOUGH).unlink(missing_ok=True)

        walks = [_Walk(job, self._files[job.folder], self._strict) for job in jobs]
        files = chain.from_iterable(walk.files for walk in walks)
        found = chain.from_iterable(file.counts.values() for file in files)
        with _EncodingProgress(jobs, found) as progress:
            for walk in walks:
                walk.go_on()
            self._stop_in_vain(walks)

            # Files of all corpora are read at the same time: no worker waits for the
            # last piece of a corpus. The first file of each comes first: a small corpus
            # without text is found before a large one is read.
            while wave := [(walk, n) for walk in walks for n in walk.next_files()]:
                wave.sort(key=lambda each: each[1])
                self._read(walks, wave, progress)

        for walk in walks:
            walk.encoded.complete = walk.is_complete
        return [walk.encoded for walk in walks]

    def _stop_in_vain(self, walks: Sequence[_Walk]) -> None:
        """Stops all reading where a corpus that is needed has no text."""
        without_text = [w for w in walks if w.is_complete and not w.encoded.tokens]
        if self._needs_all and without_text:
            for walk in walks:
                walk.stop()

    def _find_pieces(self, job: Job) -> None:
        """Verifies what an interrupted preparation left of a corpus."""
        job.folder.mkdir(parents=True, exist_ok=True)
        files = self._files[job.folder] = [_File() for _ in job.corpus.files]

        numbers: dict[int, list[int]] = defaultdict(list)
        for path in job.folder.glob("*.arrow"):
            place, number = place_and_number(path)
            numbers[place].append(number)

        checks = [Check(job.folder, place, tuple(n)) for place, n in numbers.items()]
        for check, sound in self._engine.run(checks):
            files[check.place].counts = sound

        for place, file in enumerate(files):
            note = job.note(place)
            noted = read_sealed(note)
            end = FileEnd(**json.loads(noted)) if noted else None
            if end and len(file.counts) == end.pieces:
                file.end = end
            else:
                note.unlink(missing_ok=True)

    def _read(
        self,
        walks: Sequence[_Walk],
        wave: Sequence[tuple[_Walk, int]],
        progress: _EncodingProgress,
    ) -> None:
        """Reads some files at the same time, until their corpora have enough."""
        watch = _Watch(progress)
        for share, made in self._engine.run(self._shares(wave, watch), watch.look):
            walk = watch.end(share, made)
            file = walk.files[share.place]
            if made.end:
                file.ends.append(made.end)
            if len(file.ends) == share.of:
                file.end = _common_end(share.name, file.ends)
                content = {"pieces": file.end.pieces, "fault": file.end.fault}
                write_sealed(walk.job.note(share.place), json.dumps(content).encode())
            walk.go_on()
            self._stop_in_vain(walks)

    def _shares(
        self, wave: Sequence[tuple[_Walk, int]], watch: "_Watch"
    ) -> Iterator[Share | None]:
        """Yields the tasks of files as they arrive; None while one is on its way."""
        for done, (walk, place) in enumerate(wave):
            if walk.is_enough:
                continue

            job = walk.job
            file = job.corpus.files[place]
            try:
                while (path := self._fetch(file, watch.progress.add_received)) is None:
                    yield None
            except Unavailable as error:
                fault = f"{file.name}: {error}"
                walk.files[place].end = FileEnd(0, fault, fetched=False)
                walk.go_on()
                continue

            count = self._count_shares(path, file.size, len(wave) - done)
            walk.files[place].ends = []
            for first in range(count):
                share = Share(
                    settings=self._settings,
                    source=job.corpus.settings,
                    name=file.name,
                    path=path,
                    folder=job.folder,
                    place=place,
                    first=first,
                    of=count,
                    piece_bytes=PIECE_BYTES,
                )
                watch.begin(share, walk)
                yield share

    def _count_shares(self, path: Path, size: int, files_left: int) -> int:
        """Returns into how many shares a file goes, one of `files_left` to read."""
        if kind_of(path) == ".txt":
            return 1  # a text is one piece, and each share would hold all of it

        # Enough to keep all workers busy with the files that are left.
        wanted = math.ceil(self._engine.workers / files_left)
        most = 1 + EXPANSION * size // PIECE_BYTES
        return min(wanted, most)


def _common_end(name: str, ends: Sequence[FileEnd]) -> FileEnd:
    """Returns the end that all shares of a file have found; else raises OSError."""
    if len(set(ends)) > 1:
        faults = listed({end.fault for end in ends if end.fault})
        raise OSError(
            f"{name}: its readers came to different ends ({faults}); check the disk"
        )
    return ends[0]


class _Watch:
    """Finds pieces as they appear, while the tasks that make them run."""

    def __init__(self, progress: _EncodingProgress) -> None:
        self.progress = progress
        self._walks: dict[Share, _Walk] = {}
        self._next: dict[Share, int] = {}

    def begin(self, share: Share, walk: _Walk) -> None:
        self._walks[share] = walk
        self._next[share] = share.first

    def look(self) -> None:
        """Counts the pieces that have appeared."""
        for share, walk in self._walks.items():
            counts = walk.files[share.place].counts
            number = self._next[share]
            while self._count_piece(share, number, counts):
                number += share.of
            self._next[share] = number
            walk.go_on()

    def _count_piece(
        self, share: Share, number: int, known: dict[int, PieceCounts]
    ) -> bool:
        """Counts a piece once it is there; returns whether it is."""
        if number in known:
            return True

        path = piece_path(share.folder, share.place, number)
        is_there = path.exists()
        if is_there:
            self._add(known, number, Piece(path).counts)
        return is_there

    def end(self, share: Share, made: Made) -> _Walk:
        """Counts what a share has made; returns the walk through its corpus."""
        walk = self._walks.pop(share)
        del self._next[share]
        file = walk.files[share.place]
        for number, counts in made.counts.items():
            if number not in file.counts:
                self._add(file.counts, number, counts)

        if made.mistake:
            number, reason = made.mistake
            file.mistakes[number] = reason
        return walk

    def _add(
        self, known: dict[int, PieceCounts], number: int, counts: PieceCounts
    ) -> None:
        known[number] = counts
        self.progress.add_piece(counts)
