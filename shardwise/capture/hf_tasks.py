"""What a transformers model is trained to do: its class, its inputs and its loss.

| task | inputs | loss |
|---|---|---|
| `masked-lm`, `causal-lm` | tokens, labels | cross entropy of every token |
| `translation` | tokens, decoder tokens, labels | cross entropy of every decoder token |
| `speech-to-text` | mel spectrogram, decoder tokens, labels | cross entropy of every token |
| `ctc` | waveform or spectrogram, labels | connectionist temporal classification |
| `contrastive` (CLIP) | tokens, images, labels | mean of both cross entropies over the batch |
| `image-text-to-text` | tokens, one image a sample, labels | cross entropy of every token |
| `image-classification` | images, labels | cross entropy |
| `video-classification` | videos, labels | cross entropy |
| `audio-classification` | waveform or spectrogram, labels | cross entropy |
| `sequence-classification` | tokens, labels | cross entropy |
| `token-classification` | tokens, labels | cross entropy of every token |
| `semantic-segmentation` | images, labels | cross entropy of every pixel |
| `depth-estimation` | images, depths | mean absolute error of every pixel |
| `object-detection` | images, classes, boxes | cross entropy and 5 · L1 of every query |

A configuration class may have several. `task=NAME` chooses one; else the `architectures` of a
config.json; else it is the first that transformers has a model for, in the order of `_tasks`.
hf_inputs makes the inputs, hf_losses the losses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shardwise.capture import hf_inputs, hf_losses
from shardwise.capture.hf_example import UnknownTask, example
from shardwise.capture.hf_inputs import Inputs, MakeInputs
from shardwise.capture.hf_losses import Loss
from shardwise.capture.source import Source
from shardwise.capture.zoo.blocks import block
from shardwise.errors import CaptureError
from shardwise.near import near

_ILLUSTRATED, _TEXT_TASK = "image-text-to-text", "causal-lm"
TASK = "task"
"""The key of a source that chooses a task; it is not part of the configuration."""


@dataclass(frozen=True)
class Task:
    """`mapping` has transformers' model class for a configuration, `auto` builds such models."""

    name: str
    mapping: Any
    auto: Any
    inputs: MakeInputs
    loss: Loss

    @property
    def predicts_tokens(self) -> bool:
        """Whether the loss is that of a language model: one word for every token."""
        return self.loss is hf_losses.WORDS

    def classes(self, config: Any) -> tuple[str, ...]:
        """Returns the names of the model classes for a configuration; none if it has no such."""
        if type(config) not in self.mapping:
            return ()
        models = self.mapping[type(config)]
        return tuple(c.__name__ for c in (models if isinstance(models, tuple) else (models,)))


def find_task(config: Any, source: Source, architectures: tuple[str, ...] = ()) -> Task:
    """Returns the task that the source asks for, else that of the architectures, else the first.

    Raises CaptureError for a task that the configuration has no model for, and UnknownTask, which
    comes with a file that captures the model, where none is known.
    """
    tasks = list(_tasks(config))
    known = [task for task, _ in tasks if task.classes(config)]
    if TASK in source.options:
        return _named(str(source.options[TASK]), known, [task.name for task, _ in tasks], source)
    for name in architectures:
        for task in known:
            if name in task.classes(config):
                return task
    other = next(
        (n for n in architectures if "For" in n and not n.endswith("ForPreTraining")), None
    )
    usual = next((task for task, usual in tasks if usual and task in known), None)
    if usual is None or other is not None:
        raise UnknownTask(
            f"the task of {other} is not known" if other else f"{source.target} has no known task",
            file=source.text,
            expected=_other_tasks(known) + "the model with its loss, as in this mymodel.py",
            example=example(config, other),
        )
    return usual


def text_alone(config: Any, task: Task) -> str | None:
    """Returns how to capture the text model of a model of text and images."""
    text = next((one for one, _ in _tasks(config) if one.name == _TEXT_TASK), None)
    if task.name != _ILLUSTRATED:
        return None
    if text is None or not text.classes(config):
        return "the text model alone: its text_config as a config.json of its own"
    return f"{TASK}={_TEXT_TASK}, the text model alone"


