"""The plan of a training, as `fit` prints it before the first step."""

import torch

from dualpath_cli.flops import count
from dualpath_cli.kernels.attention import kernel_on_gpu
from dualpath_cli.recipe.keys import idle_keys
from dualpath_cli.recipe.settings import OptimSettings, Settings
from dualpath_cli.run.run_folder import complete_checkpoints, step_of
from dualpath_cli.training.checks import epochs, unused_rows
from dualpath_cli.training.launch import TrainingLaunch
from dualpath_cli.training.session import Session

PlanPart = tuple[str, list[str]]
"""A text of the plan, and notes below it."""

_ROUNDS_WEIGHTS = ("bf16-true", "transformer-engine")
"""Precisions under which Lightning casts the whole module to bf16."""


def plan_of(
    session: Session[TrainingLaunch], accumulate: int, why_no_graph: str
) -> str:
    """The model, data, steps, devices and folder of a training, a label each.

    `accumulate` is the number of micro-batches in a step. `why_no_graph` says why steps
    are launched kernel by kernel, if they are.
    """
    settings = session.launch.settings
    parts: dict[str, PlanPart] = {
        "model": _model(settings),
        "data": _data(session.launch),
        "run": _run(session, accumulate),
    }
    if session.trainer.strategy.root_device.type == "cuda":
        parts["gpu"] = _gpu(session, why_no_graph)
    parts["folder"] = _folder(session.launch)

    lines = []
    for label, (text, notes) in parts.items():
        lines.append(f"{label:8}{text}")
        lines += [f"{'':8}{note}" for note in notes]
    return "\n".join(lines)


def _model(settings: Settings) -> PlanPart:
    model = settings.model
    budget = settings.run.budget
    flops = count.mean_layer_flops(model)
    linear = flops["linear_total"]
    is_sparse = model.has_experts

    active = ""
    if is_sparse:
        active = f", {count.active_parameters(model) / 1e6:,.1f}M of them active"
    text = (
        f"{count.parameters(model) / 1e6:,.1f}M parameters{active}, "
        f"{linear / 1e6:.2f}M linear and {flops['total'] / 1e6:.2f}M total FLOPs per "
        "token and layer"
    )

    notes = []
    if is_sparse and model.top_k == 1 and model.balance != "loss":
        notes.append(
            "the router of experts is not trained: with model.top_k=1 the weight of an "
            "expert is always 1; take 2, or model.balance=loss"
        )
    if budget:
        notes.append(
            f"linear FLOPs are {linear / budget:.4f} of the budget of {budget / 1e6:g}M"
        )
    notes += [f"{name} has no effect on this model" for name in idle_keys(settings)]
    return text, notes


def _data(launch: TrainingLaunch) -> PlanPart:
    settings = launch.settings
    since = launch.data_since
    weight_decay = settings.optim.weight_decay

    from_step = f" from step {since:,} on" if since else ""
    text = (
        f"{settings.data.path}: {launch.manifest.tokens / 1e6:,.1f}M tokens, "
        f"{epochs(settings, launch.manifest, since):.2f} epochs{from_step}"
    )

    notes = []
    if not settings.data.val:
        notes.append(
            "there is no validation set, so only the training loss is measured; "
            "--data.val.NAME FILE_OR_FOLDER adds one"
        )
    rows = unused_rows(settings, launch.manifest)
    if rows:
        notes.append(rows)
    replaced = settings.optim.decay_sum is not None
    if replaced and weight_decay != OptimSettings.weight_decay:
        notes.append(
            f"optim.weight_decay={weight_decay:g} has no effect: optim.decay_sum takes "
            "its place"
        )
    return text, notes


def _run(session: Session[TrainingLaunch], accumulate: int) -> PlanPart:
    """The steps, and what is rounded in them."""
    settings = session.launch.settings
    text = (
        f"{settings.run.steps:,} steps of {settings.run.batch_tokens:,} tokens: "
        f"{session.trainer.world_size} x {settings.run.micro_batch} sequences of "
        f"{settings.model.max_seq_len}, accumulated {accumulate} times"
    )

    notes = []
    precision = settings.trainer.precision
    # Only here: a run that began with a precision keeps it.
    is_fresh = session.launch.starts_from is None
    if is_fresh and precision in _ROUNDS_WEIGHTS:
        notes.append(
            f"trainer.precision={precision} rounds all weights and the residual stream "
            "to bf16: a gain at -7 moves by 0.03 or not at all; bf16-mixed keeps "
            "weights in float32"
        )
    return text, notes


def _gpu(session: Session[TrainingLaunch], why_no_graph: str) -> PlanPart:
    """How a CUDA GPU is given its work."""
    model = session.launch.settings.model
    steps = "a micro-batch is one CUDA graph"
    if why_no_graph:
        steps = f"launched kernel by kernel ({why_no_graph})"
    is_bf16 = str(session.trainer.precision).startswith("bf16")
    kernel, advice = kernel_on_gpu(
        model.n_heads,
        model.n_kv_heads,
        model.head_dim,
        model.max_seq_len,
        torch.bfloat16 if is_bf16 else torch.float32,
        session.trainer.strategy.root_device,
    )
    if model.document_start is not None:
        kernel = "FlexAttention within documents"
        advice = ""
    return f"{steps}; attention: {kernel}", [advice] if advice else []


def _folder(launch: TrainingLaunch) -> PlanPart:
    step = launch.step
    notes = []
    if launch.weights is not None:
        notes.append(f"begins with the weights of {launch.weights}")
    if step is not None:
        whose = "" if launch.trunk is None else f" of {launch.trunk}"
        notes.append(f"continued from step {step}{whose}")

        there = map(step_of, complete_checkpoints(launch.folder))
        later = [other for other in there if other > step]
        if later:
            notes.append(
                f"checkpoints of later steps, {min(later):,} to {max(later):,}, are "
                "removed when the next one is written"
            )
        if launch.taken_back is not None and step > launch.taken_back:
            notes.append(
                f"--ckpt-path took this run back to step {launch.taken_back:,} before, "
                "and does so once; to go back there again, remove the checkpoints of "
                "later steps"
            )
    notes += launch.lost
    return str(launch.folder), notes
