"""Intervention: a change to the forward pass of a trained model.

Plain data and torch-free: studies choose interventions, the model carries them out.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from dualpath_cli.base.errors import UserError, did_you_mean
from dualpath_cli.base.ranges import Range, check_ranges
from dualpath_cli.spec.config import ModelConfig
from dualpath_cli.spec.own_classes import gives_mass

LEARNED = "learned"
MOST_LOOPS = 100  # of a list of loops to force
SHUFFLED: Literal["shuffled"] = "shuffled"
RANDOM: Literal["random"] = "random"
Blind = Literal["all", "position"]
"""One schedule for all tokens, or one by position."""


@dataclass(frozen=True)
class Intervention:
    """A row of the paper's inference-time ablations, or several in one.

    The default changes nothing.

    Raises:
        ValueError: for a value out of range, or fields that exclude each other.
    """

    loops: int | None = None
    """K', the steps that every deep path runs instead of the trained K. The last step
    takes the remaining mass. Below K the router's step index is rescaled to K' steps;
    above K the index of K steps is kept, at most 1, and the K-th gain repeats."""
    core_loops: int | None = None
    """R', the repetitions of the core instead of the trained R; beyond R, the gains of
    the last one repeat."""
    held: int | None = None
    """Steps of every deep path, after which the state stays as it is while the router
    goes on through the trained K. Deep paths with fewer steps are unchanged."""
    core_held: int | None = None
    """Repetitions of the core, after which the state stays as it is while the core's
    router goes on through the trained R."""
    gates: tuple[float, float] | Literal["shuffled"] | None = None
    """(g_d, g_w) of every token in every dual block; or `shuffled`: the learned values
    of g_d, and independently those of g_w, permuted over the positions of each
    sequence, anew in each layer."""
    experts: int | Literal["random"] | None = None
    """How many experts each token takes, the best, instead of the trained number; or
    `random`: the trained number, chosen at random. Weights are a softmax over the
    chosen experts in both cases."""
    seed: int = 0
    """Seed of the permutations, and of the random choice."""
    halting: float | None = None
    """Threshold: a token stops after the first step, or repetition of a routed core,
    that leaves this mass or less. The step takes the remaining mass, and later steps of
    other tokens see the state that the token stopped at."""
    blind: Blind | None = None
    """A schedule, given by `schedule`, instead of the choice by remaining mass: how
    many steps each token takes does not depend on the text. Its name says whether the
    schedule knows a token's position."""
    skip: float | None = None
    """Gate below which a token skips a path of a dual block: h_deep or h_wide is then
    the block's input x, as if the path added nothing, and later tokens see x in all
    steps of the path."""
    kv_slots: int | None = None
    """The most keys and values that a deep path keeps of each token: step k writes slot
    k mod N, from 0, and repetition r of a core slot r mod N of each layer. Tokens of
    one pass see each other in every step; tokens of earlier passes are seen through
    their slots. Without a cache each token is a pass."""
    layers: tuple[int, ...] | None = None
    """Layers, from 0 on, that the intervention applies to; None: all layers."""
    tokens: str | None = None
    """Name of a class of tokens, given by `token_mask`: only their gates are
    overridden."""

    def __post_init__(self) -> None:
        for name in _COUNTS:
            count = getattr(self, name)
            if count is not None and not _is_whole(count, 1):
                raise ValueError(
                    f"{name} must be a whole number from 1 on, not {count!r}"
                )

        if self.gates is not None and self.gates != SHUFFLED:
            pair = isinstance(self.gates, tuple) and len(self.gates) == 2
            if not pair or not all(_is_fraction(value) for value in self.gates):
                raise ValueError(
                    "gates must be (g_d, g_w), each from 0 to 1, or 'shuffled', not "
                    f"{self.gates!r}"
                )

        if self.halting is not None and not _is_fraction(self.halting):
            raise ValueError(
                f"halting must be a number from 0 to 1, not {self.halting!r}"
            )

        if self.skip is not None and not _is_fraction(self.skip):
            raise ValueError(f"skip must be a number from 0 to 1, not {self.skip!r}")

        if self.experts not in (None, RANDOM) and not _is_whole(self.experts, 1):
            raise ValueError(
                "experts must be a whole number from 1 on, or 'random', not "
                f"{self.experts!r}"
            )

        if not _is_whole(self.seed, 0):
            raise ValueError(
                f"seed must be a whole number from 0 on, not {self.seed!r}"
            )

        if self.layers is not None and not _are_layers(self.layers):
            raise ValueError(
                "layers must be a tuple of numbers from 0 on in growing order, not "
                f"{self.layers!r}"
            )

        self._check_together()

    def _check_together(self) -> None:
        """Raises ValueError for fields that need others, or exclude them."""
        if self.kv_slots is not None and self._draws:
            raise ValueError(
                "kv_slots excludes shuffled gates and random experts, which need the "
                "whole text"
            )

        if self.seed and not self._draws:
            raise ValueError(f"seed={self.seed} needs shuffled gates or random experts")

        for name in ("core_loops", "core_held"):
            count = getattr(self, name)
            if self.layers is not None and count is not None:
                raise ValueError(
                    f"{name}={count} repeats all layers of the core: leave layers out"
                )

        self._check_exits()

        if self.layers is not None and self.only_gates and self.gates is None:
            raise ValueError(
                "layers restrict an override, such as gates=1,0: give one, too"
            )

        # All tokens share a loop: only gates can differ between classes of tokens.
        constant = self.only_gates and isinstance(self.gates, tuple)
        if self.tokens is not None and not constant:
            raise ValueError(
                f"tokens='{self.tokens}' needs constant gates and nothing "
                "else: all tokens share the loop"
            )

    def _check_exits(self) -> None:
        """Raises ValueError for a held state or a schedule beside what excludes it."""
        # A held state keeps the trained number, and all tokens share it.
        for name, forced in (("held", self.loops), ("core_held", self.core_loops)):
            count = getattr(self, name)
            if count is None:
                continue
            if forced is not None:
                raise ValueError(f"{name}={count} keeps the trained number of steps")
            if self.leaves_out:
                raise ValueError(f"{name}={count} excludes halting, skip and kv_slots")

        if self.blind is not None and self.halting is None:
            raise ValueError(
                f"blind='{self.blind}' needs halting, whose mean depth it has"
            )
        if self.blind is not None and self.kv_slots is not None:
            raise ValueError("blind schedules exclude kv_slots: they plan a whole text")

    @classmethod
    def of_loops(cls, model: ModelConfig, loops: int) -> "Intervention":
        """Forces what draws and schedules of loops vary: R with a core, else K."""
        if model.core is None:
            return cls(loops=loops)
        return cls(core_loops=loops)

    @property
    def name(self) -> str:
        """A short name: `learned`, `K=3`, `R=2`, `gates=1,0`, `shuffled`, `shuffled:7`.

        Also `held=2`, `core_held=1`, `experts=1`, `experts=random:7`, `halting=0.1`,
        `halting=0.1 blind=position`, `skip=0.2`, `kv_slots=1`; layers and tokens
        follow: `gates=0,1 layers=0,2 tokens=arithmetic`.
        """
        parts = []
        if self.loops is not None:
            parts.append(f"K={self.loops}")
        if self.core_loops is not None:
            parts.append(f"R={self.core_loops}")
        if self.held is not None:
            parts.append(f"held={self.held}")
        if self.core_held is not None:
            parts.append(f"core_held={self.core_held}")

        seed = f":{self.seed}" if self.seed else ""
        if self.gates == SHUFFLED:
            parts.append(SHUFFLED + seed)
            seed = ""  # named once
        elif self.gates is not None:
            deep, wide = self.gates
            parts.append(f"gates={deep:g},{wide:g}")

        if self.experts == RANDOM:
            parts.append(f"experts={RANDOM}{seed}")
        elif self.experts is not None:
            parts.append(f"experts={self.experts}")

        if self.halting is not None:
            parts.append(f"halting={self.halting:g}")
        if self.blind is not None:
            parts.append(f"blind={self.blind}")
        if self.skip is not None:
            parts.append(f"skip={self.skip:g}")
        if self.kv_slots is not None:
            parts.append(f"kv_slots={self.kv_slots}")

        if self.layers is not None:
            parts.append("layers=" + ",".join(map(str, self.layers)))
        if self.tokens is not None:
            parts.append(f"tokens={self.tokens}")
        return " ".join(parts) or LEARNED

    @property
    def only_gates(self) -> bool:
        """Whether it changes nothing but gates, so that a mask can restrict it to some
        tokens."""
        others = (
            self.loops,
            self.core_loops,
            self.held,
            self.core_held,
            self.experts,
            self.halting,
            self.skip,
            self.kv_slots,
        )
        return all(field is None for field in others)

    @property
    def needs_whole_text(self) -> bool:
        """Whether its draws or its schedule need all tokens of a text, which a cache
        does not have."""
        return self._draws or self.blind is not None

    @property
    def _draws(self) -> bool:
        """Whether gates or experts are drawn for a whole text."""
        return self.gates == SHUFFLED or self.experts == RANDOM

    @property
    def leaves_out(self) -> bool:
        """Whether tokens leave steps or paths out, or keep fewer keys and values."""
        fields = (self.halting, self.skip, self.kv_slots)
        return any(field is not None for field in fields)

    def within(self, layer: int) -> "Intervention | None":
        """The part of the intervention that a layer, from 0, carries out; None if none.

        `core_loops` and `core_held` are left out: the core carries them out, so that a
        compiled layer serves any number of repetitions.
        """
        if self.layers is not None and layer not in self.layers:
            return None
        if self.core_loops is None and self.core_held is None:
            return self

        own = replace(self, core_loops=None, core_held=None)
        return None if own == Intervention() else own

    def problem(self, config: ModelConfig) -> str | None:
        """Why a model cannot have this intervention; None if it can.

        The end of a message.
        """
        if self.layers is not None and self.layers[-1] >= config.n_layers:
            return (
                f"the model has no layer {self.layers[-1]}: its layers are 0 to "
                f"{config.n_layers - 1}"
            )

        problem = self._problem_of_core(config)
        if problem:
            return problem

        numbers = self.layers or range(config.n_layers)
        kinds = {config.block_kinds[number] for number in numbers}
        place = "the model" if self.layers is None else "that part of the model"

        changes_gates = self.gates is not None or self.skip is not None
        if changes_gates and "dual" not in kinds:
            return f"{place} has no dual block, so it has no gates"

        return (
            self._problem_of_experts(config, numbers, place)
            or self._problem_of_loops(config, numbers, place)
            or self._problem_of_halting(config, numbers, place)
        )

    def _problem_of_experts(
        self, config: ModelConfig, numbers: Sequence[int], place: str
    ) -> str | None:
        """The problem with forced experts in some layers; `place` names these."""
        if self.experts is None:
            return None

        counts = [config.layers[number].n_experts for number in numbers]
        counts = [count for count in counts if count]
        if not counts:
            return f"{place} has no experts"
        if self.experts != RANDOM and self.experts > min(counts):
            return (
                f"a layer has only {min(counts)} experts: force {min(counts)} or "
                f"fewer, not {self.experts}"
            )
        return None

    def _problem_of_core(self, config: ModelConfig) -> str | None:
        forced = self.core_loops or self.core_held
        if forced is None:
            return None
        if config.core is None:
            return "the model has no core to repeat"

        if self.core_held is not None and self.core_held >= config.core_loops:
            most = config.core_loops
            return f"the core is repeated {most} times: core_held must be below that"

        learns = {
            "router to weigh more": config.core_combination == "router",
            "injection for more": config.injection == "linear",
        }
        for part, needed in learns.items():
            if needed and config.core_loops == 1 < forced:
                return f"the core was trained with R = 1, so it has no {part}"
        return None

    def _problem_of_loops(
        self, config: ModelConfig, numbers: Sequence[int], place: str
    ) -> str | None:
        """The problem with changed loops in some layers; `place` names these."""
        changes = (self.loops, self.held, self.halting, self.kv_slots)
        if all(field is None for field in changes):
            return None

        deep = [number for number in numbers if config.block_kinds[number] != "wide"]
        _, core, _ = config.stretches
        of_deep_paths = self.loops is not None or self.held is not None
        changes_core = not of_deep_paths and not set(core).isdisjoint(numbers)
        if not deep and not changes_core:
            hint = " of steps: R=2 forces repetitions of the core" if core else ""
            return f"{place} has only wide blocks, so it has no loop{hint}"

        loops = {number: config.layers[number].loops for number in deep}
        single = [number for number in deep if loops[number] == 1]
        # These combinations need no router to run more loops.
        mixes = config.combination not in ("final", "mean")
        if single and mixes and (self.loops or 1) > 1:
            whose = "the model" if config.same_loops == 1 else f"layer {single[0]}"
            return (
                f"{whose} was trained with one loop, so it has no router to weigh more"
            )

        most = max(loops.values(), default=1)
        if self.held is not None and self.held >= most:
            return f"the model's loops have {most} steps: held must be below that"

        if self.kv_slots is not None:
            most = self._most_kept(config, numbers)
            if self.kv_slots >= most:
                return (
                    f"a loop of {most} steps needs no more than {most} slots: kv_slots "
                    "must be below that"
                )

        return None

    def _problem_of_halting(
        self, config: ModelConfig, numbers: Sequence[int], place: str
    ) -> str | None:
        """The problem with a threshold in some layers; `place` names these."""
        if self.halting is None:
            return None

        _, core, _ = config.stretches
        routes_steps = any(config.layers[number].routes_steps for number in numbers)
        routes_core = config.routes_core and set(core).issubset(numbers)
        if not routes_steps and not routes_core:
            return (
                f"{place} has no router, so there is no remaining mass for a threshold"
            )
        if routes_steps and not gives_mass(config):
            return (
                f"combination {config.combination} has no step_probability, so there "
                "is no remaining mass for a threshold"
            )
        return None

    def _most_kept(self, config: ModelConfig, numbers: Sequence[int]) -> int:
        """The most keys and values of a token that a loop of these layers keeps: one
        for each step."""
        _, core, _ = config.stretches
        kept = [1]
        for number in numbers:
            layer = config.layers[number]
            if number in core:
                kept.append(self.core_loops or config.core_loops)
            if layer.block != "wide" and layer.step_kv == "own":
                kept.append(self.loops or layer.loops)
        return max(kept)


