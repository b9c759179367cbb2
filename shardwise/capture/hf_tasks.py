"""What a transformers model is trained to do: its class, its inputs and its loss.

| task | inputs | loss |
|---|---|---|
| language model (masked or causal) | tokens, labels | cross entropy of every token |
| sequence to sequence | tokens, decoder tokens, labels | cross entropy of every decoder token |
| speech to text | mel spectrogram, decoder tokens, labels | cross entropy of every decoder token |
| contrastive (CLIP) | tokens, images, labels | mean of both cross entropies over the batch |
| image classifier | images, labels | cross entropy |

The loss of a language model is taken with the class dimension second:
`cross_entropy(logits.float().transpose(1, 2), labels)`. transformers' own loss first flattens batch
and sequence into one dimension, which would tie the two together in every strategy. The labels are
assumed to be shifted already: shifting them by one is up to the data. The labels of a contrastive
loss are the numbers of the samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from shardwise.capture.source import Source
from shardwise.capture.zoo.blocks import block
from shardwise.errors import CaptureError

_LONGEST_DEFAULT_SEQ = 1024


@dataclass(frozen=True)
class Sizes:
    """The sizes of one step: samples, tokens per sample if given, dtype of real inputs, mask."""

    samples: int
    seq: int | None
    dtype: Any
    mask: bool


Inputs = dict[str, Any]
MakeInputs = Callable[[Any, Any, Sizes, Source], Inputs]


@dataclass(frozen=True)
class Task:
    """`auto` is transformers' class for such models; `inputs` makes the inputs without labels."""

    auto: Any
    inputs: MakeInputs
    labels: str
    loss: Callable[[Any, Any], Any]

    @property
    def predicts_tokens(self) -> bool:
        """Whether the loss is that of a language model: one class for every token."""
        return self.loss is _token_loss


def find_task(config: Any, name: str) -> Task:
    """Returns the first task that transformers has a model for; raises CaptureError if none."""
    for mapping, wanted, task in _tasks(config):
        if wanted and type(config) in mapping:
            return task
    raise CaptureError(
        f"{name} has no language model, translator, speech recogniser, contrastive model or "
        "image classifier",
        file=f"hf:{name}",
        expected="package.module:callable that returns (module, example inputs)",
    )


def _tasks(config: Any) -> Iterator[tuple[Any, bool, Task]]:
    import transformers as hf

    both = config.is_encoder_decoder
    encoder_only = not both and not getattr(config, "is_decoder", False)
    tokens = Task(hf.AutoModelForMaskedLM, _tokens, "input_ids", _token_loss)
    yield hf.MODEL_FOR_MASKED_LM_MAPPING, encoder_only, tokens
    translate = Task(hf.AutoModelForSeq2SeqLM, _pairs, "decoder_input_ids", _token_loss)
    yield hf.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING, both, translate
    speech = Task(hf.AutoModelForSpeechSeq2Seq, _speech, "decoder_input_ids", _token_loss)
    yield hf.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING, both, speech
    contrast = Task(hf.AutoModel, _captions, "input_ids", _contrastive_loss)
    yield (
        hf.MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING,
        hasattr(config, "text_config"),
        contrast,
    )
    causal = Task(hf.AutoModelForCausalLM, _tokens, "input_ids", _token_loss)
    yield hf.MODEL_FOR_CAUSAL_LM_MAPPING, True, causal
    classify = Task(hf.AutoModelForImageClassification, _images, "pixel_values", _class_loss)
    yield hf.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING, True, classify


def trained(model: Any, task: Task, inputs: Inputs) -> tuple[Any, tuple[Any, ...], tuple[str, ...]]:
    """Returns the module that computes the model's loss, its inputs, and their names."""
    import torch

    names = tuple(inputs)

    def forward(self: Any, *values: Any) -> Any:
        *given, labels = values
        out = self.model(**dict(zip(names, given, strict=True)))
        return task.loss(out, labels)

    like = inputs[task.labels]
    shape = like.shape if task.predicts_tokens else like.shape[:1]
    labels = torch.zeros(shape, dtype=torch.long, device="meta")
    return block(forward, model=model), (*inputs.values(), labels), (*names, "labels")


