"""`dualpath fit`: trains to the token budget, from the newest checkpoint if there is
one."""

import re
import signal
import uuid
from contextlib import nullcontext, suppress
from pathlib import Path
from traceback import walk_tb
from typing import Any

import torch
from lightning.fabric.plugins.environments import LightningEnvironment, SLURMEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException

from dualpath_cli.base.errors import NumbersFailed, RunFailed, Stopped, UserError
from dualpath_cli.base.files import read_text, write_text
from dualpath_cli.base.locks import FIT, exclusive
from dualpath_cli.base.processes import Terminated
from dualpath_cli.data import order
from dualpath_cli.data.manifest import Manifest, is_data_folder
from dualpath_cli.data.storage import local_copy
from dualpath_cli.flops import count
from dualpath_cli.kernels.attention import kernel_on_gpu
from dualpath_cli.kernels.device import device_name
from dualpath_cli.recipe.recipes import dump
from dualpath_cli.recipe.schedule import micro_batches
from dualpath_cli.recipe.settings import OptimSettings
from dualpath_cli.run import run_folder
from dualpath_cli.run.checkpoint_files import STATE
from dualpath_cli.run.run_folder import (
    BRANCHED,
    TABLES,
    TOKENIZER,
    WENT_WRONG,
    check_same_facts,
    start,
)
from dualpath_cli.spec.own_checks import hashes, keep_sources, option_of
from dualpath_cli.training import curve
from dualpath_cli.training.data_module import loading_fault
from dualpath_cli.training.graphs import why_launched
from dualpath_cli.training.launch import TrainingLaunch, epochs, unused_rows
from dualpath_cli.training.ranks import Ranks, lost_contact
from dualpath_cli.training.session import Session, begin_wandb
from dualpath_cli.training.step import graph_of
from dualpath_cli.training.stopping import TIME_OVER, StopTraining
from dualpath_cli.training.tables import MetricsLog


class OutOfMemory(RunFailed):
    """A GPU ran out of memory; `half` is the micro-batch for an immediate restart, if
    possible."""

    half: int | None = None


FIRST_STEPS = 2
"""Optimizer steps after which memory no longer grows: the first step allocates the
moments."""


def fit(session: Session[TrainingLaunch]) -> None:
    """Trains, writes the run folder meanwhile, and draws its curve at the end.

    Raises:
        RunFailed: if the numbers go wrong, or a loader process is lost.
    """
    launch, trainer, run = session.launch, session.trainer, session.launch.settings.run
    accumulate = micro_batches(
        run.batch_tokens,
        launch.settings.model.max_seq_len,
        trainer.world_size,
        session.datamodule.micro_batch,
    )
    launched = why_launched(launch.settings, trainer, session.datamodule.micro_batch)
    plan = _summary(session, accumulate, launched)
    if launch.dry_run:
        session.say(f"{dump(launch.settings.as_recipe())}\n{plan}")
        return
    session.say(plan)
    same = {"precision": str(trainer.precision), "data_order": order.NAME}
    path = None if launch.checkpoint is None else str(launch.checkpoint)
    if launch.checkpoint is not None:
        check_same_facts(launch.trunk or launch.folder, launch.checkpoint, same)
    # only the last validation is missing
    if launch.step is not None and launch.step >= run.steps:
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, MetricsLog):
                callback.step = launch.step
        data = session.datamodule
        trainer.validate(session.module, datamodule=data, ckpt_path=path, verbose=False)
        session.show_validation()
        return
    # In steps. Without an interval only the last one is validated.
    trainer.val_check_interval = run.validate_every or run.steps
    trainer.check_val_every_n_epoch = None
    way_out = "wait until it ends, or give this run a name (--run.name NAME)"
    lock = exclusive(launch.folder / FIT, launch.folder, way_out)
    with lock if trainer.is_global_zero else nullcontext():
        _begin_folder(session, same)
        if not launched:
            session.module.graph = graph_of(session.module, parts=accumulate)
        try:
            trainer.fit(session.module, datamodule=session.datamodule, ckpt_path=path)
        except torch.OutOfMemoryError:
            raise _out_of_memory(session) from None
        except StopTraining as stop:
            raise _stopped(session, stop.signum) from None
        except NumbersFailed as failure:
            if trainer.is_global_zero:
                with suppress(OSError):  # the reason of the run's end matters more
                    write_text(launch.folder / WENT_WRONG, f"{failure}\n")
            raise
        except SystemExit as end:
            # Lightning calls sys.exit(1) after a signal that came before training
            # started.
            if not isinstance(end.__context__, KeyboardInterrupt):
                raise
            by_signal = isinstance(end.__context__, Terminated)
            raise _stopped(
                session, signal.SIGTERM if by_signal else signal.SIGINT
            ) from None
        except Exception as error:
            fault = loading_fault(error) or _lost_contact(session, error)
            if fault := fault or _refusal(launch.checkpoint, error):
                raise fault from error
            raise
        _conclude(session)


