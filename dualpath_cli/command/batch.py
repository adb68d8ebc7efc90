"""How the tokens of a step are dealt out to devices and micro-batches. Torch-free."""

from dualpath_cli.errors import UserError


def micro_batches(batch_tokens: int, length: int, ranks: int, micro_batch: int) -> int:
    """Returns how many micro-batches of sequences of `length` tokens a rank has of each step.

    Raises:
        UserError: if the step's tokens are not equally many whole micro-batches on all ranks.
    """
    sequences, rest = divmod(batch_tokens, length)
    if rest:
        raise UserError(
            f"run.batch_tokens={batch_tokens} is no whole number of sequences of {length} tokens; "
            f"{(sequences + 1) * length} is one"
        )
    own, rest = divmod(sequences, ranks)
    if rest:
        fewer = max(n for n in range(1, ranks) if sequences % n == 0)
        raise UserError(
            f"the {sequences} sequences of a step (run.batch_tokens={batch_tokens}) cannot be "
            f"dealt out evenly to {ranks} devices, but to {fewer}; a new run could take "
            f"--run.batch_tokens {(own + 1) * ranks * length}"
        )
    if own % micro_batch:
        fitting = max(n for n in range(1, min(own, micro_batch) + 1) if own % n == 0)
        raise UserError(
            f"run.micro_batch={micro_batch} does not divide the {own} sequences that a device has "
            f"of each step; --run.micro_batch {fitting} does"
        )
    return own // micro_batch