def _token_loss(out: Any, labels: Any) -> Any:
    import torch

    return torch.nn.functional.cross_entropy(out.logits.float().transpose(1, 2), labels)


def _class_loss(out: Any, labels: Any) -> Any:
    import torch

    return torch.nn.functional.cross_entropy(out.logits.float(), labels)


def _contrastive_loss(out: Any, labels: Any) -> Any:
    import torch

    logits = out.logits_per_image.float()
    entropy = torch.nn.functional.cross_entropy
    return (entropy(logits, labels) + entropy(logits.t(), labels)) / 2


def _tokens(model: Any, config: Any, sizes: Sizes, source: Source) -> Inputs:
    return _token_ids(model, config, sizes, source)


def _pairs(model: Any, config: Any, sizes: Sizes, source: Source) -> Inputs:
    inputs = _token_ids(model, config, sizes, source)
    return {**inputs, "decoder_input_ids": inputs["input_ids"]}


def _speech(model: Any, config: Any, sizes: Sizes, source: Source) -> Inputs:
    # The encoder's convolutions halve the frames of the spectrogram once.
    bins = getattr(config, "num_mel_bins", None)
    positions = getattr(config, "max_source_positions", None)
    if bins is None or positions is None:
        raise CaptureError(
            f"{source.target} does not say how many frames it takes",
            file=source.text,
            expected="a model with num_mel_bins and max_source_positions, such as Whisper",
        )
    frames = _zeros(sizes, (bins, 2 * positions))
    ids = _token_ids(model, config, sizes, source, masked=False)["input_ids"]
    return {"input_features": frames, "decoder_input_ids": ids}


def _captions(model: Any, config: Any, sizes: Sizes, source: Source) -> Inputs:
    text = getattr(model, "text_model", model)
    tokens = _token_ids(text, config.text_config, sizes, source)
    return {**tokens, "pixel_values": _pixels(config.vision_config, sizes)}


def _images(model: Any, config: Any, sizes: Sizes, source: Source) -> Inputs:
    return {"pixel_values": _pixels(config, sizes)}


def _token_ids(
    model: Any, config: Any, sizes: Sizes, source: Source, masked: bool = True
) -> Inputs:
    import torch

    length = sizes.seq or _default_seq(config)
    _check_positions(model, length, source)
    ids = torch.zeros(sizes.samples, length, dtype=torch.long, device="meta")
    return {"input_ids": ids, **({"attention_mask": ids} if sizes.mask and masked else {})}


def _pixels(config: Any, sizes: Sizes) -> Any:
    size = getattr(config, "image_size", None) or 224
    sides = size if isinstance(size, list | tuple) else (size, size)
    return _zeros(sizes, (getattr(config, "num_channels", 3), *sides))


def _zeros(sizes: Sizes, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.zeros(sizes.samples, *shape, dtype=sizes.dtype, device="meta")


def _default_seq(config: Any) -> int:
    for key in ("max_target_positions", "max_position_embeddings"):
        longest = getattr(config, key, None)
        if isinstance(longest, int):
            return min(longest, _LONGEST_DEFAULT_SEQ)
    return 512


def _check_positions(model: Any, seq: int, source: Source) -> None:
    """Refuses a learned position table shorter than the sequence; fake tensors would accept it."""
    import torch

    for path, module in model.named_modules():
        last = path.rpartition(".")[2]
        is_table = isinstance(module, torch.nn.Embedding) and ("position" in last or last == "wpe")
        if is_table and "relative" not in last and module.num_embeddings < seq:
            raise CaptureError(
                f"sequence length {seq} exceeds the {module.num_embeddings} positions of {path}",
                file=source.text,
                field="seq",
                expected=f"at most {module.num_embeddings}, or a larger max_position_embeddings",
            )
