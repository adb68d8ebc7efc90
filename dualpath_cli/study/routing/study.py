"""`dualpath routing`: reads what one checkpoint's gates do on texts, and shows it.

1. every source is cut into sequences, tagged, and searched for the anchor;
2. one pass over each source writes down a row for every token, and sums (`reader.py`,
   `tokens.py`, `statistics.py`); a source that an earlier call finished is not read again;
3. from rows and sums come the summary, the claims of the paper, figures and the page.
"""

import hashlib
import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import LightningDataModule
from rich.console import Console
from torch.utils.data import DataLoader

from dualpath_cli.atomic import sync
from dualpath_cli.command.launch import Launch
from dualpath_cli.command.session import Session
from dualpath_cli.errors import UserError
from dualpath_cli.study.ablation.scoring import array_digest
from dualpath_cli.study.ablation.token_classes import tag
from dualpath_cli.study.facts import decisive_facts, source_facts, study_facts
from dualpath_cli.study.options import UPOS
from dualpath_cli.study.parts_of_speech import Tagger
from dualpath_cli.study.progress import StudyProgress
from dualpath_cli.study.routing import report
from dualpath_cli.study.routing.anchors import anchor_positions
from dualpath_cli.study.routing.reader import (
    Batch,
    Numbered,
    Reader,
    Reading,
    Text,
    collate_numbered,
)
from dualpath_cli.study.routing.statistics import Sums
from dualpath_cli.study.routing.tokens import TOKENS, TokenTable, merge
from dualpath_cli.training.data import DualPathDataModule

PASSES = "passes"
"""Folder of the rows and sums of finished sources, by what decides them."""
SEMANTICS = 1
"""Raised when the same model and texts would give other numbers than before."""


def run(session: Session) -> None:
    """Reads a run's checkpoint on every source; prints and writes what was found.

    Raises:
        UserError: if a source holds no text, or tags cannot be had.
    """
    launch, trainer, console = session.launch, session.trainer, session.console
    reader, datamodule = session.module, session.datamodule
    assert isinstance(reader, Reader)
    options = launch.options
    tagger = None if options.tagger is None else Tagger(options.tagger)
    with StudyProgress(console) as progress:
        study = RoutingStudy(launch, reader, datamodule, console, progress, tagger)
        try:
            trainer.validate(reader, datamodule=study, verbose=False)
        except SystemExit as end:
            # Lightning leaves by sys.exit(1) after Ctrl-C.
            if not trainer.interrupted:
                raise
            kept = ", ".join(study.sums) or "no source"
            raise KeyboardInterrupt(f"{kept} finished; the same command continues") from end
        finally:
            study.abandon()
    if trainer.is_global_zero:
        facts = {**study.facts, "tagger": tagger and tagger.facts, "anchor": options.anchor}
        rows = [pass_path(options.out, each["key"], "parquet") for each in study.sources.values()]
        merge(rows, options.out / TOKENS, study.table_facts)
        report.write(launch, facts, study.sources, study.sums, console)