def _begin_folder(session: Session[TrainingLaunch], same: dict[str, str]) -> None:
    """Checks the locked run folder again and writes its first files; `same` are further
    facts."""
    launch, folder, checkpoint = (
        session.launch,
        session.launch.folder,
        session.launch.checkpoint,
    )
    gone = checkpoint is not None and not checkpoint.exists()
    if gone or (
        checkpoint is None and run_folder.newest_checkpoint(folder) is not None
    ):
        raise UserError(
            f"{folder} was just written by another fit; give the command again"
        )
    if not session.trainer.is_global_zero:
        return
    (folder / WENT_WRONG).unlink(missing_ok=True)
    tokenizer = local_copy(f"{launch.settings.data.path}/{TOKENIZER}").read_text(
        encoding="utf-8"
    )
    facts, begun = (
        same | _facts(session),
        checkpoint is not None and launch.trunk is None,
    )
    if checkpoint is not None and begun:
        facts["id"] = run_folder.facts_at(folder, checkpoint)["id"]
    start(folder, launch.settings.as_recipe(), facts, launch.step if begun else None)
    keep_sources(folder, launch.settings.model)
    write_text(folder / TOKENIZER, tokenizer)
    for name in TABLES if launch.trunk else ():  # training drops rows after the branch
        if (table := Path(f"{launch.trunk}/{name}")).exists():
            write_text(folder / name, read_text(table))
    begin_wandb(session.trainer, folder)


def _conclude(session: Session[TrainingLaunch]) -> None:
    """Prints the scores of the finished run, where it is, and draws its curve."""
    trainer, folder = session.trainer, session.launch.folder
    session.show_validation()
    if trainer.global_step < session.launch.settings.run.steps:
        why = "a callback"
        for one in trainer.callbacks:  # type: ignore[attr-defined]
            if reason := getattr(one, "stopping_reason_message", None):
                why = f"{type(one).__name__}: {reason}"
        session.say(f"ended at step {trainer.global_step} by {why}")
    if trainer.is_global_zero:
        try:
            session.say(f"curve: {curve.draw(folder)}")
        except UserError as error:
            # of a table that was damaged meanwhile: the run is whole
            session.say(f"no curve: {error}")
    classes = option_of(session.launch.settings.model)
    session.say(
        f"run folder: {folder}\nnext: dualpath validate --ckpt-path {folder}{classes}"
    )


def _facts(session: Session[TrainingLaunch]) -> dict[str, Any]:
    """The recorded facts of a run, or of its part from the step on that it continues
    from."""
    launch, settings, sets = session.launch, session.launch.settings, {}
    for name, of_set in settings.data.validation_sets.items():
        if is_data_folder(of_set.path):
            sets[name] = Manifest.read(of_set.path).fingerprint
    optional = {
        "val_fingerprints": sets,
        "classes": hashes(settings.model),
        "init_from": launch.init_from,
    }
    return {
        "id": uuid.uuid4().hex,
        "model": settings.as_recipe()["model"],
        "tokenizer": launch.manifest.tokenizer,
        "data_fingerprint": launch.manifest.fingerprint,
        "data_sources": [source.public_name for source in launch.manifest.sources],
        "data_since": launch.data_since,
        "taken_back": launch.taken_back,
        "branched_from": launch.trunk and f"{launch.trunk}{BRANCHED}{launch.step}",
        "devices": session.trainer.world_size,
        "micro_batch": session.datamodule.micro_batch,
        "device": device_name(session.trainer.strategy.root_device),
        **{name: value for name, value in optional.items() if value},
    }


