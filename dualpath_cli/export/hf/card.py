"""The model card: the facts that a run recorded about a model."""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dualpath_cli.base.output import say
from dualpath_cli.base.version import package_versions
from dualpath_cli.data.manifest import HUB, dataset_of
from dualpath_cli.flops.count import active_parameters
from dualpath_cli.recipe.recipes import dump
from dualpath_cli.recipe.settings import Settings
from dualpath_cli.report.table import Column, Table, markdown
from dualpath_cli.run.run_folder import Run, mapping_of
from dualpath_cli.run.tables import VALIDATION, read_table
from dualpath_cli.spec.config import ModelConfig

ABOUT = """\
A language model of the paper "A Dual-Path Architecture for Scaling Compute and Capacity
in LLMs". A `dual` layer runs a deep sublayer K times (`loops`) with shared weights
beside a wide sublayer, and gates per token add them up. A `loop` layer has only
the deep sublayer, a `wide` layer the wide one. Written by dualpath {}."""
CORE = """\
Layers {first} to {last}, counted from 0, are the core: they run {loops} times, one
after the other, with shared weights (`core`, `core_loops`). Each repetition has its own
gains. In `outputs.routing`, `layers` has an entry for each application of a layer, and
`core` the repetitions as steps."""
UNTIED = """\
Where `untied_steps` is true, the K sublayers of a deep path have weights of their
own."""
USE = """```python
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

folder = "path/to/this/folder"
tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
prompts = ["Question: What is 3 + 4?\\nAnswer:"]
texts = [tokenizer.{token} + prompt for prompt in prompts]
inputs = tokenizer(texts, return_tensors="pt")
tokens = model.generate(**inputs, max_new_tokens=20)
print(*tokenizer.batch_decode(tokens, skip_special_tokens=True), sep="\\n")

# Gates, step weights and states; `intervention` forces other loops or gates than the
# learned ones.
outputs = model(**inputs, output_routing=True)
for layer in outputs.routing.layers:
    print(layer.deep_share, layer.expected_loops)
    # tokens after each loop
    print([model.lens(state).argmax(-1) for state in layer.deep_states])
```

{beginning} Loaded in
bfloat16, the weights of norms, router, gates, gains and the embedding stay float32."""
BEGINNING = """\
Each training document followed an end-of-text token, the tokenizer's `bos_token`. The
tokenizer does not add it: without it the model writes something else."""
BEGINNING_BESIDE_BOS = """\
dualpath begins a text with an end-of-text token, the tokenizer's `pad_token`; the
`bos_token` is the pretrained model's own. The tokenizer adds neither: without one the
model writes something else."""


def model_card(
    run: Run,
    settings: Settings,
    parameters: int,
    license: str | None,
    own_bos: bool,
) -> str:
    """README.md: front matter for the hub, then facts, losses and an example.

    With `own_bos` the tokenizer's `bos_token` is not end-of-text.
    """
    from huggingface_hub import ModelCard, ModelCardData  # tokenizers brings it

    listed = run.facts.get("data_sources")
    sources = [str(name) for name in listed] if isinstance(listed, list) else []
    datasets = {dataset_of(name) for name in sources if name.startswith(HUB)}
    front = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["dualpath", "looped-transformer", "custom_code"],
        license=license,
        datasets=sorted(datasets) or None,
    )

    recipe = settings.as_recipe()
    shown = {"model": recipe["model"]}
    origin = mapping_of(run.folder, run.facts, "retrofit")
    if origin:
        rows = _pretrained_rows(run, origin)
    else:
        rows = _training_rows(run, settings, sources)
        shown["optim"] = recipe["optim"]

    size = f"{parameters:,}"
    if settings.model.has_experts:
        size += f", of which a token uses {active_parameters(settings.model):,}"
    table = _table([("parameters", size), *rows])

    name = as_text(f"{settings.run.recipe}/{settings.run.name}")
    sections = [
        f"# {name}, step {run.step:,}",
        *_about(settings.model),
        f"## Model\n\n{table}\n\n```yaml\n{dump(shown)}```",
        _validation(run, settings),
        f"## Use\n\n{_use(own_bos)}",
    ]
    text = "\n\n".join(section for section in sections if section)
    return str(ModelCard(f"---\n{front.to_yaml()}\n---\n\n{text}\n"))


