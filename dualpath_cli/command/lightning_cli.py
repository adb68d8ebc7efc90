"""The LightningCLI subclass behind every command that runs a model."""

import logging
import warnings
from collections.abc import Callable
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from rich.console import Console
from rich.table import Table

from dualpath_cli import run_folder
from dualpath_cli.atomic import write_text
from dualpath_cli.cli import COMMANDS
from dualpath_cli.command.arguments import OneLineParser, add_sections
from dualpath_cli.command.checks import epochs
from dualpath_cli.command.launch import Launch
from dualpath_cli.command.trainer import build_trainer
from dualpath_cli.errors import UserError
from dualpath_cli.flops import command as flops_command
from dualpath_cli.flops import count as flops
from dualpath_cli.run_folder import TOKENIZER
from dualpath_cli.study.ablation import study as ablate
from dualpath_cli.study.bench import StudyModule
from dualpath_cli.study.routing import study
from dualpath_cli.text.storage import local_copy
from dualpath_cli.text.tokenizer import Tokenizer
from dualpath_cli.training import curve
from dualpath_cli.training.data import DualPathDataModule
from dualpath_cli.training.module import DualPathModule
from dualpath_cli.training.parallel import can_compile


class Parser(OneLineParser, LightningArgumentParser):
    """LightningCLI's parser with errors of one line."""


