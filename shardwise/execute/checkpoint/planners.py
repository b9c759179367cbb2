"""Parts of tensors, written and read by torch.distributed.checkpoint's planners."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from shardwise.execute.checkpoint.boxes import Part


class _Parts:
    def __init__(self, parts: Iterable[Part]) -> None:
        self._by_index = {(part.name, part.offsets): part for part in parts}

    def __iter__(self) -> Any:
        return iter(self._by_index.values())

    def memory(self, index: MetadataIndex) -> torch.Tensor:
        return self._by_index[index.fqn, tuple(index.offset or ())].memory


def _chunk(part: Part) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(part.offsets), torch.Size(part.sizes))


class PartsToSave(DefaultSavePlanner):  # type: ignore[misc]
    """Every rank offers its parts; if several offer the same part, one is written."""

    def __init__(self, parts: Iterable[Part]) -> None:
        super().__init__(flatten_state_dict=False)
        self._parts = _Parts(parts)

    def create_local_plan(self) -> SavePlan:
        """Returns one item per part."""
        self.plan = SavePlan(
            [
                WriteItem(
                    index=MetadataIndex(part.name, torch.Size(part.offsets)),
                    type=WriteItemType.SHARD,
                    tensor_data=TensorWriteData(
                        chunk=_chunk(part),
                        properties=TensorProperties.create_from_tensor(part.memory),
                        size=torch.Size(part.shape),
                    ),
                )
                for part in self._parts
            ]
        )
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> torch.Tensor:
        """Returns the memory of a part."""
        return self._parts.memory(index)


class PartsToLoad(DefaultLoadPlanner):  # type: ignore[misc]
    """Every rank reads its parts from whatever boxes they were saved in."""

    def __init__(self, parts: Iterable[Part]) -> None:
        super().__init__(flatten_state_dict=False)
        self._parts = _Parts(parts)

    def create_local_plan(self) -> LoadPlan:
        """Returns one item per part and saved box that it overlaps."""
        saved = self.metadata.state_dict_metadata
        items = []
        for part in self._parts:
            items += create_read_items_for_chunk_list(part.name, saved[part.name], [_chunk(part)])
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        """Returns the memory of a part."""
        return self._parts.memory(index)
