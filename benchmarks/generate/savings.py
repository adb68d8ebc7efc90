"""The gain and the cost of each saving: a text, read token by token after a prompt."""

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.generate import drafts
from benchmarks.results import given_options, show, spread, write
from benchmarks.turns import clock, in_turns, ratios
from dualpath_cli.decoding.decoder import Decoder
from dualpath_cli.generation.loading import load_model
from dualpath_cli.intervention import Intervention
from dualpath_cli.model import DualPathLM
from dualpath_cli.options.trained import find
from dualpath_cli.statistics.bootstrap import interval, resampled_sums
from dualpath_cli.text.documents import Source, read_documents, split_name
from dualpath_cli.text.tokenizer import Tokenizer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `savings`."""
    parser.add_argument("--ckpt-path", metavar="RUN", required=True)
    parser.add_argument("--source", metavar="NAME=PATH", required=True)
    parser.add_argument("--windows", type=int, default=8, help="Documents that are read.")
    parser.add_argument("--length", type=int, default=192, help="Tokens of each.")
    parser.add_argument("--prompt", type=int, default=64, help="Of these, read at once.")
    parser.add_argument("--batch", type=int, default=1, help="Documents at a time.")
    parser.add_argument("--only", nargs="+", help="Savings by name, such as skip=0.2.")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--drafts", type=int, nargs="+", default=[2, 4], help="Lengths of drafts.")
    parser.add_argument("--texts", type=int, default=4, help="Texts that are written with drafts.")


def savings_of(loops: int) -> dict[str, Intervention | None]:
    """The ways to decode, by name, the plain one first."""
    changes = [
        *(Intervention(kv_slots=slots) for slots in range(1, loops)),
        *(Intervention(loops=fewer) for fewer in range(1, loops)),
        *(Intervention(halting=threshold) for threshold in (0.8, 0.6, 0.4, 0.2, 0.1)),
        *(Intervention(skip=gate) for gate in (0.5, 0.4, 0.3, 0.2)),
    ]
    return {"plain": None, **{change.name: change for change in changes}}


class Forced:
    """Windows of a text, read token by token after a prompt under an intervention."""

    def __init__(self, decoder: Decoder, windows_WT: torch.Tensor, prompt: int, batch: int) -> None:
        self.decoder, self.windows_WT, self.prompt, self.batch = decoder, windows_WT, prompt, batch
        self.nats_W = torch.zeros(len(windows_WT), dtype=torch.float64)
        """Mean loss of each window's tokens after the prompt."""
        self.bytes = 0
        """Of the cache of a batch."""

    def __call__(self) -> float:
        """Seconds that all tokens after the prompts took."""
        seconds, device = 0.0, self.decoder.device
        length = self.windows_WT.shape[1]
        for first in range(0, len(self.windows_WT), self.batch):
            ids_BT = self.windows_WT[first : first + self.batch]
            self.decoder.begin(length)
            logits = [self.decoder.logits(ids_BT[:, : self.prompt], last=1)]
            start = clock(device)
            logits += [
                self.decoder.logits(ids_BT[:, at : at + 1]) for at in range(self.prompt, length - 1)
            ]
            seconds += clock(device) - start
            logs_BTV = torch.cat(logits, dim=1).double().log_softmax(-1).cpu()
            nats_BT = -logs_BTV.gather(-1, ids_BT[:, self.prompt :, None])[..., 0]
            self.nats_W[first : first + self.batch] = nats_BT.mean(1)
            self.bytes = self.decoder.cache_bytes
        return seconds


def run(given: argparse.Namespace) -> None:
    """Prints and writes what each saving buys in time and costs in nats; then drafts."""
    trained = find(given.ckpt_path)
    tokenizer = trained.tokenizer()
    windows_WT = _windows(given, tokenizer)

    def loaded() -> DualPathLM:
        return load_model(trained, torch.device(given.device))

    variants = _variants(given, loaded, windows_WT)
    seconds = in_turns(variants, given.rounds)
    records = [
        {"name": name, "seconds": seconds[name], "nats": forced.nats_W.tolist(),
         "cache_bytes": forced.bytes}
        for name, forced in variants.items()
    ]  # fmt: skip
    tokens = windows_WT.shape[0] * (windows_WT.shape[1] - given.prompt - 1)
    mean = variants["plain"].nats_W.mean()
    print(f"plain: {mean:.4f} nats over {tokens:,} tokens, batch {given.batch}")
    show(
        ["saving", "tokens/s", "plain = 1", "nats (95 %)", "cache, MB"],
        [_row(record, records[0], tokens) for record in records],
    )
    drafted = drafts.run(given, loaded, tokenizer, windows_WT) if given.batch == 1 else []
    write(given.out, {"options": given_options(given), "runs": records, "drafts": drafted})


def _variants(
    given: argparse.Namespace, loaded: Callable[[], DualPathLM], windows_WT: torch.Tensor
) -> dict[str, Forced]:
    """Plain decoding, and all savings that the model knows or that were asked for."""
    config, variants = loaded().config, {}
    for name, change in savings_of(config.loops).items():
        asked = given.only is None or name in ("plain", *given.only)
        if asked and (change is None or change.problem(config) is None):
            decoder = Decoder(loaded(), change, compiled=given.compile)
            variants[name] = Forced(decoder, windows_WT, given.prompt, given.batch)
    return variants


def _row(record: dict[str, Any], plain: dict[str, Any], tokens: int) -> list[str]:
    cost_W = np.array(record["nats"]) - np.array(plain["nats"])
    sums = resampled_sums(
        "windows", range(len(cost_W)), np.stack([cost_W, np.ones_like(cost_W)], 1)
    )
    low, high = interval(sums[:, 0] / sums[:, 1], len(cost_W))
    return [
        record["name"],
        f"{tokens / median(record['seconds']):,.0f}",
        spread(ratios(plain["seconds"], record["seconds"])),
        f"{cost_W.mean():+.4f} ({low:+.4f} to {high:+.4f})",
        f"{record['cache_bytes'] / 1e6:.1f}",
    ]


def _windows(given: argparse.Namespace, tokenizer: Tokenizer) -> torch.Tensor:
    """The beginnings of a source's documents that are long enough, each after end-of-text."""
    name, path = split_name(given.source)
    chosen = []
    for document in read_documents(Source(name, Path(path))):
        ids = [tokenizer.eot_id, *tokenizer.encode(document)]
        if len(ids) >= given.length:
            chosen.append(ids[: given.length])
        if len(chosen) == given.windows:
            break
    if not chosen:
        raise SystemExit(f"no document of {given.source} has {given.length} tokens")
    return torch.tensor(chosen)