def _named(name: str, known: list[Task], all_names: list[str], source: Source) -> Task:
    for task in known:
        if task.name == name:
            return task
    fitting = [task.name for task in known]
    problem = "has no model for" if name in all_names else "is not trained for a task named"
    raise CaptureError(
        f"{source.target} {problem} {name!r}",
        file=source.text,
        field=TASK,
        expected=", ".join(near(name, fitting, most=3) or fitting) or "no task: none is known",
    )


def _other_tasks(known: list[Task]) -> str:
    names = ", ".join(f"{TASK}={task.name}" for task in known)
    return f"{names}, or " if names else ""


def _tasks(config: Any) -> Iterator[tuple[Task, bool]]:
    """Yields every task, and whether it may be chosen for the configuration unless named."""
    import transformers as hf

    both = config.is_encoder_decoder
    encoder_only = not both and not getattr(config, "is_decoder", False)
    tokens, pixels, audio = hf_inputs.tokens, hf_inputs.images, hf_inputs.audio
    words, one_class = hf_losses.WORDS, hf_losses.CLASS

    def task(name: str, head: str, auto: str, inputs: MakeInputs, loss: Loss) -> Task:
        mapping = getattr(hf, f"MODEL_FOR_{head}_MAPPING")
        return Task(name, mapping, getattr(hf, auto), inputs, loss)

    yield task("masked-lm", "MASKED_LM", "AutoModelForMaskedLM", tokens, words), encoder_only
    translation = task(
        "translation", "SEQ_TO_SEQ_CAUSAL_LM", "AutoModelForSeq2SeqLM", hf_inputs.pairs, words
    )
    yield translation, both
    speech = task(
        "speech-to-text",
        "SPEECH_SEQ_2_SEQ",
        "AutoModelForSpeechSeq2Seq",
        hf_inputs.speech,
        words,
    )
    yield speech, both
    contrastive = task(
        "contrastive",
        "ZERO_SHOT_IMAGE_CLASSIFICATION",
        "AutoModel",
        hf_inputs.captions,
        hf_losses.CONTRASTIVE,
    )
    yield contrastive, hasattr(config, "text_config")
    illustrated = task(
        _ILLUSTRATED,
        "IMAGE_TEXT_TO_TEXT",
        "AutoModelForImageTextToText",
        hf_inputs.illustrated,
        words,
    )
    yield illustrated, hasattr(config, "text_config") and hasattr(config, "vision_config")
    yield task(_TEXT_TASK, "CAUSAL_LM", "AutoModelForCausalLM", tokens, words), True
    for name, head, auto, inputs, loss in (
        ("ctc", "CTC", "AutoModelForCTC", audio, hf_losses.CTC),
        ("image-classification", "IMAGE_CLASSIFICATION", "", pixels, one_class),
        ("audio-classification", "AUDIO_CLASSIFICATION", "", audio, one_class),
        ("video-classification", "VIDEO_CLASSIFICATION", "", hf_inputs.videos, one_class),
        ("depth-estimation", "DEPTH_ESTIMATION", "", pixels, hf_losses.DEPTH),
        ("semantic-segmentation", "SEMANTIC_SEGMENTATION", "", pixels, hf_losses.PIXELS),
        ("object-detection", "OBJECT_DETECTION", "", pixels, hf_losses.MATCHED),
        ("sequence-classification", "SEQUENCE_CLASSIFICATION", "", tokens, one_class),
        ("token-classification", "TOKEN_CLASSIFICATION", "", tokens, hf_losses.TOKEN_CLASSES),
    ):
        auto = auto or f"AutoModelFor{head.title().replace('_', '')}"
        yield task(name, head, auto, inputs, loss), True


def trained(
    model: Any, config: Any, task: Task, inputs: Inputs
) -> tuple[Any, tuple[Any, ...], tuple[str, ...]]:
    """Returns the module that computes the model's loss, its inputs, and their names."""
    names = tuple(inputs)
    targets = task.loss.targets(model, config, inputs)

    def forward(self: Any, *values: Any) -> Any:
        out = self.model(**dict(zip(names, values[: len(names)], strict=True)))
        return task.loss.compute(out, config, *values[len(names) :])

    values = (*inputs.values(), *targets.values())
    return block(forward, model=model), values, (*names, *targets)
