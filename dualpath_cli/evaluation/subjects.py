"""The models that are evaluated: loaded without Lightning, and what decides their numbers."""

import hashlib
import importlib.metadata
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from dualpath_cli.checkpoint_files import describe, files_of
from dualpath_cli.evaluation.harness_model import HarnessModel
from dualpath_cli.evaluation.request import Request, Subject
from dualpath_cli.generation.loading import autocast_of, device_of, load_model
from dualpath_cli.generation.tokenizing import load_tokenizer
from dualpath_cli.text_file import read_json

_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length")
"""What configurations of transformers call the longest text."""


@dataclass(frozen=True)
class Setting:
    """How a model is evaluated."""

    subject: Subject
    request: Request
    device: torch.device
    window: int
    """Tokens that it sees at most."""

    def facts(self) -> dict[str, Any]:
        """What a report says of the model and of how it was run; reads all of its weights."""
        subject, change = self.subject, self.request.intervention
        facts: dict[str, Any] = {"name": subject.name, "path": subject.path}
        if subject.run is None:
            facts |= {"sha256": _digest(Path(subject.path)), "model": _config(subject)}
        else:
            assert subject.settings is not None
            facts |= {
                "run": f"{subject.settings.run.recipe}/{subject.settings.run.name}",
                "step": subject.run.step,
                "checkpoint": str(subject.run.checkpoint),
                "sha256": _digest(subject.run.checkpoint),
                "model": asdict(subject.settings.model),
                "loops": (change and change.loops) or subject.settings.model.loops,
                "intervention": change.name if change else "learned",
                "cache": self.request.cache,
            }
        gpu = self.device.type == "cuda"
        return facts | {
            "device": torch.cuda.get_device_name(self.device) if gpu else "cpu",
            "precision": self.request.precision,
            "batch_size": self.request.batch_size,
            "window": self.window,
            "versions": {
                name: importlib.metadata.version(name) for name in _packages(subject.run is None)
            },
        }

    def load(self) -> Any:
        """The model as lm-evaluation-harness sees one.

        Raises:
            UserError: where it cannot be read, or does not go with its tokenizer.
        """
        if self.subject.run is None:
            from dualpath_cli.evaluation.hugging_face import HuggingFaceModel

            return HuggingFaceModel.load(
                Path(self.subject.path), self.window, self.request.batch_size, str(self.device),
                self.request.precision, self.request.trust_remote_code,
            )  # fmt: skip
        assert self.subject.settings is not None
        run, settings = self.subject.run, self.subject.settings
        tokenizer = load_tokenizer(run, settings.model)
        return HarnessModel(
            load_model(run, settings.model, self.device),
            tokenizer,
            self.window,
            self.request.batch_size,
            self.request.intervention,
            autocast=autocast_of(self.request.precision),
            cached=self.request.cache == "exact",
        )


def setting(subject: Subject, request: Request) -> Setting:
    """How a model is evaluated here. Raises UserError for a device that is not there."""
    return Setting(subject, request, device_of(request.device), _window(subject, request.window))


def _window(subject: Subject, most: int) -> int:
    if subject.settings is not None:
        return min(most, subject.settings.model.max_seq_len)
    lengths = (_config(subject).get(name) for name in _LENGTHS)
    return min([most, *(length for length in lengths if isinstance(length, int))])


def _config(subject: Subject) -> dict[str, Any]:
    """The configuration of a Hugging Face directory."""
    return read_json(Path(subject.path) / "config.json")


def _packages(hugging_face: bool) -> tuple[str, ...]:
    return ("dualpath", "torch", "lm_eval", *(("transformers",) if hugging_face else ()))


def _digest(path: Path) -> str:
    """Hash of the names, sizes and hashes of a file, or of all files of a folder."""
    return hashlib.sha256(json.dumps(describe(path, files_of(path))).encode()).hexdigest()
