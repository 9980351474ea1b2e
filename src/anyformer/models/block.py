"""The one block that models are stacked of, and the mixers that fill its places.

Shapes   B batch, N tokens, M tokens of a context, C model dim
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import elu, gelu

from anyformer.card import Card, able, find
from anyformer.catalog import build
from anyformer.contract import Mixer, require_positive

Choice = str | Callable[..., Mixer]  # a name, or what is called with dim= and causal= and returns a mixer
Choices = Choice | Sequence[Choice]  # one for all layers, or one a layer
Norm = Literal["pre", "post"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": gelu,
    "elu1": lambda x: elu(x) + 1,
}


def mixers(
    choices: Choices,
    place: str,
    layers: int,
    dim: int,
    heads: int,
    head_dim: int | None,
    max_length: int | None,
    *,
    causal: bool = False,
    cross: bool = False,
) -> list[Mixer]:
    """A mixer for each layer; `heads` and `max_length` go to those named mechanisms that have them."""
    require_positive(layers=layers)
    each = [choices] * layers if isinstance(choices, str) or not isinstance(choices, Sequence) else choices
    if len(each) != layers:
        raise ValueError(f"{place} names {len(each)} mechanisms for {layers} layers; give one, or one for each layer")
    return [mixer(choice, place, dim, heads, head_dim, max_length, causal, cross) for choice in each]


def mixer(
    choice: Choice,
    place: str,
    dim: int,
    heads: int,
    head_dim: int | None,
    max_length: int | None,
    causal: bool,
    cross: bool,
) -> Mixer:
    """The mixer for a place in one layer, if it can take it."""
    if isinstance(choice, str):
        entry, variant = find(choice)
        card = entry.card.of(variant)
        require_able(f"{place} {choice!r}", card, causal, cross)
        options: dict[str, Any] = {} if head_dim is None else {"head_dim": head_dim}
        if "heads" in card.tiny:
            options["heads"] = heads
        if "max_length" in card.tiny:
            if max_length is None:
                raise ValueError(f"{place} {choice!r} needs max_length=, the most tokens that the model will see")
            options["max_length"] = max_length
        return build(choice, dim=dim, causal=causal, **options)
    if isinstance(choice, nn.Module) or not callable(choice):
        raise TypeError(f"{place} is a mechanism's name or a function of dim and causal, not {type(choice).__name__}")
    made = choice(dim=dim, causal=causal)
    if not isinstance(made, Mixer):
        raise TypeError(f"{place} must be built as a Mixer, not {type(made).__name__}")
    require_able(f"{place}, which is {made.card.title},", made.card, causal, cross)
    if (made.dim, made.causal) != (dim, causal):
        raise ValueError(
            f"{place} was asked for with dim={dim} and causal={causal} and came with dim={made.dim} and "
            f"causal={made.causal}; pass both on"
        )
    return made


def require_able(who: str, card: Card, causal: bool, cross: bool) -> None:
    if causal and card.causal == "no":
        raise ValueError(f"{who} cannot be causal; these can: {able(lambda other: other.causal != 'no')}")
    if not causal and card.causal == "only":
        raise ValueError(f"{who} is only causal; these can do without: {able(lambda other: other.causal != 'only')}")
    if cross and not card.cross:
        raise ValueError(f"{who} has no cross-attention; these have: {able(lambda other: other.cross)}")


def require_rate(**rates: Any) -> None:
    for name, rate in rates.items():
        if isinstance(rate, bool) or not isinstance(rate, int | float):
            raise TypeError(f"{name} is a number, not {rate!r}")
        if not 0 <= rate < 1:
            raise ValueError(f"{name} must be at least 0 and below 1, not {rate}")


class DropPath(nn.Module):
    """Leaves out the whole change of an item, with a probability, in training (Huang et al. 2016, arXiv:1603.09382)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        require_rate(drop_path=rate)
        self.rate = rate

    def forward(self, y_BNC: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return y_BNC
        kept_B11 = y_BNC.new_empty(y_BNC.shape[0], 1, 1).bernoulli_(1 - self.rate)
        return y_BNC * kept_B11.div_(1 - self.rate)

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


class FeedForward(nn.Module):
    """Each token alone: wider, through the activation, and back."""

    def __init__(self, *, dim: int, hidden: int | None = None, activation: str = "relu", dropout: float = 0.0) -> None:
        super().__init__()
        hidden = 4 * dim if hidden is None else hidden
        require_positive(dim=dim, hidden=hidden)
        require_rate(dropout=dropout)
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation is one of {', '.join(map(repr, ACTIVATIONS))}, not {activation!r}")
        self.activation = activation
        self.wider, self.back = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BNC: Tensor) -> Tensor:
        return self.back(self.dropout(ACTIVATIONS[self.activation](self.wider(x_BNC))))

    def extra_repr(self) -> str:
        return f"activation={self.activation}"