_COUNTS = ("loops", "core_loops", "held", "core_held", "kv_slots")
"""Fields that are a whole number from 1 on."""


def _is_whole(value: object, least: int) -> bool:
    return type(value) is int and value >= least


def _is_fraction(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and 0 <= value <= 1


def _are_layers(layers: object) -> bool:
    if not isinstance(layers, tuple) or not layers:
        return False

    numbers = all(_is_whole(number, 0) for number in layers)
    return numbers and list(layers) == sorted(set(layers))


def parse_overrides(words: Sequence[str]) -> Intervention | None:
    """Reads words as `Intervention.name` writes them, one or more in a text.

    `learned` changes nothing, and `gates=shuffled seed=7` is read as `shuffled:7`.
    """
    fields: dict[str, Any] = {}
    for word in " ".join(words).split():
        if word == LEARNED:
            continue

        found = _parse_override(word)
        if not fields.keys().isdisjoint(found):
            raise UserError(
                f"--intervention '{word}': this override is given twice, or also by an "
                "option such as --loops; give it once"
            )
        fields |= found

    try:
        change = Intervention(**fields) if fields else None
        # Limits of a command; from Python there are none.
        most: dict[str, Range] = dict.fromkeys(_COUNTS, (1, 1000))
        most["seed"] = (0, (1 << 62) - 1)
        check_ranges(change or Intervention(), most)
    except ValueError as error:
        raise UserError(f"--intervention: {error}") from None
    return change


def _parse_override(word: str) -> dict[str, Any]:
    """The fields in a word such as `K=3`, `gates=1,0` or `experts=random:7`."""
    if word.startswith(SHUFFLED):
        text = f"gates={word}"
    else:
        text = re.sub("^K=", "loops=", re.sub("^R=", "core_loops=", word))

    key, equals, value = text.partition("=")
    if not equals or key not in _TYPES:
        hint = did_you_mean(key, _TYPES) or f"; keys are K, R, {', '.join(_TYPES)}"
        raise UserError(f"--intervention '{word}': give KEY=VALUE or {SHUFFLED}{hint}")

    # Choices by chance may name their seed.
    seed = None
    if key in ("gates", "experts") and ":" in value:
        value, _, seed = value.partition(":")

    fields = {key: _parse_value(key, value)}
    if seed is not None:
        fields["seed"] = _parse_value("seed", seed)
    return fields


_TYPES: dict[str, type] = dict.fromkeys((*_COUNTS, "experts", "layers", "seed"), int)
_TYPES |= {"gates": float, "halting": float, "skip": float, "tokens": str}


def _parse_value(key: str, text: str) -> Any:
    """The value of a field of Intervention, unchecked; text if it is not a number."""
    parse = _TYPES[key]
    try:
        if key in ("gates", "layers"):
            return tuple(parse(part) for part in text.split(","))
        return parse(text)
    except ValueError:
        return text


def parse_loops(text: str) -> list[int]:
    """The counts in such as 1-10 or 1,2,8, in growing order."""
    counts: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part.strip())
        first = int(match[1]) if match else 0
        last = int(match[2] or first) if match else 0
        if not 1 <= first <= last <= MOST_LOOPS:
            raise UserError(
                f"--loops '{text}': '{part}' is not a number or range from 1 to "
                f"{MOST_LOOPS}; for example 1-10 or 1,2,8"
            )
        counts |= set(range(first, last + 1))

    return sorted(counts)
