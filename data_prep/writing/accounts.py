"""Accounts: what became of every document of every source."""

from collections import Counter

import numpy as np

from data_prep.documents.duplicates import EXACT, NEAR
from data_prep.documents.encoding import Encoded
from data_prep.settings import SourceSettings
from data_prep.writing.mix import Portion
from dualpath_cli.text.manifest import SourceCount


def account(source: SourceSettings, encoded: Encoded, portion: Portion) -> SourceCount:
    """Counts what became of a source's documents."""
    rejected: Counter[str] = Counter()
    read = normalised = exact = near = validation = writable = distinct = text_bytes = 0
    for number, piece in enumerate(encoded.pieces):
        read += piece.counts.read
        normalised += piece.counts.normalised
        rejected.update(piece.counts.rejected)
        kinds = portion.pool.kinds(number)
        exact += int(np.count_nonzero(kinds == EXACT))
        near += int(np.count_nonzero(kinds == NEAR))
        validation += len(portion.pool.to_hold_out(number))
        writable += len(portion.pool.to_write(number))
        distinct += len(portion.taken(0, number))
        sizes = piece.numbers("text_bytes").astype(np.int64)
        for repeat in range(portion.all_passes):
            text_bytes += int(sizes[portion.taken(repeat, number)].sum())
    return SourceCount(
        name=source.name,
        path=source.path,
        read=read,
        documents=distinct,
        validation=validation,
        rejected=dict(sorted(rejected.items())),
        exact_duplicates=exact,
        near_duplicates=near,
        unused=writable - distinct,
        passes=round(portion.tokens / portion.pool.tokens, 6) if portion.pool.tokens else 0.0,
        tokens=portion.tokens,
        text_bytes=text_bytes,
        normalised=normalised,
        faults=encoded.faults,
    )
