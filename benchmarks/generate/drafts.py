"""Writing with drafts beside writing without: the same distribution, sooner or not."""

import argparse
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.results import show, spread
from benchmarks.turns import Timed, clock, in_turns, ratios
from dualpath_cli.decoding.decoder import Decoder
from dualpath_cli.decoding.sampler import Sampler
from dualpath_cli.decoding.sampling import Sampling
from dualpath_cli.decoding.speculation import DRAFT, Drafts, write_on_drafts
from dualpath_cli.decoding.writing import Limits, write_on
from dualpath_cli.model import DualPathLM
from dualpath_cli.text.tokenizer import Tokenizer

KINDS = {
    "greedy": Sampling(greedy=True),
    "sampled": Sampling(),
    "temperature 0.7": Sampling(temperature=0.7),
}


def run(
    given: argparse.Namespace,
    loaded: Callable[[], DualPathLM],
    tokenizer: Tokenizer,
    windows_WT: torch.Tensor,
) -> list[dict[str, Any]]:
    """Prints and returns how drafts of each length fared after the windows' prompts."""
    prompts = windows_WT[: given.texts, : given.prompt].tolist()
    length = windows_WT.shape[1] - given.prompt
    records = []
    for kind, sampling in KINDS.items():
        fared = {n: Drafts() for n in (0, *given.drafts)}
        variants = {
            str(n): writing(
                Decoder(loaded(), compiled=given.compile, draft=DRAFT),
                Sampler(sampling, tokenizer.vocab_size), tokenizer, prompts, length, n, fared[n],
            )
            for n in fared
        }  # fmt: skip
        seconds = in_turns(variants, given.rounds)
        records += [
            {"kind": kind, "length": n, "accepted": fared[n].accepted / fared[n].ids,
             "seconds": seconds[str(n)], "plain_seconds": seconds["0"]}
            for n in given.drafts
        ]  # fmt: skip
    rows = [
        [r["kind"], str(r["length"]), f"{r['accepted']:.2f}",
         spread(ratios(r["plain_seconds"], r["seconds"]))]
        for r in records
    ]  # fmt: skip
    show(["writing", "draft", "accepted", "plain = 1"], rows)
    return records


def writing(
    decoder: Decoder,
    sampler: Sampler,
    tokenizer: Tokenizer,
    prompts: list[list[int]],
    new: int,
    drafted: int,
    fared: Drafts,
) -> Timed:
    """Writes `new` ids after each prompt, in drafts of `drafted` ids, or without (0)."""
    values = tokenizer.token_values()

    def run() -> float:
        seconds = 0.0
        for number, ids in enumerate(prompts):
            generator = torch.Generator().manual_seed(number)
            limits = Limits(new, len(ids) + new, None)
            decoder.begin(limits.positions([len(ids)]))
            if drafted:
                pieces = write_on_drafts(
                    decoder, ids, sampler, generator, values, limits, drafted, fared
                )
            else:
                pieces = write_on(decoder.next_logits, [ids], sampler, [generator], values, limits)
            next(pieces)  # the prompt is read for it
            start = clock(decoder.device)
            for _ in pieces:
                pass
            seconds += clock(decoder.device) - start
        return seconds

    return run
