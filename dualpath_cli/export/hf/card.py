"""The model card: what a run's own files say of a model, for people who find it somewhere."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dualpath_cli.base.errors import UserError, of_content
from dualpath_cli.base.system import read_csv, read_json
from dualpath_cli.base.version import package_versions
from dualpath_cli.data.manifest import HUB
from dualpath_cli.evaluation.benchmarks import NAMES, Benchmark
from dualpath_cli.flops.count import active_parameters, has_experts
from dualpath_cli.recipe.schedule import weight_decay
from dualpath_cli.recipe.settings import Settings
from dualpath_cli.report.table import Column, Table, markdown
from dualpath_cli.run.run_folder import AVERAGES, VALIDATION, Run
from dualpath_cli.spec.config import ModelConfig, by_layer

PAPER = "A Dual-Path Architecture for Scaling Compute and Capacity in LLMs"


@dataclass(frozen=True)
class Score:
    task: str
    metric: str
    value: float
    stderr: float | None
    documents: int
    in_all: int
    shots: int


@dataclass(frozen=True)
class Results:
    """The content of a results.json."""

    scores: tuple[Score, ...]
    how: str  # the model was run, as a sentence
    learned: bool  # whether that was without an intervention

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """A row for each benchmark: name, metric, value, standard error, documents, examples."""
        return [
            (s.task, s.metric, f"{s.value:.4f}", "" if s.stderr is None else f"{s.stderr:.4f}",
             f"{s.documents:,} of {s.in_all:,}", str(s.shots))
            for s in self.scores
        ]  # fmt: skip

    def entries(self) -> dict[str, str]:
        """The files of `.eval_results/`: accuracies on whole benchmarks that the hub has, in %.

        Scores of a part, or of forced loops and gates, are in the card alone.
        """
        files = {}
        for score in self.scores:
            whole = score.documents == score.in_all and self.learned
            if score.task in NAMES and score.metric.startswith("acc") and whole:
                config = Benchmark(score.task).config
                part = config.get("dataset_name", "default")
                entry = {
                    "dataset": {"id": config["dataset_path"], "task_id": part},
                    "value": round(100 * score.value, 2),
                    "notes": f"{score.metric}, {score.shots}-shot; {self.how}",
                }
                files[f"{score.task}.yaml"] = yaml.safe_dump([entry], sort_keys=False)
        return files


def read_results(path: Path, run: str, step: int) -> Results:
    """Reads the results.json of `dualpath evaluate`, of this run and step."""
    path = path / "results.json" if path.is_dir() else path
    content = read_json(path, "give a results.json of dualpath evaluate")
    try:
        model = content["model"]
        of = (model["run"], model["step"])
        scores = tuple(_score(task, content) for task in content["results"])
        how = (
            f"K = {model['loops']}, {model['intervention']}, {model['precision']} on "
            f"{model['device']}, batches of {model['batch_size']}, windows of {model['window']} "
            f"tokens, dualpath evaluate {model['versions']['dualpath']}"
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"--results '{path}' is no results.json of dualpath evaluate: {of_content(error)}"
        ) from None
    if of != (run, step):
        raise UserError(
            f"--results '{path}' is of {of[0]}, step {of[1]}, not of {run}, step {step}"
        )
    return Results(scores, how, learned=model["intervention"] == "learned")


def _score(task: str, content: Mapping[str, Any]) -> Score:
    metric, facts = Benchmark(task).primary, content["results"][task]
    error = facts[f"{metric}_stderr,none"]
    counts = content["n-samples"][task]
    numbers = [counts["effective"], counts["original"], Benchmark(task).config["num_fewshot"]]
    if not all(type(number) is int for number in numbers):
        raise ValueError(f"{task}: its numbers of documents are {numbers}")
    stderr = None if error == "N/A" else _finite(error)
    return Score(task, metric, _finite(facts[f"{metric},none"]), stderr, *numbers)


def _finite(value: Any) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r:.40} is no number")
    return float(value)


def model_card(
    run: Run,
    settings: Settings,
    facts: Mapping[str, Any],
    parameters: int,
    results: Results | None,
    license: str | None,
) -> str:
    """README.md: front matter as the hub reads it, then tables and an example."""
    given = facts.get("data_sources")  # an earlier version wrote none
    sources = [str(name) for name in given] if isinstance(given, list) else []
    on_hub = sorted({name.split(":")[1] for name in sources if name.startswith(HUB)})
    front: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["dualpath", "looped-transformer", "custom_code"],
        **({} if license is None else {"license": license}),
        **({"datasets": on_hub} if on_hub else {}),
    }
    parts = [
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---",
        f"# {as_text(f'{settings.run.recipe}/{settings.run.name}')}, step {run.step:,}",
        f'A language model in the terms of "{PAPER}": {_layers(settings.model)} Written by '
        f"dualpath {package_versions(['dualpath'])['dualpath']}.",
        "## Model\n\n" + _table(_model_rows(settings.model, parameters)),
        _origin(facts) or "## Training\n\n" + _table(_training_rows(run, settings, facts, sources)),
    ]
    if losses := _validation_rows(run, settings):
        parts.append("## Validation\n\n" + _table(losses, ("set", "loss, nats", "bits per byte")))
    if results is not None:
        head = ("benchmark", "metric", "value", "standard error", "documents", "examples")
        parts.append(f"## Evaluation\n\n{as_text(results.how)}.\n\n" + _table(results.rows, head))
    parts.append("## Use\n\n" + USE)
    return "\n\n".join(parts) + "\n"


USE = """```python
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

folder = "path/to/this/folder"
tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
prompts = ["Question: What is 3 + 4?\\nAnswer:"]
inputs = tokenizer([tokenizer.bos_token + text for text in prompts], return_tensors="pt")
tokens = model.generate(**inputs, max_new_tokens=20)
print(*tokenizer.batch_decode(tokens, skip_special_tokens=True), sep="\\n")

# Gates, step weights and states; `intervention` forces other loops or gates than the learned ones.
outputs = model(**inputs, output_routing=True)
for layer in outputs.routing.layers:
    print(layer.deep_share, layer.expected_loops)
    print([model.lens(state).argmax(-1) for state in layer.deep_states])  # what each loop would say
```

