"""A Hugging Face directory, scored by lm-evaluation-harness's own model class."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from lm_eval.models.huggingface import HFLM

from dualpath_cli.errors import UserError
from dualpath_cli.evaluation.harness import Answer, InParts, Part


class HuggingFaceModel(InParts, HFLM):
    """HFLM whose padded rows of the vocabulary get no probability, and that tells how far it is."""

    ids: int  # one above the largest id of the tokenizer

    @classmethod
    def load(
        cls,
        folder: Path,
        window: int,
        batch_size: int,
        device: str,
        dtype: str,
        trust_remote_code: bool,
    ) -> "HuggingFaceModel":
        """Loads a directory of transformers, with the code in it where that is trusted."""
        transformers.logging.set_verbosity_error()  # or it tells of texts that are cut here anyway
        try:
            model = cls(
                pretrained=str(folder), max_length=window, batch_size=batch_size, device=device,
                dtype=dtype, trust_remote_code=trust_remote_code, add_bos_token=False,
                logits_cache=False,  # mixes up parts that end alike and are not equally long
            )  # fmt: skip
        except Exception as error:  # whatever transformers or the directory's code raises
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise UserError(f"--hf '{folder}' cannot be loaded: {reason:.300}") from None
        model.window = window
        model.ids = max(model.tokenizer.get_vocab().values()) + 1
        return model

    def score(self, parts: Sequence[Part]) -> list[Answer]:
        """Scores parts as HFLM scores requests; it refuses longer ones."""
        requests = [(None, read[:-scored], read[-scored:]) for read, scored in parts]
        answers: list[Answer] = HFLM._loglikelihood_tokens(self, requests, disable_tqdm=True)
        return answers

    def generate_until(self, requests: list[Any], disable_tqdm: bool = True) -> list[str]:
        self.progress.begin(len(requests))
        return super().generate_until(requests, disable_tqdm=True)

    def _model_call(self, inps: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        self.progress.advance(len(inps))
        logits_BTV = super()._model_call(inps, *arguments, **options)
        logits_BTV[..., self.ids :] = -torch.inf
        return logits_BTV

    def _model_generate(self, context: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        self.progress.advance(len(context))
        padded = range(self.ids, self.model.config.vocab_size)
        if padded:
            options["suppress_tokens"] = list(padded)
        return super()._model_generate(context, *arguments, **options)