class RoutingStudy(LightningDataModule):
    """One study: gives Lightning the sources that were not read yet, and collects all of them."""

    def __init__(
        self,
        launch: Launch,
        reader: Reader,
        datamodule: DualPathDataModule,
        console: Console,
        progress: StudyProgress,
        tagger: Tagger | None,
    ) -> None:
        super().__init__()
        self.facts: dict[str, Any] = {}
        """What all sources share."""
        self.sources: dict[str, dict[str, Any]] = {}
        self.sums: dict[str, Sums] = {}
        self._launch, self._options = launch, launch.options
        self._reader = reader
        self._datamodule = datamodule
        self._console = console
        self._progress = progress
        self._tagger = tagger
        self._table: TokenTable | None = None

    def val_dataloader(self) -> list[DataLoader[Batch]]:
        """A loader for each source that no earlier call finished.

        Here and not before, for the number of ranks is known only by now.
        """
        assert self.trainer is not None
        self._datamodule.trainer = self.trainer
        self.facts = study_facts(self._launch, self.trainer)
        missing = []
        for name in self._launch.settings.data.val:
            text = self._text(name)
            # All ranks read what the first one misses: on other nodes are other files.
            sums = self._find(name) if self.trainer.is_global_zero else None
            if self.trainer.strategy.broadcast(sums is None):
                missing.append(text)
            elif sums is not None:
                self.sums[name] = sums
        self._reader.texts = missing
        self._reader.on_sequence = self._keep
        self._reader.on_text = self._finish
        self._reader.on_batch = lambda text: self._progress.advance(text.source)
        loaders = [
            self._datamodule.loader(Numbered(text.windows), collate_numbered) for text in missing
        ]
        self._progress.begin(sum(map(len, loaders)))
        return loaders

    def abandon(self) -> None:
        """Removes the rows of a source that was not finished."""
        if self._table is not None:
            self._table.abandon()

    @property
    def table_facts(self) -> dict[str, str]:
        """What one should know of the table: the checkpoint, and which layers its lists are of."""
        kinds = self._launch.settings.model.block_kinds
        return {
            "checkpoint": self.facts["checkpoint"]["sha256"],
            "layers": json.dumps([n for n, kind in enumerate(kinds) if kind == "dual"]),
        }

    def _text(self, name: str) -> Text:
        """Cuts a source into sequences, tags them and looks for the anchor."""
        windows = self._datamodule.windows(name)
        tokenizer = self._datamodule.tokenizer
        ids = windows.windows[: windows.n_filled]
        for source, number in self._options.examples:
            if source == name and number >= len(ids):
                there = f"they go from 0 to {len(ids) - 1}"
                raise UserError(f"--examples {name}:{number}: no such sequence; {there}")
        tags = None
        if self._tagger is not None:
            self._console.print(f"tagging {name}", highlight=False)
            place = {upos: number for number, upos in enumerate(UPOS)}
            tags = [
                np.array([place.get(upos, -1) for upos in of_window])
                for of_window in tag(ids, tokenizer, self._tagger)
            ]
        numbers = windows.numbers[: windows.n_filled]
        values = tokenizer.token_values()
        values[tokenizer.eot_id] = b"\n\n"  # no word goes from one document into the next
        anchors = anchor_positions(ids, numbers, values, self._options.anchor)
        assert self.trainer is not None
        decisive = {
            "semantics": SEMANTICS,
            **decisive_facts(self.facts, self.trainer),
            "windows": array_digest(ids),
            "numbers": numbers,
            "tags": None if tags is None else array_digest(tags),
            "anchors": anchors.tolist(),
        }
        digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
        location = self._launch.settings.data.val[name]
        self.sources[name] = {
            **source_facts(name, location, windows, tokenizer.fingerprint),
            "anchored": int((anchors >= 0).sum()),
            "key": f"{name}-{digest[:16]}",
        }
        return Text(name, windows, tags, anchors)

    def _find(self, name: str) -> Sums | None:
        """The sums of a source that an earlier call finished."""
        if not self._path(name, "parquet").is_file():
            return None
        try:
            return read_sums(self._options.out, self.sources[name]["key"])
        except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error):
            return None

    def _keep(self, text: Text, reading: Reading) -> None:
        """Writes the rows of a sequence."""
        if self._table is None:
            values = self._datamodule.tokenizer.token_values()
            layers, loops = reading.values.shape[1], self._launch.settings.model.loops
            self._table = TokenTable(self._path(text.source, "parquet"), values, layers, loops)
        number = text.windows.numbers[reading.place]
        upos = None
        if text.tags is not None:
            tags = text.tags[reading.place][reading.positions]
            upos = [None if tag < 0 else UPOS[tag] for tag in tags]
        self._table.add(text.source, number, reading.ids, upos, reading.nats, reading.values)

    def _finish(self, text: Text, sums: Sums) -> None:
        """Gives rows and sums of a source their names, the sums last: they say that it is done."""
        assert self._table is not None
        self._table.finish()
        self._table = None
        path = self._path(text.source, "npz")
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            np.savez_compressed(file, **sums)  # type: ignore[arg-type]
        sync(partial)
        partial.replace(path)
        self.sums[text.source] = sums

    def _path(self, name: str, kind: str) -> Path:
        return pass_path(self._options.out, self.sources[name]["key"], kind)


def read_sums(out: Path, key: str) -> Sums:
    """Reads the sums of a finished source, by the key that the summary gives."""
    with np.load(pass_path(out, key, "npz")) as arrays:
        return dict(arrays)


def pass_path(out: Path, key: str, kind: str) -> Path:
    """Where the rows (`parquet`) or sums (`npz`) of a finished source are."""
    return out / PASSES / f"{key}.{kind}"
