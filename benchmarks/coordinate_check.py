"""The coordinate check of width transfer: are activations and updates alike at all widths?

python -m benchmarks.coordinate_check

Trains dual models of growing width on one batch of the sample's text, with and without
`optim.base_width`, and fits slopes of log size over log width: 0 is the same at all widths, 0.5
grows as the square root (Yang et al. 2022, "Tensor Programs V", arXiv 2203.03466, appendix D.1).
Sizes are root mean squares over tokens and coordinates, then means over layers and seeds.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, linear_regression

import torch
from torch import Tensor

from benchmarks.results import given_options, show, write
from data_prep.sources import sample
from dualpath_cli.config import ModelConfig
from dualpath_cli.model import DualPathLM, RoutingTrace
from dualpath_cli.recipe.optimizer import OptimSettings
from dualpath_cli.recipe.rates import std_factors
from dualpath_cli.training.optim import build_optimizer
from dualpath_cli.training.parallel import build_model

BASE, WIDTHS, HEAD = 32, (32, 64, 128, 256), 16
LENGTH, SEQUENCES = 64, 16
PARTS = ("residual stream", "deep path", "wide path", "router", "gate", "logits")
WAYS = ("with", "without")
"""`optim.base_width`."""
OPTIM = OptimSettings(lr=2e-3, warmup_steps=0, weight_decay=0)

Sizes = dict[str, dict[str, list[float]]]
"""By part, "size" and "change" from the start: before the first step, after it, after the last."""


def config_of(width: int, gain_init: float) -> ModelConfig:
    """A model of bytes; head size and d_ffn / d_model are those of all widths."""
    return ModelConfig(
        vocab_size=256, n_layers=3, d_model=width, n_heads=width // HEAD, n_kv_heads=width // HEAD,
        max_seq_len=LENGTH, loops=2, d_ffn=3 * width, d_ffn_wide=6 * width, ffn_multiple_of=16,
        gain_init=gain_init,
    )  # fmt: skip


def batch() -> tuple[Tensor, Tensor]:
    """Bytes of the sample's texts and their next bytes, (B, T) each."""
    text = "\n".join(sample.documents("train", n=200)).encode()[: SEQUENCES * (LENGTH + 1)]
    blocks = torch.tensor(list(text)).view(SEQUENCES, LENGTH + 1)
    return blocks[:, :-1], blocks[:, 1:]


def trained(
    width: int, optim: OptimSettings, base: int | None, seed: int, steps: int, gain_init: float
) -> Sizes:
    """The sizes of a model's parts before and after each of so many steps."""
    config, optim = config_of(width, gain_init), replace(optim, base_width=base)
    model = build_model(config, seed, std_factors=std_factors(optim, width))
    optimizer = build_optimizer(model.named_parameters(), optim, steps, config)
    tokens, targets = batch()
    start = values_of(model, tokens)
    sizes: Sizes = {part: {"size": [], "change": []} for part in PARTS}
    for step in range(steps + 1):
        if step:
            optimizer.zero_grad()
            model(tokens, targets).mean().backward()
            optimizer.step()
        if step not in (0, 1, steps):
            continue
        for part, values in values_of(model, tokens).items():
            changes = [now - before for now, before in zip(values, start[part], strict=True)]
            sizes[part]["size"].append(fmean(map(rms, values)))
            sizes[part]["change"].append(fmean(map(rms, changes)))
    return sizes


@torch.no_grad()
def values_of(model: DualPathLM, tokens: Tensor) -> dict[str, list[Tensor]]:
    """Values of each part by layer: what paths add to the stream; of router and gate, logits."""
    trace = RoutingTrace(keeps_states=True)
    logits = model(tokens, trace=trace)
    values: dict[str, list[Tensor]] = {part: [] for part in PARTS}
    assert trace.output is not None
    values["residual stream"], values["logits"] = [trace.output], [logits]
    for block, layer in zip(model.blocks, trace.layers, strict=True):
        weights, router, gate = layer.step_weights, block.deep.router, block.gate.proj
        h_deep = (torch.stack(layer.deep_states, dim=-1) * weights[:, :, None]).sum(-1)
        values["deep path"].append(h_deep - layer.x)
        values["wide path"].append(layer.wide_state - layer.x)
        values["router"].append(layer.deep_states[0] @ router.weight[0, :-1] + router.bias)
        values["gate"].append(gate(layer.x))
    return values


