"""Figure of experts: how the choices of each layer fall on them."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from dualpath_cli.output.figures import heat_map, layer_ticks, panels
from dualpath_cli.study.routing.experts import expert_loads
from dualpath_cli.study.routing.sums import Sums


def loads(sums: Mapping[str, Sums], layers: Sequence[int]) -> Figure | None:
    """Load of each expert over the mean of its layer, by layer: a map a source.

    1 is an even load; from 2 on all have one colour. Grey where a layer has no such expert. None
    for a model without experts.
    """
    shown = {name: expert_loads(source) * source["experts"][:, None]
             for name, source in sums.items() if source["experts"].any()}  # fmt: skip
    if not shown:
        return None
    most = max(values.shape[1] for values in shown.values())
    width = min(6.0, max(1.8, 0.22 * len(layers) + 0.6)) * len(shown) + 1.2
    figure, axes = panels(width, 0.16 * most + 1.2, 1, len(shown), sharey=True)
    for ax, (name, values) in zip(axes[0], shown.items(), strict=True):
        image = heat_map(ax, values.T, 1.0, 1.0)
        ax.set_facecolor("#B9BDC7")
        ax.set_title(name, fontsize=8)
        ax.set_yticks(range(most), range(most), fontsize=7)
        layer_ticks(ax.xaxis, layers, fontsize=7)
        ax.set_xlabel("layer", fontsize=8)
    axes[0, 0].set_ylabel("expert", fontsize=8)
    figure.colorbar(image, ax=axes.ravel().tolist(), label="load over the mean", fraction=0.04,
                    extend="max")  # fmt: skip
    return figure
