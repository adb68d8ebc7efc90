"""Words that users of other trainers, or of this project before its first version,
would give.

One table for the message of an unknown word, and for the page of the recipe
(docs/recipe.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Elsewhere:
    """A key or option, and its names in other trainers, separated by spaces.

    A name with its section, such as `training.steps`, is only found as a whole.
    """

    key: str = ""  # empty: there is none, and the note says why
    note: str = ""  # a difference in unit or meaning
    hugging_face: str = ""
    lightning: str = ""
    nanogpt: str = ""
    litgpt: str = ""
    torchtitan: str = ""


TRAINERS = {
    "hugging_face": "HF Trainer, HF models",
    "lightning": "Lightning",
    "nanogpt": "nanoGPT",
    "litgpt": "litgpt",
    "torchtitan": "torchtitan",
}
"""Fields of the table, with their titles."""

TABLE = (
    Elsewhere(
        "run.max_tokens",
        "the length in tokens, steps times run.batch_tokens",
        hugging_face="max_steps",
        lightning="max_steps min_steps limit_train_batches overfit_batches",
        nanogpt="max_iters lr_decay_iters",
        litgpt="train.max_steps",
        torchtitan="training.steps",
    ),
    Elsewhere(
        "data.max_epochs",
        "the most passes over the data; run.max_tokens is the length",
        hugging_face="num_train_epochs",
        lightning="max_epochs min_epochs",
        litgpt="train.epochs",
    ),
    Elsewhere(
        "run.batch_tokens",
        "tokens of an optimizer step, from which accumulation follows",
        hugging_face="gradient_accumulation_steps",
        lightning="accumulate_grad_batches",
        nanogpt="gradient_accumulation_steps",
        litgpt="train.global_batch_size",
        torchtitan="training.global_batch_size",
    ),
    Elsewhere(
        "run.micro_batch",
        "sequences of a device's forward pass; run.batch_tokens is the whole step",
        hugging_face="per_device_train_batch_size",
        lightning="batch_size",
        nanogpt="batch_size",
        litgpt="train.micro_batch_size micro_batch_size",
        torchtitan="training.local_batch_size",
    ),
    Elsewhere(
        "optim.lr",
        hugging_face="learning_rate",
        nanogpt="learning_rate",
        torchtitan="optimizer.lr",
    ),
    Elsewhere(
        "optim.lr_end",
        "a learning rate, not a part of the peak",
        nanogpt="min_lr",
        litgpt="train.min_lr",
        torchtitan="lr_scheduler.min_lr_factor",
    ),
    Elsewhere(
        "optim.warmup_steps",
        "a number of optimizer steps",
        hugging_face="warmup_ratio num_warmup_steps",
        nanogpt="warmup_iters",
        litgpt="train.lr_warmup_steps train.lr_warmup_fraction",
        torchtitan="lr_scheduler.warmup_steps",
    ),
    Elsewhere(
        "optim.schedule",
        "cosine or wsd",
        hugging_face="lr_scheduler_type",
        nanogpt="decay_lr",
        torchtitan="lr_scheduler.decay_type",
    ),
    Elsewhere(
        "optim.cooldown",
        "a part of all steps, under optim.schedule=wsd",
        torchtitan="lr_scheduler.decay_ratio",
    ),
    Elsewhere(
        "optim.name", "adamw or muon", litgpt="optimizer", torchtitan="optimizer.name"
    ),
    Elsewhere(
        "optim.betas",
        "both as one list",
        hugging_face="adam_beta1 adam_beta2",
        nanogpt="beta1 beta2",
        torchtitan="optimizer.beta1 optimizer.beta2",
    ),
    Elsewhere("optim.eps", hugging_face="adam_epsilon"),
    Elsewhere(
        "optim.clip",
        "by the global L2 norm",
        hugging_face="max_grad_norm",
        lightning="gradient_clip_val gradient_clip_algorithm",
        nanogpt="grad_clip",
        litgpt="train.max_norm",
        torchtitan="training.max_norm",
    ),
    Elsewhere(
        "run.log_every",
        "optimizer steps",
        hugging_face="logging_steps",
        lightning="log_every_n_steps",
        nanogpt="log_interval",
        litgpt="train.log_interval",
        torchtitan="metrics.log_freq",
    ),
    Elsewhere(
        "run.validate_every",
        "optimizer steps; step 0 and the last are always validated",
        hugging_face="eval_steps eval_strategy",
        lightning="val_check_interval check_val_every_n_epoch num_sanity_val_steps",
        nanogpt="eval_interval",
        litgpt="eval.interval",
        torchtitan="validation.freq",
    ),
    Elsewhere(
        "data.val_tokens",
        "tokens of each validation set",
        lightning="limit_val_batches",
        nanogpt="eval_iters",
        litgpt="eval.max_iters",
        torchtitan="validation.steps",
    ),
    Elsewhere(
        "run.save_every",
        "optimizer steps; the last is always saved",
        hugging_face="save_steps save_strategy",
        lightning="enable_checkpointing",
        litgpt="train.save_interval",
        torchtitan="checkpoint.interval",
    ),
    Elsewhere(
        "run.keep",
        "the number of newest checkpoints",
        hugging_face="save_total_limit",
        torchtitan="checkpoint.keep_latest_k",
    ),
    Elsewhere(
        "ckpt-path",
        "only to go back to an older checkpoint: the same command continues a run",
        hugging_face="resume_from_checkpoint",
        litgpt="resume",
        torchtitan="checkpoint.load_step",
    ),
    Elsewhere(
        "run.init_from",
        "a RUN, such as the folder that dualpath retrofit makes of a pretrained model",
        hugging_face="model_name_or_path",
        litgpt="initial_checkpoint_dir",
        torchtitan="checkpoint.initial_load_path",
    ),
    Elsewhere(
        "run.dir",
        "the folder of all runs; a run is DIR/<recipe>/<run.name>",
        hugging_face="output_dir",
        lightning="default_root_dir",
        nanogpt="out_dir",
        litgpt="out_dir",
        torchtitan="job.dump_folder",
    ),
    Elsewhere("run.name", hugging_face="run_name", nanogpt="wandb_run_name"),
    Elsewhere(
        "run.wandb",
        "the name of a project",
        hugging_face="report_to",
        nanogpt="wandb_log wandb_project",
        litgpt="logger_name",
        torchtitan="metrics.enable_wandb",
    ),
    Elsewhere(
        "run.tensorboard",
        hugging_face="logging_dir",
        torchtitan="metrics.enable_tensorboard",
    ),
    Elsewhere("run.compile", hugging_face="torch_compile", torchtitan="compile.enable"),
    Elsewhere(
        "run.activation_checkpointing",
        hugging_face="gradient_checkpointing",
        torchtitan="activation_checkpoint.mode",
    ),
    Elsewhere(
        "dry-run",
        "checks recipe, data and machine, and does not train",
        lightning="fast_dev_run",
    ),
    Elsewhere(
        "data.path",
        "a folder that dualpath prepare makes",
        hugging_face="dataset_name train_file",
        nanogpt="dataset",
        torchtitan="training.dataset training.dataset_path",
    ),
    Elsewhere(
        "data.val",
        "{NAME: FILE_OR_FOLDER}",
        hugging_face="validation_file",
        torchtitan="validation.dataset validation.dataset_path",
    ),
    Elsewhere(
        "data.workers", hugging_face="dataloader_num_workers", lightning="num_workers"
    ),
    Elsewhere(
        note="the tokenizer is that of the data folder: dualpath prepare --tokenizer",
        hugging_face="tokenizer_name",
        litgpt="tokenizer_dir",
        torchtitan="model.hf_assets_path",
    ),
    Elsewhere(
        "seed_everything", hugging_face="seed data_seed", torchtitan="training.seed"
    ),
    Elsewhere(
        "trainer.precision",
        "bf16-mixed; fp16 is not offered",
        hugging_face="bf16 fp16",
        nanogpt="dtype",
        torchtitan="training.mixed_precision_param training.dtype",
    ),
    Elsewhere(
        "trainer.strategy",
        "ddp, fsdp or hsdp",
        hugging_face="fsdp deepspeed",
        torchtitan="parallelism.data_parallel_shard_degree "
        "parallelism.data_parallel_replicate_degree",
    ),
    Elsewhere("trainer.accelerator", hugging_face="use_cpu no_cuda", nanogpt="device"),
    Elsewhere(
        "model.d_model", hugging_face="hidden_size", nanogpt="n_embd", litgpt="n_embd"
    ),
    Elsewhere(
        "model.n_layers",
        hugging_face="num_hidden_layers",
        nanogpt="n_layer",
        litgpt="n_layer",
    ),
    Elsewhere(
        "model.n_heads",
        hugging_face="num_attention_heads",
        nanogpt="n_head",
        litgpt="n_head",
    ),
    Elsewhere(
        "model.n_kv_heads", hugging_face="num_key_value_heads", litgpt="n_query_groups"
    ),
    Elsewhere(
        "model.d_ffn",
        "the deep path's, of which 2/3 are effective; d_ffn_wide is the wide path's",
        hugging_face="intermediate_size",
        litgpt="intermediate_size",
    ),
    Elsewhere(
        "model.max_seq_len",
        hugging_face="max_position_embeddings block_size",
        nanogpt="block_size",
        litgpt="block_size train.max_seq_length",
        torchtitan="training.seq_len",
    ),
    Elsewhere("model.rope_base", hugging_face="rope_theta"),
    Elsewhere("model.norm_eps", hugging_face="rms_norm_eps"),
    Elsewhere(
        "model.tie_embeddings",
        hugging_face="tie_word_embeddings",
        litgpt="train.tie_embeddings",
    ),
    Elsewhere("model.init_std", hugging_face="initializer_range"),
    Elsewhere(
        note="there is no dropout",
        hugging_face="attention_dropout dropout",
        nanogpt="dropout",
    ),
)

_NO_AVERAGES = "averages of checkpoints are not offered; name one checkpoint"
_TEXTS = (
    "--data.val.NAME FILE gives a text, and --data.val_tokens the most tokens of it"
)
_UPLOAD = "`hf upload OWNER/NAME OUT` uploads the folder"
WITHDRAWN: dict[str, dict[str, str]] = {
    "ablate": {"max-tokens": _TEXTS, "sources": _TEXTS},
    "compare": {
        "average": _NO_AVERAGES,
        "by": "--baseline and --pairs say what is compared",
        "paper": "docs/paper.md has the paper's numbers",
    },
    "evaluate": {
        "compare-paper": "docs/paper.md has the paper's numbers",
        "fewshot": "each task has the number of OLMES",
        "hf": "`lm_eval --model hf` scores other models",
        "sources": "--data DIR has the task files",
        "suite": "--tasks names suites, too",
        "trust-remote-code": (
            "no code of a folder is run; --own-classes allows a gate's"
        ),
    },
    "export": {
        "average": _NO_AVERAGES,
        "format": "the one folder is for transformers and for all commands",
        "public": _UPLOAD,
        "push": _UPLOAD,
        "results": "`dualpath evaluate` writes scores to its own folder",
    },
    "flops": {
        "audit": "docs/paper.md has the verdicts on the paper's numbers",
        "decode": "--format json has the weights and cache bytes that bound decoding",
        "table": "docs/paper.md has the paper's tables",
    },
    "generate": {
        "exit-below": "--intervention halting=X",
        "kv-slots": "--intervention kv_slots=N",
        "skip-below": "--intervention skip=X",
    },
    "prepare": {
        "executor": "--workers N uses the cores of this machine",
        "scheduler": "--workers N uses the cores of this machine",
    },
    "retrofit": {"budget": "--block, --loops and --alpha say what is added"},
    "routing": {
        "anchor": "the page shows every token",
        "examples": "the page shows every token",
        "layer": "the page shows every layer",
        "max-tokens": _TEXTS,
        "sources": _TEXTS,
        "text": _TEXTS,
    },
    "sweep": {
        "average": _NO_AVERAGES,
        "experts": "--set model.n_experts=A,B",
        "tune": "--set optim.lr=A,B,C trains at several rates",
        "tune-tokens": "--set optim.lr=A,B,C trains at several rates",
    },
    "validate": {"average": _NO_AVERAGES},
}
"""Options of commands before the first version, and their replacements."""

_OUTSIDE_FIT = {"run.dir": "out", "run.name": "", "seed_everything": ""}
"""Keys that only `fit` obeys, as a sweep sets them and a trained run has them; and the
option of other commands, if they have one."""

_ROWS = {
    name: row
    for row in TABLE
    for trainer in TRAINERS
    for name in getattr(row, trainer).split()
}


def called_here(command: str, word: str, options: Mapping[str, str], keys: bool) -> str:
    """The end of the message for an unknown option or key, or an empty text.

    `options` are a parser's, by their names without hyphens; `keys`: the word is a
    recipe's key.
    """
    name = word.lstrip("-").replace("-", "_")
    for option, way_out in WITHDRAWN.get(command, {}).items():
        if option.replace("-", "_") == name:
            return f"; it was withdrawn: {way_out}"

    row = _ROWS.get(name) or _ROWS.get(name.rpartition(".")[2])
    if row is None:
        return ""
    if not row.key:
        has_recipe = "run.name" in options
        return f"; {row.note}" if has_recipe else ""
    key, note = row.key, row.note
    if key in _OUTSIDE_FIT and command != "fit" and not keys:
        key, note = _OUTSIDE_FIT[key], ""
    if key not in options:
        return ""

    counterpart = key if keys else options[key]
    difference = f": {note}" if note else ""
    return f"; here it is '{counterpart}'{difference}"
