"""The benchmarks: how each is rendered and scored, where its data are, what the paper calls it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dualpath_cli.evaluation import formats
from dualpath_cli.evaluation.formats import Render
from dualpath_cli.flops.paper import COMMONSENSE, MATH

Kind = Literal["choice", "gold", "word", "writing", "text"]
"""The request: the likelihood of each choice; of the right continuation; of it, and whether it is
what the model would write; an answer; the likelihood of a whole text."""

ROLLING = "rolling_bpb"
"""Bits per byte of texts whose windows are read after the token before them, as in OLMES; those of
`validate` are read after end-of-text (docs/validate.md)."""


@dataclass(frozen=True)
class Hub:
    path: str
    config: str | None
    split: str
    examples: str | None = None  # the split that few-shot examples come from
    revision: str | None = None  # where the data lie as Parquet, of a dataset that is a script


@dataclass(frozen=True)
class Benchmark:
    """One of the paper's benchmarks, or a text of the user's."""

    name: str
    kind: Kind
    primary: str  # the metric that stands for it
    render: Render | None = None  # makes a question of a row; a text needs none
    shots: int = 0  # worked examples before a question
    hub: Hub | None = None
    files: tuple[str, ...] = ()  # another name of its local file, without the suffix
    subject: str | None = None  # its rows' field `subject`, where a file holds several
    paper: str | None = None  # in the paper's table, where ` Acc.` or ` BPB` follows


_ARC, _PARQUET = "allenai/ai2_arc", "refs/convert/parquet"
_MATH = {
    "algebra": "Algebra", "counting_and_probability": "Counting & Probability",
    "geometry": "Geometry", "intermediate_algebra": "Intermediate Algebra",
    "number_theory": "Number Theory", "prealgebra": "Prealgebra", "precalculus": "Precalculus",
}  # fmt: skip
"""Subsets of MATH in the paper's order, and what their rows call them."""

STOPS = ("Question:", "\n\n")  # texts that end an answer of GSM8K
NEW_TOKENS = 512  # the longest answer of GSM8K


def _choice(
    name: str, render: Render, primary: str, hub: Hub, paper: str, files: tuple[str, ...]
) -> Benchmark:
    return Benchmark(name, "choice", primary, render, 5, hub, files, paper=paper)


_COMMONSENSE = (
    _choice("arc_challenge", formats.arc, "acc_uncond",
            Hub(_ARC, "ARC-Challenge", "test", "train"), "ARC-c", ("arc_challenge_test",)),
    _choice("arc_easy", formats.arc, "acc_per_char",
            Hub(_ARC, "ARC-Easy", "test", "train"), "ARC-e", ("arc_easy_test",)),
    _choice("hellaswag", formats.hellaswag, "acc_per_char",
            Hub("Rowan/hellaswag", None, "validation", "train"), "HellaSwag",
            ("hellaswag_val", "hellaswag_validation")),
    _choice("piqa", formats.piqa, "acc_per_char",
            Hub("ybisk/piqa", None, "validation", "train", _PARQUET), "PIQA",
            ("piqa_val", "piqa_validation")),
    _choice("socialiqa", formats.siqa, "acc_per_char",
            Hub("allenai/social_i_qa", None, "validation", "train", _PARQUET), "SIQA",
            ("socialiqa_val", "socialiqa_validation", "siqa", "siqa_val", "social_i_qa")),
    _choice("winogrande", formats.winogrande, "acc_raw",
            Hub("allenai/winogrande", "winogrande_xl", "validation", "train"), "WinoGrande",
            ("winogrande_val", "winogrande_validation")),
)  # fmt: skip
_MATHS = tuple(
    Benchmark(f"minerva_math_{subset}", "gold", "bpb", formats.math, 4,
              Hub("EleutherAI/hendrycks_math", subset, "test", "train"),
              ("minerva_math", "math", "math500", "math500_test"), subject, paper)
    for (subset, subject), paper in zip(_MATH.items(), MATH, strict=True)
)  # fmt: skip
_GSM8K = Benchmark("gsm8k", "writing", "acc", formats.gsm8k, 8,
                   Hub("openai/gsm8k", "main", "test", "train"), ("gsm8k_test", "gsm8k/test"),
                   paper="GSM8k")  # fmt: skip
_QA = (
    Benchmark("lambada", "word", "acc", formats.lambada,
              hub=Hub("EleutherAI/lambada_openai", "default", "test"),
              files=("lambada_test", "lambada_openai"), paper="LAMBADA"),
    _choice("qasper_yesno", formats.qasper, "acc_raw",
            Hub("allenai/qasper-yesno", None, "train", "validation"), "QASPER",
            ("qasper_yesno_train", "qasper")),
)  # fmt: skip
_TEXTS = tuple(
    Benchmark(name, "text", ROLLING, hub=Hub("allenai/paloma", config, "test"), files=(config,),
              paper=paper)
    for name, config, paper in (("c4", "c4_en", "C4"),
                                ("wikitext_103", "wikitext_103", "WikiText-103"))
)  # fmt: skip

BENCHMARKS: Mapping[str, Benchmark] = {
    benchmark.name: benchmark for benchmark in (*_TEXTS, *_COMMONSENSE, _GSM8K, *_MATHS, *_QA)
}
"""By name, in the order of the paper's table."""

SUITES: Mapping[str, tuple[str, ...]] = {
    "lm": tuple(b.name for b in _TEXTS),
    "commonsense": tuple(b.name for b in _COMMONSENSE),
    "math": (_GSM8K.name, *(b.name for b in _MATHS)),
    "qa": tuple(b.name for b in _QA),
    "paper": tuple(BENCHMARKS),
    "all": tuple(BENCHMARKS),
}
PAPER_LIMIT = 1024  # documents of a benchmark that the paper's evaluations were capped at

assert tuple(b.paper for b in _COMMONSENSE) == COMMONSENSE


def text(name: str) -> Benchmark:
    """A text of the user's, or one of the paper's where it is called so."""
    return BENCHMARKS.get(name) or Benchmark(name, "text", ROLLING)
