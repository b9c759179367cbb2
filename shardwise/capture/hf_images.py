"""Images of one size in models that take all patches of a batch as one sequence (Qwen's VL models).

transformers lays the patches of all images in a row, reads from a tensor where each image ends, and
attends to them image by image in a loop. Nothing of that can be split by samples, and its shapes
depend on data. Here every sample has one image, all of one size, so that the vision tower has a
batch dimension, which transformers' own parts are called with:

- patches are [images, patches, values], in the order in which transformers' processor lays them:
  the `merge` x `merge` patches of a token follow one another;
- attention takes all images at once. Windows (Qwen2.5-VL) of one size become part of the batch
  dimension; smaller ones at the right and at the lower edge are groups of their own;
- positions follow from the size of the image: in the tower, in its table of learned positions
  (Qwen3-VL), and those of the tokens in three dimensions (M-RoPE; Wang et al. 2024, §2.1);
- a sample begins with its image, also where features are added to later layers (DeepStack).

The result is that of transformers for equal images at the beginning of their samples.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import MethodType
from typing import Any

from shardwise.capture.source import Source
from shardwise.errors import CaptureError

IMAGE_SIZE = "image_size"
"""The key of `vision_config` that gives the side of the images in pixels, or height and width."""

DEFAULT_SIDE = 448
LONGEST_SIDE = 2**16
_FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")


@dataclass(frozen=True)
class Windows:
    """A rectangle of equal windows: `down` x `across` of them, each `height` x `width` tokens.

    `top` and `left` are where it begins in the image, in tokens.
    """

    top: int
    left: int
    down: int
    across: int
    height: int
    width: int


@dataclass(frozen=True)
class Grid:
    """An image of `rows` x `columns` tokens; a token is `merge` x `merge` patches of `values`.

    `window` is the side of a window in tokens, 0 where the tower has none.
    """

    rows: int
    columns: int
    merge: int
    values: int
    window: int

    @property
    def tokens(self) -> int:
        """The number of tokens of an image in the language model."""
        return self.rows * self.columns

    @property
    def unit(self) -> int:
        """The number of patches of a token."""
        return self.merge**2

    @property
    def patches(self) -> int:
        """The number of patches of an image."""
        return self.tokens * self.unit

    @property
    def windows(self) -> list[list[Windows]]:
        """The windows in groups of one size, in rows from top to bottom."""
        if not self.window:
            return [[Windows(0, 0, 1, 1, self.rows, self.columns)]]
        return [
            [
                Windows(top, left, down, across, height, width)
                for left, across, width in _parts(self.columns, self.window)
            ]
            for top, down, height in _parts(self.rows, self.window)
        ]


def _parts(extent: int, window: int) -> list[tuple[int, int, int]]:
    """Returns where whole windows and the rest begin, how many they are, and their extents."""
    whole = extent // window
    parts = [(0, whole, window), (whole * window, 1, extent % window)]
    return [part for part in parts if part[1] and part[2]]


def find_grid(model: Any, config: Any, source: Source) -> Grid:
    """Returns the images of a model; raises CaptureError for a model or a size that has none."""
    if config.model_type not in _FAMILIES:
        raise CaptureError(
            f"{type(model).__name__} reads the sizes of its images from a tensor, image_grid_thw, "
            "which leaves shapes to data",
            file=source.text,
            expected="Qwen2-VL, Qwen2.5-VL, Qwen3-VL, a model such as LLaVA, or the text model "
            "alone",
        )
    vision = config.vision_config
    patch, merge, frames, channels = (
        _count(vision, key, source)
        for key in ("patch_size", "spatial_merge_size", "temporal_patch_size", "in_channels")
    )
    height, width = _sides(vision, patch * merge, source)
    window = 0
    if hasattr(vision, "fullatt_block_indexes"):
        window = _count(vision, "window_size", source) // merge // patch
        if not window:
            raise CaptureError(
                f"a window of {vision.window_size} pixels holds no token",
                file=source.text,
                field="vision_config.window_size",
                expected=f"at least {patch * merge}",
            )
    made = getattr(vision, "out_hidden_size", vision.hidden_size)
    if made != config.text_config.hidden_size:
        raise CaptureError(
            f"features of {made} values take the places of tokens of "
            f"{config.text_config.hidden_size}",
            file=source.text,
            field="vision_config.out_hidden_size"
            if hasattr(vision, "out_hidden_size")
            else "vision_config.hidden_size",
            expected=f"text_config.hidden_size, {config.text_config.hidden_size}",
        )
    rows, columns = height // (patch * merge), width // (patch * merge)
    return Grid(rows, columns, merge, channels * frames * patch**2, window)


def _count(vision: Any, key: str, source: Source) -> int:
    value = getattr(vision, key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CaptureError(
            f"{value!r} is not a size",
            file=source.text,
            field=f"vision_config.{key}",
            expected="a whole number of at least 1",
        )
    return value


def _sides(vision: Any, step: int, source: Source) -> tuple[int, int]:
    """Returns height and width in pixels; the default is the nearest size that divides."""
    size = getattr(vision, IMAGE_SIZE, None)
    if size is None:
        size = max(DEFAULT_SIDE // step, 1) * step
    sides = list(size) if isinstance(size, list | tuple) else [size, size]
    fitting = [
        type(side) is int and 1 <= side <= LONGEST_SIDE and side % step == 0 for side in sides
    ]
    if len(sides) != 2 or not all(fitting):
        raise CaptureError(
            f"{size!r} is not a size of images",
            file=source.text,
            field=f"vision_config.{IMAGE_SIZE}",
            expected=f"a multiple of {step} pixels (a patch times the patches merged), at most "
            f"{LONGEST_SIDE}",
        )
    return sides[0], sides[1]


def batch_images(model: Any, grid: Grid) -> None:
    """Makes a model compute samples with one image of `grid` each, in a batch dimension.

    Afterwards `pixel_values` are [samples, patches, values], and sizes and positions are none of
    its inputs. Parameters and their names stay.
    """
    base = model.model
    tower = base.visual
    tower.image_grid = grid
    for number, block in enumerate(tower.blocks):
        windowed = bool(grid.window) and number not in tower.fullatt_block_indexes
        # On the layer, where a search for layers that repeat sees it.
        block.attn.windows = _sizes(grid) if windowed else ((1, grid.patches),)
        block.deepstack_place = _place(number, getattr(tower, "deepstack_visual_indexes", ()))
        block.attn.forward = MethodType(_attend, block.attn)
    tower.forward = MethodType(_see, tower)
    base.get_image_features = MethodType(_features, base)
    if hasattr(tower, "deepstack_visual_indexes"):
        base.language_model.forward = MethodType(_read_with_features, base.language_model)
        added = sum(block.deepstack_place is not None for block in tower.blocks)
        for number, layer in enumerate(base.language_model.layers[:added]):
            layer.features_added = number
            layer.forward = MethodType(_add_features, layer)
    model.image_grid = grid
    model.forward = MethodType(_with_positions, model)


def _sizes(grid: Grid) -> tuple[tuple[int, int], ...]:
    """Returns how many windows every group has, and how many patches these have."""
    return tuple(
        (part.down * part.across, part.height * part.width * grid.unit)
        for row in grid.windows
        for part in row
    )


def _place(number: int, indexes: Any) -> int | None:
    return list(indexes).index(number) if number in indexes else None


def _with_positions(self: Any, **inputs: Any) -> Any:
    """Runs a whole model with the positions of its tokens."""
    tokens = inputs["input_ids"]
    positions = token_positions(self.image_grid, tokens.shape[1], tokens.device)
    return type(self).forward(self, position_ids=positions, **inputs)


def token_positions(grid: Grid, seq: int, device: Any) -> Any:
    """Returns the positions in time, height and width of an image and `seq - tokens` of text.

    [3, 1, seq]: they are the same for all samples.
    """
    import torch

    rows = torch.arange(grid.rows, device=device)[:, None].expand(-1, grid.columns).flatten()
    columns = torch.arange(grid.columns, device=device)[None].expand(grid.rows, -1).flatten()
    image = torch.stack((torch.zeros_like(rows), rows, columns))
    # Text goes on after the longer side of the image.
    first = max(grid.rows, grid.columns)
    text = torch.arange(first, first + max(seq - grid.tokens, 0), device=device)
    return torch.cat((image, text[None].expand(3, -1)), dim=1)[:, None]


def _features(self: Any, pixel_values: Any, *args: Any, **kwargs: Any) -> Any:
    """Returns the tower's features; each is the list of the images' rows."""
    seen = self.visual(pixel_values.type(self.visual.dtype))
    seen.pooler_output = tuple(seen.pooler_output)
    seen.deepstack_features = [tuple(features) for features in seen.deepstack_features]
    return seen


def _see(self: Any, pixel_values: Any, *args: Any, **kwargs: Any) -> Any:
    """Runs a vision tower, [images, patches, values] to [images, tokens, hidden] features."""
    from transformers.modeling_outputs import BaseModelOutputWithPooling

    grid = self.image_grid
    images = pixel_values.shape[0]
    hidden = self.patch_embed(pixel_values).reshape(images, grid.patches, -1)
    if hasattr(self, "pos_embed"):
        hidden = hidden + _learned_positions(self, grid, hidden.device).to(hidden.dtype)
    hidden = _into_windows(hidden, grid)
    rotations = _rotations(self.rotary_pos_emb.inv_freq, grid)
    deepstack = []
    for block in self.blocks:
        hidden = block(hidden, cu_seqlens=None, position_embeddings=rotations)
        if block.deepstack_place is not None:
            merged = self.deepstack_merger_list[block.deepstack_place](hidden)
            deepstack.append(merged.reshape(images, grid.tokens, -1))
    features = self.merger(hidden).reshape(images, grid.tokens, -1)
    seen = BaseModelOutputWithPooling(hidden, _out_of_windows(features, grid))
    seen.deepstack_features = deepstack
    return seen


def _attend(
    self: Any, hidden_states: Any, *args: Any, position_embeddings: Any, **kwargs: Any
) -> Any:
    """Runs one attention of a tower, [images, patches, hidden] to the same, in groups of windows.

    `windows` has for each group the number of windows and of the patches of a window.
    """
    import torch

    code = sys.modules[type(self).__module__]
    images, patches, _ = hidden_states.shape
    heads = self.qkv(hidden_states).reshape(images, patches, 3, self.num_heads, -1)
    query, key, value = heads.permute(2, 0, 1, 3, 4).unbind(0)
    query, key = code.apply_rotary_pos_emb_vision(query, key, *position_embeddings)
    attention = code.ALL_ATTENTION_FUNCTIONS.get(
        self.config._attn_implementation, code.eager_attention_forward
    )
    start, outputs = 0, []
    for count, size in self.windows:
        end = start + count * size
        parts = (
            (x if end - start == patches else x[:, start:end])
            .reshape(images * count, size, self.num_heads, -1)
            .transpose(1, 2)
            for x in (query, key, value)
        )
        output, _ = attention(
            self, *parts, attention_mask=None, scaling=self.scaling, dropout=0.0, is_causal=False
        )
        outputs.append(output.reshape(images, end - start, -1))
        start = end
    return self.proj(outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1))


def _into_windows(hidden: Any, grid: Grid) -> Any:
    """Returns [images, patches, …] with the patches of a window one after the other."""
    import torch

    if not grid.window:
        return hidden
    images = hidden.shape[0]
    tokens = hidden.reshape(images, grid.rows, grid.columns, grid.unit, -1)
    parts = []
    for row in grid.windows:
        for part in row:
            down, across = part.down * part.height, part.across * part.width
            inside = tokens
            if down < grid.rows:
                inside = inside[:, part.top : part.top + down]
            if across < grid.columns:
                inside = inside[:, :, part.left : part.left + across]
            shape = (images, part.down, part.height, part.across, part.width, grid.unit, -1)
            parts.append(inside.reshape(shape).transpose(2, 3).flatten(1, 5))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _out_of_windows(features: Any, grid: Grid) -> Any:
    """Returns [images, tokens, hidden] with the tokens of an image row by row."""
    import torch

    if not grid.window:
        return features
    images, start, rows = features.shape[0], 0, []
    for row in grid.windows:
        parts = []
        for part in row:
            down, across = part.down * part.height, part.across * part.width
            inside = features
            if down * across < grid.tokens:
                inside = features[:, start : start + down * across]
            start += down * across
            shape = (images, part.down, part.across, part.height, part.width, -1)
            parts.append(inside.reshape(shape).transpose(2, 3).reshape(images, down, across, -1))
        rows.append(parts[0] if len(parts) == 1 else torch.cat(parts, dim=2))
    return (rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)).flatten(1, 2)


def _places(grid: Grid, device: Any) -> tuple[Any, Any]:
    """Returns the rows and the columns of an image's patches, [patches] each."""
    import torch

    high, wide = grid.rows * grid.merge, grid.columns * grid.merge
    rows = torch.arange(high, device=device)[:, None].expand(-1, wide)
    columns = torch.arange(wide, device=device)[None].expand(high, -1)
    shape = (grid.rows, grid.merge, grid.columns, grid.merge)
    rows, columns = (x.reshape(shape).transpose(1, 2).flatten() for x in (rows, columns))
    return rows, columns