class Block(nn.Module):
    """The mixer changes x, then the cross mixer if there is one, then the feed-forward layer.

    Each change is added to x, which is normalised before it ("pre") or after ("post"). Dropout acts on each change and
    within the feed-forward layer, not on what a mixer weighs; `drop_path` leaves out whole changes.
    """

    def __init__(
        self,
        mixer: Mixer,
        *,
        cross: Mixer | None = None,
        hidden: int | None = None,
        activation: str = "relu",
        norm: Norm = "pre",
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        if norm not in get_args(Norm):
            raise ValueError(f"norm is 'pre' or 'post', not {norm!r}")
        self.pre = norm == "pre"
        self.mixer, self.mixer_norm = mixer, nn.LayerNorm(mixer.dim)
        self.cross, self.cross_norm = cross, nn.Identity() if cross is None else nn.LayerNorm(mixer.dim)
        self.channel = FeedForward(dim=mixer.dim, hidden=hidden, activation=activation, dropout=dropout)
        self.channel_norm = nn.LayerNorm(mixer.dim)
        self.dropout, self.drop_path = nn.Dropout(dropout), DropPath(drop_path)

    def forward(
        self,
        x_BNC: Tensor,
        context_BMC: Tensor | None = None,
        *,
        keep: Tensor | None = None,
        context_keep: Tensor | None = None,
    ) -> Tensor:
        self.check_context(context_BMC is not None)
        x = self.leave(x_BNC, self.mixer(self.enter(x_BNC, self.mixer_norm), keep=keep), self.mixer_norm)
        if self.cross is not None:
            y = self.cross(self.enter(x, self.cross_norm), context_BMC, keep=context_keep)
            x = self.leave(x, y, self.cross_norm)
        return self.leave(x, self.channel(self.enter(x, self.channel_norm)), self.channel_norm)

    def start(
        self, batch: int, *, context: Tensor | None = None, context_keep: Tensor | None = None
    ) -> tuple[Any, Any]:
        """The states of the mixer and of the cross mixer."""
        self.check_context(context is not None)
        cross = None if self.cross is None else self.cross.start(batch, context=context, keep=context_keep)
        return self.mixer.start(batch), cross

    def stream(
        self, x_BNC: Tensor, states: tuple[Any, Any], *, keep: Tensor | None = None
    ) -> tuple[Tensor, tuple[Any, Any]]:
        of_mixer, of_cross = states
        y, of_mixer = self.mixer.stream(self.enter(x_BNC, self.mixer_norm), of_mixer, keep=keep)
        x = self.leave(x_BNC, y, self.mixer_norm)
        if self.cross is not None:
            y, of_cross = self.cross.stream(self.enter(x, self.cross_norm), of_cross)
            x = self.leave(x, y, self.cross_norm)
        x = self.leave(x, self.channel(self.enter(x, self.channel_norm)), self.channel_norm)
        return x, (of_mixer, of_cross)

    def enter(self, x: Tensor, norm: nn.Module) -> Tensor:
        return norm(x) if self.pre else x

    def leave(self, x: Tensor, y: Tensor, norm: nn.Module) -> Tensor:
        x = x + self.drop_path(self.dropout(y))
        return x if self.pre else norm(x)

    def check_context(self, given: bool) -> None:
        if given and self.cross is None:
            raise ValueError(
                "this model was built without cross-attention and takes no context; name a cross mechanism"
            )
        if not given and self.cross is not None:
            raise ValueError("this model has cross-attention, so it needs a context")
