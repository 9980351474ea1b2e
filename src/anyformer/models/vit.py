"""Vision Transformer of any mechanism: an image becomes a row of patches, and those one vector for a linear classifier.

Paper    Dosovitskiy et al. 2020, An Image is Worth 16x16 Words, arXiv:2010.11929, eq. 1-4
ViT is `ViT()`, ViL `ViT("linformer")`, and ViP `ViT("performer:positive")`, "performer:relu" or "performer:exp".

`mixer` is as in `models/transformer.py`. A named mechanism gets what it has of `heads`, `head_dim`, `bias`,
`max_length` (the number of tokens) and `grid` (the rows and columns of patches, if no class token stands before them).

Weights start as torch starts its linear layers and norms, a mechanism's as its file says, learned positions normal with
0.02 and the class token at zero.

Shapes   B batch, K channels, H W height and width, P Q those of a patch, Y X rows and columns of patches, N tokens,
         C model dim
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from anyformer.card import find
from anyformer.catalog import build
from anyformer.contract import check_filled, check_same, require_bool, require_positive
from anyformer.models.block import Choice, Choices, require_able, require_rate
from anyformer.models.transformer import Encoder
from anyformer.parts.positions import sinusoids

Size = int | tuple[int, int]  # of a square, or height and width
Pooling = Literal["class", "mean"]
Positions = Literal["learned", "sinusoidal"]


class ViT(nn.Module):
    """The logits of images, (B, K, H, W) -> (B, classes); what they are made of, (B, C), where `classes` is None.

    That is the class token, or the mean of all tokens. Sinusoidal positions are half those of the row, half those of
    the column, and zero at the class token. `bias` is that of an attention layer's four projections.
    """

    def __init__(
        self,
        mixer: Choices = "softmax",
        *,
        image_size: Size,
        patch_size: Size,
        classes: int | None,
        dim: int,
        layers: int,
        heads: int = 8,
        head_dim: int | None = None,
        channels: int = 3,
        hidden: int | None = None,
        activation: str = "gelu",
        positions: Positions = "learned",
        pooling: Pooling = "class",
        bias: bool = True,
        eps: float = 1e-6,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        require_positive(channels=channels, dim=dim, classes=1 if classes is None else classes)
        require_bool(bias=bias)
        require_rate(dropout=dropout, eps=eps)
        for name, chosen, choices in (("positions", positions, Positions), ("pooling", pooling, Pooling)):
            if chosen not in get_args(choices):
                raise ValueError(f"{name} is one of {', '.join(map(repr, get_args(choices)))}, not {chosen!r}")
        self.image_size, self.patch_size = pair("image_size", image_size), pair("patch_size", patch_size)
        (height, width), (high, wide) = self.image_size, self.patch_size
        if height % high or width % wide:
            raise ValueError(f"patches of {high} x {wide} do not fill images of {height} x {width}; resize the images")
        self.grid, self.channels, self.pooling = (height // high, width // wide), channels, pooling
        first = int(pooling == "class")
        tokens = first + self.grid[0] * self.grid[1]

        self.patches = nn.Conv2d(channels, dim, self.patch_size, self.patch_size)
        self.class_token = nn.Parameter(torch.zeros(1, 1, dim)) if first else None
        self.positions: Tensor
        if positions == "learned":
            self.positions = nn.Parameter(torch.empty(1, tokens, dim).normal_(std=0.02))
        else:
            self.register_buffer("positions", sinusoids_of(self.grid, first, dim), persistent=False)
        self.dropout = nn.Dropout(dropout)

        known = {"heads": heads, "max_length": tokens, "grid": None if first else self.grid}

        def told(choice: Choice) -> Choice:
            return with_options(choice, known, head_dim, bias) if isinstance(choice, str) else choice

        self.encoder = Encoder(
            told(mixer) if isinstance(mixer, str) or not isinstance(mixer, Sequence) else [told(one) for one in mixer],
            dim=dim,
            layers=layers,
            hidden=hidden,
            activation=activation,
            dropout=dropout,
            drop_path=drop_path,
        )
        for block in self.encoder.blocks:
            block.mixer_norm.eps = block.channel_norm.eps = eps
        self.encoder.norm.eps = eps
        self.head = nn.Identity() if classes is None else nn.Linear(dim, classes)

    def forward(self, image_BKHW: Tensor) -> Tensor:
        self.check(image_BKHW)
        x = self.patches(image_BKHW).flatten(2).mT
        x = x.contiguous() if self.class_token is None else torch.cat([self.class_token.expand(len(x), -1, -1), x], 1)
        x = self.encoder(self.dropout(x + self.positions))
        return self.head(x[:, 0] if self.pooling == "class" else x.mean(1))

    def check(self, image: Any) -> None:
        wanted = f"(batch, {self.channels}, {self.image_size[0]}, {self.image_size[1]})"
        if not isinstance(image, Tensor):
            raise TypeError(f"images must be a tensor of shape {wanted}, not {type(image).__name__}")
        if image.dim() != 4 or image.shape[1:] != (self.channels, *self.image_size):
            raise ValueError(f"images must have shape {wanted}, not {tuple(image.shape)}; resize them, or build anew")
        check_filled("images", image, image.shape[1])
        check_same("images", image, "the model", self.patches.weight)

    def extra_repr(self) -> str:
        return f"image_size={self.image_size}, patch_size={self.patch_size}, pooling={self.pooling}"


def pair(name: str, size: Any) -> tuple[int, int]:
    high, wide = size if isinstance(size, tuple | list) and len(size) == 2 else (size, size)
    require_positive(**{name: high})
    require_positive(**{name: wide})
    return high, wide


def with_options(name: str, known: Mapping[str, Any], head_dim: int | None, bias: bool) -> Choice:
    """A named mechanism with those options that it has; None is what this model cannot offer."""
    entry, variant = find(name)
    card = entry.card.of(variant)
    require_able(f"mixer {name!r}", card, causal=False, cross=False)
    options = {option: value for option, value in known.items() if option in card.tiny}
    if options.get("grid", True) is None:
        raise ValueError(f"{name!r} mixes a grid, where a class token has no place; take pooling='mean'")
    if head_dim is not None:
        options["head_dim"] = head_dim
    if card.slot == "attention":
        options["bias"] = bias
    return partial(build, name, **options)


def sinusoids_of(grid: tuple[int, int], first: int, dim: int) -> Tensor:
    """(1, N, C), with zeros for the `first` tokens."""
    if dim % 4:
        raise ValueError(f"sinusoidal positions need a dim that 4 divides, not {dim}; or take positions='learned'")
    row_YX, column_YX = torch.meshgrid(*map(torch.arange, grid), indexing="ij")
    parts = [sinusoids(place.flatten()[None], dim // 2, torch.float32) for place in (row_YX, column_YX)]
    return torch.cat([torch.zeros(1, first, dim), torch.cat(parts, -1)], 1)


def resampled(positions_1NC: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Learned positions of a grid of patches for another one, by bicubic interpolation; a class token's stays."""
    first = positions_1NC.shape[1] - old[0] * old[1]
    if first not in (0, 1):
        raise ValueError(f"{positions_1NC.shape[1]} positions are none of a grid of {old[0]} x {old[1]}")
    of_grid = positions_1NC[:, first:].unflatten(1, old).permute(0, 3, 1, 2)
    dtype = torch.promote_types(of_grid.dtype, torch.float32)
    of_new = interpolate(of_grid.to(dtype), new, mode="bicubic", antialias=True)
    return torch.cat([positions_1NC[:, :first], of_new.flatten(2).mT.to(positions_1NC.dtype)], 1)