def rms(values: Tensor) -> float:
    return values.square().mean().sqrt().item()


def slope(widths: Sequence[int], sizes: Sequence[float]) -> float:
    """Slope of log size over log width."""
    logs = torch.tensor([widths, sizes], dtype=torch.float64).log().tolist()
    return linear_regression(*logs).slope


def measure(
    widths: Sequence[int],
    seeds: int,
    steps: int,
    gain_init: float,
    optim: OptimSettings = OPTIM,
) -> dict[str, dict[int, Sizes]]:
    """Sizes with and without `base_width`, by width: means over seeds."""
    return {
        way: {
            width: mean(
                [trained(width, optim, base, seed, steps, gain_init) for seed in range(seeds)]
            )
            for width in widths
        }
        for way, base in zip(WAYS, (BASE, None), strict=True)
    }


def mean(of_seeds: Sequence[Sizes]) -> Sizes:
    """Means over seeds, in four digits."""
    return {
        part: {
            what: [
                float(f"{fmean(sizes):.4g}")
                for sizes in zip(*(of_one[part][what] for of_one in of_seeds), strict=True)
            ]
            for what in ("size", "change")
        }
        for part in PARTS
    }


def slopes(found: Mapping[str, Mapping[int, Sizes]]) -> Iterator[tuple[str, str, int, list[float]]]:
    """Part, what, step, and the slopes of it with and without: at the start and the end."""
    for part in PARTS:
        for what, step in (("size", 0), ("size", -1), ("change", 1), ("change", -1)):
            if part == "gate" and what == "size" and step == 0:
                continue  # all gates start at 0
            yield (
                part,
                what,
                step,
                [
                    slope(list(by_width), [sizes[part][what][step] for sizes in by_width.values()])
                    for by_width in found.values()
                ],
            )


def draw(found: Mapping[str, Mapping[int, Sizes]], path: Path) -> None:
    """Sizes at the start and the end, and changes by the first and by all steps, over width."""
    from dualpath_cli.output.colors import DEEP, MUTED
    from dualpath_cli.output.figures import panels, plain

    figure, axes = panels(13, 5, rows=2, columns=len(PARTS), sharex=True)
    for row, what, steps in ((0, "size", (0, -1)), (1, "change", (1, -1))):
        for ax, part in zip(axes[row], PARTS, strict=True):
            for way, color in zip(WAYS, (DEEP, MUTED), strict=True):
                for step, style in zip(steps, ("--", "-"), strict=True):
                    sizes = [of[part][what][step] for of in found[way].values()]
                    if any(sizes):
                        label = f"{way} base_width" if style == "-" else None
                        ax.plot(list(found[way]), sizes, style, color=color, marker="o", ms=3,
                                label=label)  # fmt: skip
            ax.set(xscale="log", yscale="log", title=f"{part}: {what}")
            ax.title.set_fontsize(9)
            ax.set_xticks(list(found["with"]), list(map(str, found["with"])))
            ax.minorticks_off()
            plain(ax)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=2,
                  frameon=False, fontsize=9)  # fmt: skip
    axes[0][0].set_ylabel("dashed: before the first step", fontsize=8)
    axes[1][0].set_ylabel("dashed: by the first step", fontsize=8)
    figure.supxlabel("d_model", fontsize=9)
    figure.savefig(path, dpi=100)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--gain-init", type=float, default=0.0)
    parser.add_argument("--muon", choices=["match_rms_adamw", "original"], help="By Muon, so.")
    parser.add_argument("--out", help="JSON file for all sizes.")
    parser.add_argument("--figure", help="PNG file.")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    optim = OPTIM
    if options.muon:  # at rates of about the same size of update at the base width
        rate = {"match_rms_adamw": 2e-3, "original": 4e-3}[options.muon]
        optim = replace(OPTIM, name="muon", muon_adjust=options.muon, muon_lr=rate)
    found = measure(WIDTHS, options.seeds, options.steps, options.gain_init, optim)
    rows = [
        [part, f"{what}, step {step % (options.steps + 1)}", *(f"{value:+.2f}" for value in both)]
        for part, what, step, both in slopes(found)
    ]
    show(["part", "slope of", *(f"{way} base_width" for way in WAYS)], rows)
    given = {k: value for k, value in given_options(options).items() if k != "figure"}
    write(options.out, {"options": given, "base_width": BASE, "sizes": found})
    if options.figure:
        draw(found, Path(options.figure))


if __name__ == "__main__":
    main()
