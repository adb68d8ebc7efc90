"""The request to `dualpath generate`, checked without importing torch."""

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualpath_cli import overrides
from dualpath_cli.config import ModelConfig
from dualpath_cli.decoding.sampling import RANGES, Sampling
from dualpath_cli.errors import UserError, is_mistake
from dualpath_cli.generation.options import BATCH_SIZE
from dualpath_cli.generation.prompts import Prompt, ids_of, read_prompts
from dualpath_cli.intervention import Intervention
from dualpath_cli.options import (
    PRECISIONS,
    check_choice,
    check_device,
    number,
    path_of,
    seed_number,
    whole_number,
)
from dualpath_cli.run.trained import Trained, find
from dualpath_cli.text.tokenizer import Tokenizer

WRITTEN = ("prompt", "number", "sample", "text", "new_tokens", "end")
"""Keys of a line of `--out`, beside those of the prompt's row."""
_MOST = 1 << 24


@dataclass(frozen=True)
class Request:
    """The texts to write, and how."""

    trained: Trained
    tokenizer: Tokenizer
    prompts: tuple[Prompt, ...]
    ids: tuple[list[int], ...]  # token ids of each prompt, end-of-text before them
    num_samples: int
    max_new_tokens: int
    stops: tuple[str, ...]
    ignore_eot: bool
    sampling: Sampling
    seed: int
    intervention: Intervention | None
    speculate: int  # length of a draft in ids, at most; 0 for no drafts
    compiled: bool
    batch_size: int  # number of texts written together; 1 with drafts
    precision: str
    device: str
    out: Path | None


def read(options: Namespace) -> Request:
    """Checks the words, and reads the prompts."""
    if options.ckpt_path is None:
        raise UserError("generate needs --ckpt-path RUN: a run folder or a checkpoint inside one")
    check_choice("--precision", options.precision, PRECISIONS)
    check_device(options.device)
    if "" in options.stop:
        raise UserError("--stop '' would end every text at once; give a text")
    max_new_tokens = whole_number("--max-new-tokens", options.max_new_tokens, 1, _MOST)
    sampling, out = _sampling(options), _out(options.out)
    change = overrides.read(options)
    trained = find(options.ckpt_path)
    trained.check(change)
    model = trained.settings.model
    if change is not None and change.needs_whole_text and options.compile:
        raise UserError(f"--compile goes with a cache, and {change.name} goes without one")
    speculate = _speculate(options.speculate, change, model)
    taken = () if out is None else WRITTEN
    prompts = read_prompts(options.prompt, options.file, taken)
    tokenizer = trained.tokenizer()
    return Request(
        trained=trained,
        tokenizer=tokenizer,
        prompts=tuple(prompts),
        ids=tuple(ids_of(prompts, tokenizer, model.max_seq_len, max_new_tokens, options.truncate)),
        num_samples=_num_samples(options.num_samples, options.greedy),
        max_new_tokens=max_new_tokens,
        stops=tuple(options.stop),
        ignore_eot=options.ignore_eot,
        sampling=sampling,
        seed=seed_number("--seed", options.seed),
        intervention=change,
        speculate=speculate,
        compiled=options.compile,
        batch_size=_batch_size(options.batch_size, speculate),
        precision=options.precision,
        device=options.device,
        out=out,
    )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _sampling(options: Namespace) -> Sampling:
    given: dict[str, Any] = {}
    for name, wanted in (
        ("temperature", "1e-6 or more; 0 would be --greedy"),
        ("top_p", "above 0 and at most 1"),
        ("min_p", "from 0 to 1"),
        ("repetition_penalty", "1e-6 or more; 1 changes nothing"),
    ):
        text = getattr(options, name)
        if text is not None:
            given[name] = number(_option(name), text, wanted, *RANGES[name])
    if options.top_k not in (None, "0"):  # 0 turns it off, as in transformers
        given["top_k"] = whole_number("--top-k", options.top_k, 1, int(RANGES["top_k"][1]))
    useless = [name for name in given if name != "repetition_penalty"]
    if options.greedy and useless:
        raise UserError(f"--greedy takes the likeliest token: leave out {_option(useless[0])}")
    return Sampling(greedy=options.greedy, **given)


def _speculate(text: str | None, change: Intervention | None, model: ModelConfig) -> int:
    """The longest draft. Raises UserError where drafts cannot be verified, or have no use."""
    if text is None:
        return 0
    length = whole_number("--speculate", text, 1, 1000)
    if change is not None and change.kv_slots is not None:
        raise UserError(
            "--speculate goes without --kv-slots: what a draft took the slots of would be lost"
        )
    if change is not None and change.needs_whole_text:
        raise UserError(f"--speculate goes with a cache, and {change.name} goes without one")
    deep = [(n, layer.loops) for n, layer in enumerate(model.layers) if layer.block != "wide"]
    forced = [(change and change.within(n), loops) for n, loops in deep]
    if all(((own and own.loops) or loops) == 1 for own, loops in forced):
        raise UserError("--speculate drafts with one loop, and there is no more to verify with")
    return length


def _num_samples(text: str, greedy: bool) -> int:
    count = whole_number("--num-samples", text, 1, _MOST)
    if greedy and count > 1:
        raise UserError(
            f"--greedy would write the same text {count:,} times; leave out one of both"
        )
    return count


def _batch_size(text: str | None, speculate: int) -> int:
    size = BATCH_SIZE if text is None else whole_number("--batch-size", text, 1, 1 << 16)
    if speculate and text is not None and size > 1:
        raise UserError(f"--batch-size {text}: --speculate writes one text at a time")
    return 1 if speculate else size


def _out(text: str | None) -> Path | None:
    if text is None:
        return None
    path = path_of("--out", text)
    if path.suffix != ".jsonl":
        raise UserError(f"--out '{text}' must end in .jsonl: it gets a JSON object a line")
    if path.exists():
        raise UserError(f"--out '{text}' is there already; remove it, or give another name")
    probe = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        if not is_mistake(error):
            raise
        reason = error.strerror or type(error).__name__
        raise UserError(f"--out '{text}' cannot be written: {reason}; give another place") from None
    return path