def _about(model: ModelConfig) -> list[str]:
    """Paragraphs about the architecture."""
    paragraphs = [ABOUT.format(package_versions(["dualpath"])["dualpath"])]
    if model.repeats_core:
        assert model.core is not None
        first, last = model.core
        text = CORE.format(first=first, last=last, loops=model.core_loops)
        paragraphs.append(text)

    if any(layer.untied_steps for layer in model.layers):
        paragraphs.append(UNTIED)
    return paragraphs


def _use(own_bos: bool) -> str:
    """The example, whose prompt begins as that of `dualpath generate`."""
    if own_bos:
        return USE.format(token="pad_token", beginning=BEGINNING_BESIDE_BOS)
    return USE.format(token="bos_token", beginning=BEGINNING)


def _pretrained_rows(run: Run, origin: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("pretrained model", str(origin.get("pretrained"))),
        ("training since", "none"),
    ]
    hashes = mapping_of(run.folder, origin, "sha256")
    for name, value in hashes.items():
        rows.append((f"sha256 of {name}", str(value)))

    damping = origin.get("damping")
    once = "" if damping is None else ", with one repetition"
    difference = origin.get("difference")
    if isinstance(difference, float):
        off = f"{difference:.1e} of their norm{once}"
        rows.append(("logits off from the pretrained model's at first", off))

    loss = mapping_of(run.folder, origin, "loss")
    if damping is not None and loss:
        rows.append(("gain of later repetitions at first", str(damping)))
        nats = ", ".join(f"{model} {value:.3f}" for model, value in loss.items())
        rows.append(("nats a token on text that the pretrained model generated", nats))
    return rows


def _training_rows(
    run: Run, settings: Settings, sources: Sequence[str]
) -> list[tuple[str, str]]:
    facts = run.facts
    packages = mapping_of(run.folder, facts, "packages")
    versions = [f"{name} {version}" for name, version in packages.items()]
    begun = mapping_of(run.folder, facts, "init_from")
    weights = [f"{key} {value}" for key, value in begun.items()]

    rows = [
        ("began with the weights of", ", ".join(weights)),
        ("training tokens", f"{run.step * settings.run.batch_tokens:,}"),
        ("tokens a step", f"{settings.run.batch_tokens:,}"),
        ("precision", str(facts.get("precision", ""))),
        ("data", ", ".join(sources)),
        ("fingerprint of the data", str(facts.get("data_fingerprint", ""))),
        ("commit", str(facts.get("git_commit") or "")),
        ("packages", ", ".join(versions)),
    ]
    return [(name, value) for name, value in rows if value]


def _validation(run: Run, settings: Settings) -> str:
    """The losses of this step, if the run folder has them."""
    table = run.folder / VALIDATION
    rows = [row for row in read_table(table) if row.step == run.step]
    if settings.data.val and not rows:
        say(
            f"{table} has no row of step {run.step}: the card names no losses",
            sys.stdout,
        )
    if not rows:
        return ""

    # Raises UserError for what is not a number, which nobody should quote.
    for row in rows:
        row.measured("loss")
        row.measured("bits_per_byte")

    cells = [(row["set"], row["loss"], row["bits_per_byte"]) for row in rows]
    headings = ("set", "loss, nats a token", "bits per byte")
    return "## Validation\n\n" + _table(cells, headings)


def _table(rows: Iterable[Sequence[str]], headings: Sequence[str] = ("", "")) -> str:
    columns = [Column(heading) for heading in headings]
    text = markdown(Table(columns, list(rows)), escape=as_text)
    return text.rstrip("\n")


_MARKS = re.compile(r"[^\w\s,;/()=%+'.-]|\.(?=[A-Za-z])|(?<![^\W_])_|_(?![^\W_])")
"""Characters with a meaning in Markdown or HTML, or which make links."""


def as_text(value: str) -> str:
    """A value from anybody on one line, which Markdown and HTML show as it is.

    Marks become `&#NUMBER;`, also in tables; an underscore within a word is not a mark.
    """
    plain = "".join(c if c.isprintable() else " " for c in value)

    def escaped(mark: re.Match[str]) -> str:
        return f"&#{ord(mark[0])};"

    return _MARKS.sub(escaped, plain)
