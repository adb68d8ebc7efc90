"""How a training ends early: the error or signal that ended it, as the command's
message."""

import re
import signal
from collections.abc import Sequence
from contextlib import suppress
from traceback import walk_tb
from types import FrameType

from lightning.fabric.plugins.environments import LightningEnvironment, SLURMEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback

from dualpath_cli.base.errors import (
    NumbersFailed,
    RunFailed,
    Stopped,
    UserError,
    lacks_gpu_memory,
)
from dualpath_cli.base.files import write_text
from dualpath_cli.base.output import joined_lines
from dualpath_cli.base.processes import Terminated
from dualpath_cli.run.checkpoint_files import STATE
from dualpath_cli.run.run_folder import WENT_WRONG, way_on
from dualpath_cli.training import internals
from dualpath_cli.training.checkpoints import Checkpoints
from dualpath_cli.training.graphs import WARM_STEPS
from dualpath_cli.training.launch import TrainingLaunch
from dualpath_cli.training.loading_faults import loading_fault
from dualpath_cli.training.ranks import Ranks, lost_contact
from dualpath_cli.training.session import Session
from dualpath_cli.training.stopping import TIME_OVER, StopTraining

FIRST_STEPS = WARM_STEPS + 1
"""Optimizer steps after which memory no longer grows: the first one allocates the
moments, and the last one may record a CUDA graph."""

_REFUSALS = LookupError | ValueError | TypeError | AttributeError | RuntimeError
"""Errors by which Lightning refuses settings, or a state that it cannot restore."""


class OutOfMemory(RunFailed):
    """A GPU ran out of memory; `half` is the micro-batch for an immediate restart, if
    possible."""

    half: int | None = None


def ending_of(
    session: Session[TrainingLaunch], error: BaseException
) -> BaseException | None:
    """The error with a message for the user, in place of one that ended the training.

    None for an error that has its message already, or is a defect. Why numbers went
    wrong is also written into the run folder.
    """
    has_message = isinstance(error, RunFailed | UserError)
    if not has_message and lacks_gpu_memory(error):
        in_validation = "validation_step" in _functions(error)
        return _out_of_memory(session, in_validation)
    if isinstance(error, StopTraining):
        return _stopped(session, error.signum)

    if isinstance(error, NumbersFailed):
        if session.trainer.is_global_zero:
            with suppress(OSError):  # the reason of the run's end matters more
                write_text(session.launch.folder / WENT_WRONG, f"{error}\n")
        return None

    # Lightning calls sys.exit(1) after a signal that came before training started.
    if isinstance(error, SystemExit):
        interrupt = error.__context__
        if not isinstance(interrupt, KeyboardInterrupt):
            return None
        by_sigterm = isinstance(interrupt, Terminated)
        return _stopped(session, signal.SIGTERM if by_sigterm else signal.SIGINT)

    if isinstance(error, Exception):
        return (
            loading_fault(error)
            or _lost_contact(session, error)
            or _refusal(session, error)
        )
    return None