def _out_of_memory(session: Session[TrainingLaunch]) -> OutOfMemory:
    """The failure of a training that did not fit into a GPU.

    A single process can begin again at once, if it has saved nothing. One of several
    processes cannot: the others wait for it in a collective.
    """
    trainer, size, launch = (
        session.trainer,
        session.datamodule.micro_batch,
        session.launch,
    )
    smaller = max((n for n in range(1, size // 2 + 1) if size % n == 0), default=None)
    newest = run_folder.newest_checkpoint(launch.folder)
    first = (
        trainer.world_size == 1
        and trainer.global_step < (launch.step or 0) + FIRST_STEPS
    )
    way_out = "--run.activation_checkpointing full takes less memory and more time"
    if smaller is not None:
        way_out = (
            f"--run.micro_batch {smaller} needs less, and changes neither batch nor "
            "data"
        )
    failure = OutOfMemory(
        f"the GPU has no room for run.micro_batch={size} in step "
        f"{trainer.global_step + 1}; {way_out}; {run_folder.way_on(launch.folder)}"
    )
    failure.half = smaller if first and newest in (None, launch.checkpoint) else None
    return failure


def _lost_contact(
    session: Session[TrainingLaunch], error: Exception
) -> RunFailed | None:
    """The failure to report if ranks lost contact; None for any other error."""
    trainer = session.trainer
    if trainer.world_size == 1 or not lost_contact(error):
        return None
    launcher = trainer.strategy.launcher
    death = launcher.death() if isinstance(launcher, Ranks) else None
    reason = " ".join(str(error).split())[:160]
    said = death or f"rank {trainer.global_rank} lost contact with the others: {reason}"
    return RunFailed(f"{said}; {run_folder.way_on(session.launch.folder)}")


def _refusal(checkpoint: Path | None, error: Exception) -> UserError | None:
    """The UserError if Lightning or a callback refuses to begin, or the checkpoint's
    state does not fit, as after an update of Lightning; None for other errors."""
    theirs = re.compile(r"lightning\.(pytorch\.callbacks|fabric\.plugins\.env)")
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    modules = [frame.f_globals.get("__name__", "") for frame in frames]
    kinds = LookupError | ValueError | TypeError | AttributeError | RuntimeError
    if isinstance(error, kinds) and checkpoint is not None:
        # Lightning's
        puts_back = {"_restore_modules_and_callbacks", "restore_training_state"}
        restoring = puts_back & {frame.f_code.co_name for frame in frames}
        at_step = (
            "lightning.pytorch.loops",
            "torch.optim",
            "dualpath_cli.training.muon",
        )
        if restoring or modules[-1].startswith(at_step):
            return UserError(
                f"cannot continue from checkpoint '{checkpoint}': {STATE} is not as "
                f"training wrote it ({type(error).__name__}: {error!s:.160}); restore "
                "this file, or give an older checkpoint by --ckpt-path"
            )
    refused = isinstance(error, kinds) and any(map(theirs.match, modules))
    if refused or isinstance(error, MisconfigurationException):
        return UserError(f"trainer: {error}; change the recipe's trainer section")
    return None


def _stopped(session: Session[TrainingLaunch], signum: int) -> Stopped:
    """The end of the command after a signal; names the step to continue from."""
    endings: dict[int, tuple[str, int]] = {
        signal.SIGINT: ("interrupted", 130),
        TIME_OVER: ("trainer.max_time is over", 0),
    }
    name, code = endings.get(signum, (f"stopped by {signal.Signals(signum).name}", 143))
    environment = getattr(session.trainer.strategy, "cluster_environment", None)
    if (
        isinstance(environment, LightningEnvironment) and session.trainer.local_rank
    ) or (isinstance(environment, SLURMEnvironment) and session.trainer.global_rank):
        code = 0  # else the launcher of ranks would kill the first rank while it prints
    return Stopped(
        f"{name}; {run_folder.way_on(session.launch.folder)}",
        code,
        session.console.quiet,
    )


def _summary(session: Session[TrainingLaunch], accumulate: int, launched: str) -> str:
    """The plan; `launched` says why steps are launched kernel by kernel, if they
    are."""
    launch, settings = session.launch, session.launch.settings
    model, run = settings.model, settings.run
    flops, since, checkpoint = (
        count.mean_layer_flops(model),
        launch.data_since,
        launch.checkpoint,
    )
    decay = settings.optim.weight_decay
    linear, total = flops["linear_total"], flops["total"]
    here = map(run_folder.step_of, run_folder.complete_checkpoints(launch.folder))
    later = [
        step for step in here if checkpoint and step > run_folder.step_of(checkpoint)
    ]
    sparse = count.has_experts(model)
    active = (
        f", {count.active_parameters(model) / 1e6:,.1f}M of them active"
        if sparse
        else ""
    )
    whose = "" if launch.trunk is None else f" of {launch.trunk}"
    lines = [
        (
            "model",
            f"{count.parameters(model) / 1e6:,.1f}M parameters{active}, "
            f"{linear / 1e6:.2f}M linear and {total / 1e6:.2f}M total FLOPs per token "
            "and layer",
        ),
        (
            "",
            sparse
            and model.top_k == 1
            and model.balance != "loss"
            and (
                "the router of experts is not trained: with model.top_k=1 the weight "
                "of an expert is always 1; take 2, or model.balance=loss"
            ),
        ),
        (
            "",
            run.budget
            and f"linear FLOPs are {linear / run.budget:.4f} of the budget of "
            f"{run.budget / 1e6:g}M",
        ),
        (
            "data",
            f"{settings.data.path}: {launch.manifest.tokens / 1e6:,.1f}M tokens, "
            f"{epochs(settings, launch.manifest, since):.2f} epochs"
            + (f" from step {since:,} on" if since else ""),
        ),
        (
            "",
            not settings.data.val
            and "there is no validation set, so only the training loss is "
            "measured; --data.val.NAME FILE_OR_FOLDER adds one",
        ),
        ("", unused_rows(settings, launch.manifest)),
        (
            "",
            settings.optim.decay_sum is not None
            and decay != OptimSettings.weight_decay
            and (
                f"optim.weight_decay={decay:g} has no effect: optim.decay_sum takes "
                "its place"
            ),
        ),
        (
            "run",
            f"{run.steps:,} steps of {run.batch_tokens:,} tokens: "
            f"{session.trainer.world_size} x {session.datamodule.micro_batch} "
            f"sequences of {model.max_seq_len}, accumulated {accumulate} times",
        ),
        *_on_gpu(session, launched),
        ("folder", str(launch.folder)),
        ("", launch.weights and f"begins with the weights of {launch.weights}"),
        (
            "",
            checkpoint
            and f"continued from step {run_folder.step_of(checkpoint)}{whose}",
        ),
        (
            "",
            later
            and (
                f"checkpoints of later steps, {min(later):,} to {max(later):,}, are "
                "removed when the next one is written"
            ),
        ),
        *(("", line) for line in launch.lost),
    ]
    return "\n".join(f"{label:8}{text}" for label, text in lines if text)


def _on_gpu(session: Session[TrainingLaunch], launched: str) -> list[tuple[str, str]]:
    """Lines of the summary: how a CUDA GPU is given its work."""
    device, model = session.trainer.strategy.root_device, session.launch.settings.model
    if device.type != "cuda":
        return []
    steps = "a micro-batch is one CUDA graph"
    if launched:
        steps = f"launched kernel by kernel ({launched})"
    low = str(session.trainer.precision).startswith("bf16")
    kernel, advice = kernel_on_gpu(
        model.n_heads,
        model.head_dim,
        model.max_seq_len,
        torch.bfloat16 if low else torch.float32,
        device,
    )
    if model.document_start is not None:
        kernel, advice = "FlexAttention within documents", ""
    return [("gpu", f"{steps}; attention: {kernel}"), ("", advice)]
