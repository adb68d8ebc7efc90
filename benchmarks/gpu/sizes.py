"""How large the measurements are: as meant for a GPU, or tiny to rehearse them on a CPU."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from dualpath_cli.config import ModelConfig
from dualpath_cli.flops.paper import configurations

MAIN = "f80m_a50_k4"
"""The configuration that most is measured with."""


@dataclass(frozen=True)
class Sizes:
    """Shapes and repetitions. The defaults are the real ones."""

    seq_len: int = 4096
    """T, tokens of a sequence."""
    micro_batches: tuple[int, ...] = (2, 4, 8)
    """Sequences in one forward pass."""
    micro_batch: int = 4
    """The one that everything but part `step` uses."""
    accumulate: int = 8
    """Micro-batches of an optimizer step, where gradients are accumulated."""
    repeats: int = 10
    """Timed calls; a step's time is their median."""
    kernel_repeats: int = 50
    """Timed calls of a single kernel."""
    warm_up: int = 3
    """Calls before the clock starts, the first of which compiles."""
    rounds: int = 7
    """Rounds of a comparison; each variant has its turn in each of them."""
    matmul: int = 8192
    """Rows and columns of the matrices whose product is the measured peak."""
    copy_bytes: int = 2**32
    """Bytes of the buffer that is copied, many times the cache."""
    check_len: int = 256
    """Tokens of the sequences that results are compared on."""
    check_width: int = 256
    """Model width there; heads have 64 channels, as in the paper."""
    contexts: tuple[int, ...] = (512, 4096)
    """Tokens that decoding goes on from."""
    decoded_batches: tuple[int, ...] = (1, 32)
    """Sequences that are decoded together."""
    decoded: int = 32
    """Tokens of each that are decoded in a round."""
    memory_limit: float = 80e9
    """Bytes that a configuration may use to count as fitting."""
    compiler: Literal["inductor", "aot_eager", "eager"] = "inductor"
    """The compiler; `aot_eager` traces as well and generates no code, `eager` leaves out the
    backward pass."""
    tiny: bool = False
    """Whether models shrink to a thousandth, and lists to their first entries."""

    def model(self, recipe: str) -> ModelConfig:
        """The model of one of the paper's 26 configurations, as trained, by its recipe's name."""
        found = {configuration.recipe: configuration for configuration in configurations()}
        config = found[recipe].model_config("as_trained")
        if not self.tiny:
            return dataclasses.replace(config, max_seq_len=self.seq_len)

        def narrow(width: int | None) -> int | None:
            return None if width is None else max(8, width // 128)

        return dataclasses.replace(
            config, vocab_size=128, n_layers=2, d_model=32, n_heads=2, n_kv_heads=2,
            max_seq_len=self.seq_len, loops=min(2, config.loops), d_ffn=narrow(config.d_ffn),
            d_ffn_wide=narrow(config.d_ffn_wide), ffn_multiple_of=8,
        )  # fmt: skip

    def recipes(self) -> list[str]:
        """Names of the configurations to fit into memory: dual paths first, by falling K."""
        rows = sorted(configurations(), key=lambda row: (row.block != "dual", -row.loops))
        names = [row.recipe for row in rows]
        return [names[0], names[-1]] if self.tiny else names


REHEARSAL = Sizes(
    seq_len=128, micro_batches=(1, 2), micro_batch=2, accumulate=2, repeats=2, kernel_repeats=2,
    warm_up=1, rounds=2, matmul=128, copy_bytes=2**20, check_len=16, check_width=32,
    contexts=(16,), decoded_batches=(2,), decoded=2,
    compiler="aot_eager", tiny=True,
)  # fmt: skip
"""Everything once or twice, as small as it can be."""