def _out_of_memory(
    session: Session[TrainingLaunch], in_validation: bool
) -> OutOfMemory:
    """The failure of a training that did not fit into a GPU.

    A single process can begin again at once, if it has saved nothing. One of several
    processes cannot: the others wait for it in a collective.
    """
    trainer = session.trainer
    launch = session.launch
    size = launch.settings.run.micro_batch

    began_at = launch.step or 0
    # A trainer that only validates counts no steps.
    made = max(trainer.global_step, began_at)
    place = f"the validation of step {made}" if in_validation else f"step {made + 1}"

    divisors = [n for n in range(1, size // 2 + 1) if size % n == 0]
    smaller = max(divisors, default=None)
    if smaller is not None:
        advice = (
            f"--run.micro_batch {smaller} needs less, and changes neither batch nor "
            "data"
        )
    elif in_validation:
        advice = "--data.val '{}' trains on without validation"
    elif launch.settings.run.activation_checkpointing != "full":
        advice = "--run.activation_checkpointing full takes less memory and more time"
    else:
        advice = (
            "--trainer.strategy fsdp over more GPUs needs less, as do shorter "
            "sequences (model.max_seq_len, under another --run.name)"
        )
    failure = OutOfMemory(
        f"the GPU has no room for run.micro_batch={size} in {place}; {advice}; "
        f"{way_on(launch.folder)}"
    )

    in_first_steps = trainer.global_step < began_at + FIRST_STEPS
    has_saved = any(
        isinstance(callback, Checkpoints) and callback.saved_step > began_at
        for callback in trainer.callbacks  # type: ignore[attr-defined]
    )
    if trainer.world_size == 1 and in_first_steps and not has_saved:
        failure.half = smaller
    return failure


def _stopped(session: Session[TrainingLaunch], signum: int) -> Stopped:
    """The end of the command after a signal; names the step to continue from."""
    trainer = session.trainer
    if signum == TIME_OVER:
        text, code = "trainer.max_time is over", 0
    elif signum == signal.SIGINT:
        text, code = "interrupted", 130
    else:
        text, code = f"stopped by {signal.Signals(signum).name}", 143

    # Else the launcher of ranks would kill the first rank while it prints.
    environment = getattr(trainer.strategy, "cluster_environment", None)
    by_lightning = isinstance(environment, LightningEnvironment)
    by_slurm = isinstance(environment, SLURMEnvironment)
    if (by_lightning and trainer.local_rank) or (by_slurm and trainer.global_rank):
        code = 0
    return Stopped(
        f"{text}; {way_on(session.launch.folder)}", code, session.console.quiet
    )


def _lost_contact(
    session: Session[TrainingLaunch], error: Exception
) -> RunFailed | None:
    """The failure to report if ranks lost contact; None for any other error."""
    trainer = session.trainer
    if trainer.world_size == 1 or not lost_contact(error):
        return None

    launcher = trainer.strategy.launcher
    cause = launcher.death() if isinstance(launcher, Ranks) else None
    if not cause:
        reason = joined_lines(error, 160)
        cause = f"rank {trainer.global_rank} lost contact with the others: {reason}"
    return RunFailed(f"{cause}; {way_on(session.launch.folder)}")


def _refusal(session: Session[TrainingLaunch], error: Exception) -> UserError | None:
    """The UserError if the checkpoint's state does not fit, as after an update of
    Lightning, or if Lightning or a callback refuses to begin; None for other errors."""
    unfit = UserError(f"trainer: {error}; change the recipe's trainer section")
    if isinstance(error, MisconfigurationException):
        return unfit
    if not isinstance(error, _REFUSALS):
        return None

    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    modules = [frame.f_globals.get("__name__", "") for frame in frames]
    fault = _fault_of_state(session, error, frames, modules[-1])
    if fault is not None:
        return fault

    refuses = re.compile(r"lightning\.(pytorch\.callbacks|fabric\.plugins\.env)")
    return unfit if any(map(refuses.match, modules)) else None


def _fault_of_state(
    session: Session[TrainingLaunch],
    error: Exception,
    frames: Sequence[FrameType],
    raised_in: str,
) -> UserError | None:
    """The UserError if the state of the checkpoint that a run continues from cannot be
    restored, or fails in the first step."""
    launch = session.launch
    checkpoint = launch.checkpoint
    if checkpoint is None:
        return None
    reason = f"{type(error).__name__}: {error!s:.160}"

    restores = bool(_functions(error) & internals.RESTORING)
    callback = _own_callback(frames)
    if restores and callback is not None:
        return UserError(
            f"trainer.callbacks: {callback} cannot load its state of checkpoint "
            f"'{checkpoint}' ({reason}); let load_state_dict take what state_dict "
            "gave then"
        )

    # Later steps do not use what was restored. The count of steps comes from the
    # checkpoint, and may be no number.
    made = session.trainer.global_step
    has_stepped = isinstance(made, int) and made > (launch.step or 0)
    of_step = ("lightning.pytorch.loops", "torch.optim", "dualpath_cli.training.muon")
    in_first_step = raised_in.startswith(of_step) and not has_stepped
    if not restores and not in_first_step:
        return None

    return UserError(
        f"cannot continue from checkpoint '{checkpoint}': {STATE} is not as "
        f"training wrote it ({reason}); restore this file, or give an older "
        "checkpoint by --ckpt-path"
    )


def _functions(error: BaseException) -> set[str]:
    """The names of the functions that an error went through."""
    return {frame.f_code.co_name for frame, _ in walk_tb(error.__traceback__)}


def _own_callback(frames: Sequence[FrameType]) -> str | None:
    """The path of the user's own callback whose method is among the frames."""
    for frame in frames:
        cls = type(frame.f_locals.get("self"))
        is_ours = cls.__module__.startswith(("lightning.", "dualpath_cli."))
        if issubclass(cls, Callback) and not is_ours:
            return f"{cls.__module__}.{cls.__qualname__}"
    return None