class DualPathCLI(LightningCLI):
    """Parses the resolved recipe with Lightning's trainer arguments and runs one command.

    `launch` is None for `flops`, which needs no recipe; `dualpath flops` itself never comes here.
    """

    def __init__(self, arguments: list[str], launch: Launch | None = None) -> None:
        self.launch = launch
        self.console = Console()
        super().__init__(
            DualPathModule,
            DualPathDataModule,
            save_config_callback=None,  # the run folder holds the recipe, also on a restart
            seed_everything_default=0,
            parser_class=Parser,
            parser_kwargs={"prog": "dualpath"},
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            args=arguments,
        )

    # -- arguments -------------------------------------------------------------------------------

    def _add_subcommands(self, parser: LightningArgumentParser, **kwargs: Any) -> None:
        """Registers our commands; Lightning's own would have to be methods of the Trainer."""
        self._subcommand_parsers: dict[str, LightningArgumentParser] = {}
        commands = parser.add_subcommands()
        for name, description in COMMANDS.items():
            if name == "flops":
                own: Any = Parser(description=description)
                flops_command.add_arguments(own)
            else:
                own = self.init_parser(description=description)
                self._add_arguments(own)
                own.add_argument("--ckpt_path", type=str | None, help="Run folder or checkpoint.")
            self._subcommand_parsers[name] = own
            commands.add_subcommand(name, own, help=description)

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds Lightning's trainer and the sections of a recipe."""
        parser.add_lightning_class_args(Trainer, "trainer")
        add_sections(parser)

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parses what the launch resolved; the words of the process itself are done with."""
        self.config = parser.parse_args(args)

    def _parse_ckpt_path(self) -> None:
        """Does nothing: a checkpoint's hyperparameters must not beat the recipe."""

    def _set_seed(self) -> None:
        if self.launch is not None:
            super()._set_seed()

    # -- objects ---------------------------------------------------------------------------------

    def instantiate_classes(self) -> None:
        """Builds trainer, module and data module from the launch's settings."""
        if self.launch is None:
            return
        section = self.parser.instantiate_classes(self.config)[self.launch.command].trainer
        self.trainer = build_trainer(self.launch, dict(section), self.console)
        self.console.quiet = not self.trainer.is_global_zero
        model, optim = self.launch.settings.model, self.launch.settings.optim
        run, data = self.launch.settings.run, self.launch.settings.data
        seed = int(self.launch.recipe["seed_everything"])
        fitting = self.launch.command == "fit"
        source = data.path if fitting else self.launch.run_folder
        tokenizer = Tokenizer.load(local_copy(f"{source}/{TOKENIZER}"))
        table = tokenizer.token_bytes()
        modules = {"ablate": StudyModule, "routing": StudyModule}
        module = modules.get(self.launch.command, DualPathModule)
        self.model = module(
            model,
            optim,
            [*table, *[0] * (model.vocab_size - len(table))],
            list(data.val),
            seed=seed,
            compile_blocks=run.compile
            and fitting
            and can_compile(self.trainer.strategy.root_device),
            weights=self.launch.weights if fitting else self.launch.checkpoint,
        )
        self.datamodule = DualPathDataModule(
            data, tokenizer, seq_len=model.max_seq_len, micro_batch=run.micro_batch, seed=seed
        )

    # -- commands --------------------------------------------------------------------------------

    def _run_subcommand(self, subcommand: str) -> None:
        commands: dict[str, Callable[[], None]] = {
            "fit": self.fit,
            "validate": self.validate,
            "ablate": self.ablate,
            "routing": self.routing,
            "flops": self.flops,
        }
        commands[subcommand]()

    def fit(self) -> None:
        """Trains to the token budget, from the newest checkpoint of the run where there is one."""
        assert self.launch is not None
        assert self.launch.manifest is not None
        run = self.launch.settings.run
        steps, accumulate = self._plan()
        folder, checkpoint = self.launch.run_folder, self.launch.checkpoint
        self.console.print(self._summary(steps, accumulate), highlight=False, soft_wrap=True)
        if checkpoint is not None and run_folder.step_of(checkpoint) >= steps:
            self.console.print(f"{folder} is finished: nothing to do", highlight=False)
            return
        trainer = self.trainer
        trainer.accumulate_grad_batches = accumulate
        trainer.fit_loop.epoch_loop.max_steps = steps
        # Lightning counts micro-batches here. Without an interval only the last step validates.
        trainer.val_check_interval = (run.validate_every or steps) * accumulate
        trainer.check_val_every_n_epoch = None
        facts = {
            "data_fingerprint": self.launch.manifest.fingerprint,
            "devices": trainer.world_size,
            "precision": str(trainer.precision),
        }
        step = None if checkpoint is None else run_folder.step_of(checkpoint)
        if step is not None:
            run_folder.check_same_facts(folder, facts)
        if trainer.is_global_zero:
            self._write_down(facts, step)
        try:
            trainer.fit(
                self.model,
                datamodule=self.datamodule,
                ckpt_path=None if checkpoint is None else str(checkpoint),
            )
        except SystemExit as end:
            if not trainer.interrupted:
                raise
            # Lightning leaves by sys.exit(1) after Ctrl-C, without a word on what is kept.
            newest = run_folder.newest_checkpoint(folder)
            at = f"step {run_folder.step_of(newest)}" if newest else "the start"
            raise KeyboardInterrupt(f"the same command continues from {at}") from end
        self._show_validation()
        if trainer.is_global_zero:
            self.console.print(f"curve: {curve.draw(folder)}", highlight=False, soft_wrap=True)
        self.console.print(
            f"run folder: {folder}\nnext: dualpath validate --ckpt_path {folder}",
            highlight=False,
            soft_wrap=True,
        )

    def _write_down(self, facts: dict[str, Any], step: int | None) -> None:
        """Puts recipe, versions and tokenizer into the run folder."""
        assert self.launch is not None
        folder = self.launch.run_folder
        tokenizer = local_copy(f"{self.launch.settings.data.path}/{TOKENIZER}")
        try:
            run_folder.start(folder, self.launch.recipe, facts, step)
            write_text(folder / TOKENIZER, tokenizer.read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"run folder '{folder}' cannot be written: {error}") from error

    def validate(self) -> None:
        """Scores the checkpoint on every validation set."""
        assert self.launch is not None
        if not self.launch.settings.data.val:
            raise UserError(
                "the run names no validation set; give one: --data.val.NAME FILE_OR_FOLDER"
            )
        self.trainer.validate(self.model, datamodule=self.datamodule, verbose=False)
        self._show_validation()

    def ablate(self) -> None:
        """Scores the checkpoint under interventions on every source."""
        assert self.launch is not None
        assert isinstance(self.model, StudyModule)
        ablate.run(self.launch, self.trainer, self.model, self.datamodule, self.console)

    def routing(self) -> None:
        """Reads what the checkpoint's gates do on every source, or on one text."""
        assert self.launch is not None
        assert isinstance(self.model, StudyModule)
        study.run(self.launch, self.trainer, self.model, self.datamodule, self.console)

    def flops(self) -> None:
        """Prints what `dualpath flops` prints."""
        print(flops_command.run(self.config["flops"]))

    def _plan(self) -> tuple[int, int]:
        """Returns optimizer steps and accumulated micro-batches a step.

        Raises:
            UserError: if the batch is not a whole number of micro-batches on these devices.
        """
        assert self.launch is not None
        model, run = self.launch.settings.model, self.launch.settings.run
        together = run.micro_batch * model.max_seq_len * self.trainer.world_size
        accumulate, rest = divmod(run.batch_tokens, together)
        if rest or not accumulate:
            raise UserError(
                f"run.batch_tokens={run.batch_tokens} is not a multiple of the {together} tokens "
                f"of one pass (run.micro_batch={run.micro_batch} x {model.max_seq_len} tokens x "
                f"{self.trainer.world_size} devices); the next one is {(accumulate + 1) * together}"
            )
        return run.max_tokens // run.batch_tokens, accumulate

    def _summary(self, steps: int, accumulate: int) -> str:
        assert self.launch is not None
        assert self.launch.manifest is not None
        model, run = self.launch.settings.model, self.launch.settings.run
        linear = flops.mean_layer_flops(model)["linear_total"]
        total = flops.mean_layer_flops(model)["total"]
        lines = [
            f"model   {flops.parameters(model) / 1e6:,.1f}M parameters, "
            f"{linear / 1e6:.2f}M linear and {total / 1e6:.2f}M total FLOPs per token and layer"
        ]
        if run.budget:
            lines.append(
                f"        linear FLOPs are {linear / run.budget:.4f} of the budget of "
                f"{run.budget / 1e6:g}M"
            )
        passes = epochs(self.launch.settings, self.launch.manifest)
        lines += [
            f"data    {self.launch.settings.data.path}: "
            f"{self.launch.manifest.tokens / 1e6:,.1f}M tokens, {passes:.2f} epochs",
            f"run     {steps:,} steps of {run.batch_tokens:,} tokens: "
            f"{self.trainer.world_size} x {run.micro_batch} sequences of {model.max_seq_len}, "
            f"accumulated {accumulate} times",
            f"folder  {self.launch.run_folder}",
        ]
        if self.launch.checkpoint is not None:
            lines.append(
                f"        continued from step {run_folder.step_of(self.launch.checkpoint)}"
            )
        return "\n".join(lines)

    def _show_validation(self) -> None:
        results = self.model.val_results
        if not results:
            return
        table = Table("validation set", "loss (nats/token)", "bits per byte")
        for name, result in results.items():
            table.add_row(name, f"{result['loss']:.4f}", f"{result['bits_per_byte']:.4f}")
        self.console.print(table)


def run(launch: Launch) -> int:
    """Runs a checked launch and returns the exit code."""
    _quiet()
    DualPathCLI(launch.arguments, launch)
    return 0


def _quiet() -> None:
    """Silences what Lightning tells every user in every run."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",
        ".*srun. command is available.*",
        ".*tensorboardX.*",
        ".*JsonargparseDeprecationWarning.*",
        ".*instantiate_classes.*",
        ".*sync_dist=True.*",  # our metrics reduce over ranks themselves
        ".*isinstance.treespec, LeafSpec.*",
        ".*IterableDataset. has .__len__. defined.*",
        ".*across ranks is zero.*",  # an ablation all of whose passes are there already
    ):
        warnings.filterwarnings("ignore", message=message)