def _rotations(frequencies: Any, grid: Grid) -> tuple[Any, Any]:
    """Returns cosine and sine of the patches' rotations, [patches, head size] each."""
    import torch

    places = torch.stack(_places(grid, frequencies.device), dim=-1)
    places = _into_windows(places[None], grid)[0]
    angles = (places[..., None].float() * frequencies.float()).flatten(1)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def _learned_positions(self: Any, grid: Grid, device: Any) -> Any:
    """Returns the tower's table of positions at the patches of an image, [patches, hidden].

    The table is square; it is interpolated linearly in both directions, corners on corners.
    """
    import torch

    side = int(self.num_grid_per_side)
    taps = []
    extents = (grid.rows * grid.merge, grid.columns * grid.merge)
    for place, extent in zip(_places(grid, device), extents, strict=True):
        exact = place.float() * (side - 1) / max(extent - 1, 1)
        low = exact.floor()
        high = (low + 1).clamp(max=side - 1)
        taps.append((torch.stack((low, high), -1).long(), exact - low))
    (rows, down), (columns, across) = taps
    indices = (rows[:, :, None] * side + columns[:, None, :]).flatten(1)
    weights = torch.stack((1 - down, down), -1)[:, :, None]
    weights = (weights * torch.stack((1 - across, across), -1)[:, None, :]).flatten(1)
    return (self.pos_embed(indices) * weights[..., None]).sum(1)


def _read_with_features(
    self: Any, *args: Any, visual_pos_masks: Any, deepstack_visual_embeds: Any, **kwargs: Any
) -> Any:
    """Runs the language model; its first layers add the tower's features themselves.

    transformers adds them between the layers, where layers that repeat could not be told from it.
    """
    return type(self).forward(self, *args, **kwargs, image_features=deepstack_visual_embeds)


def _add_features(self: Any, *args: Any, image_features: Any, **kwargs: Any) -> Any:
    """Runs a layer and adds features to the tokens of the samples' images."""
    import torch

    hidden = type(self).forward(self, *args, **kwargs)
    features = image_features[self.features_added].to(hidden.dtype)
    image = features.reshape(hidden.shape[0], -1, hidden.shape[2])
    length = image.shape[1]
    return torch.cat((hidden[:, :length] + image, hidden[:, length:]), dim=1)
