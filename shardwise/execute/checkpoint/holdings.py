"""What of a model and its optimizer belongs in a checkpoint, under names that no plan changes.

    model.<name>                       a parameter or buffer
    optimizer.<key>.<name>             what the optimizer keeps of a parameter under `key`

What the optimizer keeps is shaped and placed like the parameter it was given, or is one number that
all ranks share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from shardwise.errors import BadInput
from shardwise.execute.checkpoint.boxes import Part, parts_of
from shardwise.execute.parameters.spec import Placement
from shardwise.execute.parameters.store import ParameterStore


def store_of(model: Any) -> ParameterStore | None:
    """Returns the store of a model, if it has or is one."""
    if isinstance(model, ParameterStore):
        return model
    store = getattr(model, "store", None)
    return store if isinstance(store, ParameterStore) else None


class Holdings:
    """The tensors of a model on this rank.

    `parameters`: by name, each once; `aliases`: the names of a parameter that has several;
    `buffers`: whole on every rank.
    """

    def __init__(self, model: Any) -> None:
        self.store = store_of(model)
        self.aliases: dict[str, list[str]] = {}
        self.buffers: dict[str, torch.Tensor] = {}
        if isinstance(model, torch.nn.Module):
            lasting = model.state_dict(keep_vars=True)
            self.buffers = {n: b for n, b in model.named_buffers() if n in lasting}
        if self.store is not None:
            self.parameters = self.store.parameters()
            return
        if not isinstance(model, torch.nn.Module):
            raise BadInput(
                f"is a {type(model).__name__}",
                field="model",
                expected="a torch module or something with a `store` of parameters",
            )
        self.parameters = dict(model.named_parameters())
        names: dict[int, list[str]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        self.aliases = {known[0]: known for known in names.values() if len(known) > 1}

    @property
    def is_stage(self) -> bool:
        """Whether other ranks have other parameters: those of other stages of a pipeline."""
        mesh = None if self.store is None else self.store.mesh
        return mesh is not None and mesh.model_size > mesh.world_size

    def place(self, name: str) -> Placement | None:
        """Returns where a parameter is placed; None if it is whole on this rank."""
        return None if self.store is None else self.store.placement(name)

    @property
    def written(self) -> Mapping[str, torch.Tensor]:
        """The parameters that this rank saves: not those that another stage of a pipeline does."""
        elsewhere = frozenset() if self.store is None else self.store.counted_elsewhere
        return {n: p for n, p in self.parameters.items() if n not in elsewhere}

    def tensors(self) -> Iterator[tuple[str, torch.Tensor, Placement | None]]:
        """Yields parameters, then buffers: name, memory on this rank, place."""
        for name, parameter in self.parameters.items():
            yield name, parameter.detach(), self.place(name)
        for name, buffer in self.store_buffers():
            yield name, buffer, self.place(name)
        for name, buffer in self.buffers.items():
            yield name, buffer.detach(), None

    def store_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Returns the buffers of the store, each in its layout."""
        return self.store.named_buffers() if self.store is not None else iter(())

    def name_of(self, parameter: torch.Tensor) -> str:
        """Returns the name of an optimizer's parameter; raises BadInput if the model lacks it.

        That of a stage's empty parameter, which is in no checkpoint, is empty.
        """
        if self.is_stage and not self.parameters and parameter.numel() == 0:
            return ""
        for name, known in self.parameters.items():
            if known is parameter:
                return name
        raise BadInput(
            "has a parameter that is not the model's",
            field="optimizer",
            expected="an optimizer of the model's parameters",
        )

    def state_part(self, name: str, key: str, value: torch.Tensor) -> list[Part]:
        """Returns what an optimizer keeps of a parameter, as boxes."""
        parameter = self.parameters[name]
        label = f"optimizer.{key}.{name}"
        if value.shape == parameter.shape:
            return parts_of(label, value.detach().contiguous(), self.place(name))
        if value.dim() == 0:
            return parts_of(label, value.detach(), None)
        raise BadInput(
            f"has shape {list(value.shape)}, the parameter {list(parameter.shape)} on this rank",
            field=f"optimizer state {key} of {name}",
            expected="a number or a tensor shaped like the parameter",
        )