Documents were trained on after an end-of-text token, which is the tokenizer's `bos_token`. It is
not added by itself, and without it the model writes something else. Loaded in bfloat16, weights of
norms, router, gates, gains and the embedding stay float32."""


def _layers(config: ModelConfig) -> str:
    sentences = {
        "dual": "a dual layer runs a deep sublayer K times with shared weights beside a wide one, "
        "and gates per token add them up.",
        "loop": "a loop layer runs one sublayer K times with shared weights.",
        "wide": "a wide layer is one sublayer with a gain, as in other transformers.",
    }
    first, *others = [sentences[kind] for kind in sentences if kind in config.block_kinds]
    return " ".join([first, *(other[0].upper() + other[1:] for other in others)])


def _model_rows(config: ModelConfig, parameters: int) -> list[tuple[str, str]]:
    kinds = config.block if isinstance(config.block, str) else ", ".join(config.block)
    sparse = has_experts(config)
    active = f", of which a token uses {active_parameters(config):,}" if sparse else ""
    rows = [
        ("parameters", f"{parameters:,}{active}"),
        ("layers", f"{config.n_layers} ({kinds})"),
        ("width, heads, key and value heads",
         f"{config.d_model}, {config.n_heads}, {config.n_kv_heads}"),
        ("vocabulary", f"{config.vocab_size:,}" + (", tied" if config.tie_embeddings else "")),
        ("length of training sequences", f"{config.max_seq_len:,}"),
    ]  # fmt: skip
    kinds_used = set(config.block_kinds)
    if kinds_used - {"wide"}:
        rows.append(("loops K; effective FFN width of the deep path",
                     f"{by_layer(config.loops)}; {_widths(config, 'd_ffn')}"))  # fmt: skip
    if kinds_used - {"loop"}:
        rows.append(("effective FFN width of the wide path", _widths(config, "d_ffn_wide")))
    if sparse:
        widths = by_layer([layer.expert_width for layer in config.layers])
        rows.append(("experts in its place; a token takes; width of one",
                     f"{by_layer(config.n_experts)}; {config.top_k}; {widths}"))  # fmt: skip
    if "dual" in kinds_used:
        rows.append(("gate, combination of steps", f"{config.gate}, {config.combination}"))
    if kinds_used - {"wide"} and config.step_conditioning != "none":
        rows.append(("conditioning of steps", config.step_conditioning))
    return rows


def _widths(config: ModelConfig, name: str) -> str:
    effective = config.effective(name)
    assert effective is not None
    return by_layer(effective)


def _origin(facts: Mapping[str, Any]) -> str:
    """Where weights come from that `retrofit` wrote; empty for any other model."""
    if not (origin := facts.get("retrofit")):
        return ""
    hashes = [(f"sha256 of {name}", value) for name, value in origin["sha256"].items()]
    rows = [("pretrained model", origin["pretrained"]), *hashes]
    return "## Origin\n\n" + _table(rows) + "\n\nNothing was trained since."


def _training_rows(
    run: Run, settings: Settings, facts: Mapping[str, Any], sources: list[str]
) -> list[tuple[str, str]]:
    packages = facts.get("packages")
    packages = packages if isinstance(packages, dict) else {}
    averaged = ", ".join(f"{step:,}" for step in facts.get("averaged_steps", []))
    optim, steps = settings.optim, settings.run.steps
    begun = facts.get("init_from") or {}
    rows = [
        ("began with the weights of", ", ".join(f"{k} {v}" for k, v in begun.items())),
        ("tokens", f"{run.step * settings.run.batch_tokens:,}"),
        ("weights", "" if not averaged else f"mean of the checkpoints of steps {averaged}"),
        ("tokens a step", f"{settings.run.batch_tokens:,}"),
        ("optimizer", optim.name),
        ("learning rate", f"{optim.lr:g}, to {optim.lr_end:g}"),
        ("weight decay", f"{weight_decay(steps, optim):.4g}"),
        ("precision", str(facts.get("precision", ""))),
        ("data", ", ".join(sources)),
        ("fingerprint of the data", str(facts.get("data_fingerprint", ""))),
        ("commit", str(facts.get("git_commit", ""))),
        ("packages", ", ".join(f"{name} {version}" for name, version in packages.items())),
    ]
    return [(name, value) for name, value in rows if value not in ("", "None")]


def _validation_rows(run: Run, settings: Settings) -> list[tuple[str, ...]]:
    """The validation of this step, or of this average, where the run folder has one."""
    name, wanted = VALIDATION, {"step": str(run.step)}
    if run.average:
        name, wanted = AVERAGES, wanted | {"average": str(len(run.average))}
    rows = [row for row in read_csv(run.folder / name) if wanted.items() <= row.items()]
    if settings.data.val and not rows:
        print(f"{run.folder / name} has no row of step {run.step}: the card names no losses")
    return [(row["set"], row.get("loss", ""), row.get("bits_per_byte", "")) for row in rows]


def _table(rows: Iterable[Sequence[str]], headings: Sequence[str] = ("", "")) -> str:
    table = Table([Column(heading) for heading in headings], list(rows))
    return markdown(table, escape=as_text).rstrip("\n")


_MARKS = re.compile(r"[^\w\s,;/()=%+'.-]|\.(?=[A-Za-z])|(?<![^\W_])_|_(?![^\W_])")
"""Characters with a meaning in Markdown or HTML, or which make links."""


def as_text(value: str) -> str:
    """A value on one line that Markdown and HTML show as it is, whoever gave it.

    Marks become `&#NUMBER;`, which both read, also within a table; an underscore within a word is
    none.
    """
    plain = "".join(c if c.isprintable() else " " for c in value)
    return _MARKS.sub(lambda mark: f"&#{ord(mark[0])};", plain)
