"""Encoder, decoder, language model and sequence-to-sequence model of any mechanism in each place.

`mixer`, `encoder`, `decoder` and `cross` each name a mechanism, as "linear" or "performer:relu", or are called as
`f(dim=..., causal=...)` and return a mixer, which is how a mechanism gets further options:
`functools.partial(af.build, "local", heads=8, window=32)`. One stands for all layers; a sequence has one for each.
`heads` and `max_length` (the most tokens, padding included) go to those named mechanisms that have them.

Weights start as torch starts its linear layers and norms, and a mechanism's as its file says. Embeddings start normal
with 1 / sqrt(dim) and are multiplied by sqrt(dim), so tied logits start at about unit variance.

Shapes   B batch, N tokens, M tokens of a context, C model dim, V vocabulary
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import linear

from anyformer.contract import Mixer, check_keep, require_bool, require_positive
from anyformer.models.block import Block, Choices, Norm, mixers, require_rate
from anyformer.models.generate import check_sampling, check_token, pick
from anyformer.parts.positions import places, sinusoids

Positions = Literal["sinusoidal", "learned", "none"]


class Encoder(nn.Module):
    """Every token may see every other: (B, N, C) in and out."""

    blocks: Sequence[Block]

    def __init__(
        self,
        mixer: Choices = "softmax",
        *,
        dim: int,
        layers: int,
        heads: int = 8,
        head_dim: int | None = None,
        max_length: int | None = None,
        hidden: int | None = None,
        activation: str = "relu",
        norm: Norm = "pre",
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        own = mixers(mixer, "the encoder's mixer", layers, dim, heads, head_dim, max_length)
        self.blocks = nn.ModuleList(  # type: ignore[assignment]
            Block(one, hidden=hidden, activation=activation, norm=norm, dropout=dropout, drop_path=rate)
            for one, rate in zip(own, rising(drop_path, layers), strict=True)
        )
        self.norm = nn.LayerNorm(dim) if norm == "pre" else nn.Identity()

    def forward(self, x_BNC: Tensor, *, keep: Tensor | None = None) -> Tensor:
        x = filled(x_BNC, keep)
        for block in self.blocks:
            x = block(x, keep=keep)
        return self.norm(x)


class Streamed(NamedTuple):
    """A decoder's state: those of each layer's mixer and cross mixer, and how many tokens have passed."""

    layers: tuple[tuple[Any, Any], ...]
    position: int


class Decoder(nn.Module):
    """Each token sees itself and those before, and all of a context where `cross` is given: (B, N, C) in and out."""

    blocks: Sequence[Block]

    def __init__(
        self,
        mixer: Choices = "softmax",
        *,
        cross: Choices | None = None,
        dim: int,
        layers: int,
        heads: int = 8,
        head_dim: int | None = None,
        max_length: int | None = None,
        hidden: int | None = None,
        activation: str = "relu",
        norm: Norm = "pre",
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        own = mixers(mixer, "the decoder's mixer", layers, dim, heads, head_dim, max_length, causal=True)
        others: Sequence[Mixer | None] = [None] * layers
        if cross is not None:
            others = mixers(cross, "cross", layers, dim, heads, head_dim, max_length, cross=True)
        self.blocks = nn.ModuleList(  # type: ignore[assignment]
            Block(one, cross=other, hidden=hidden, activation=activation, norm=norm, dropout=dropout, drop_path=rate)
            for one, other, rate in zip(own, others, rising(drop_path, layers), strict=True)
        )
        self.norm = nn.LayerNorm(dim) if norm == "pre" else nn.Identity()

    def forward(
        self,
        x_BNC: Tensor,
        context_BMC: Tensor | None = None,
        *,
        keep: Tensor | None = None,
        context_keep: Tensor | None = None,
    ) -> Tensor:
        x = filled(x_BNC, keep)
        for block in self.blocks:
            x = block(x, context_BMC, keep=keep, context_keep=context_keep)
        return self.norm(x)

    def start(self, batch: int, *, context: Tensor | None = None, context_keep: Tensor | None = None) -> Streamed:
        """The state before the first token; the context is prepared once."""
        return Streamed(
            tuple(block.start(batch, context=context, context_keep=context_keep) for block in self.blocks), 0
        )

    def stream(self, x_BNC: Tensor, state: Streamed, *, keep: Tensor | None = None) -> tuple[Tensor, Streamed]:
        """Some more tokens and the state after the earlier ones -> their outputs and the next state."""
        x, after = filled(x_BNC, keep), []
        for block, states in zip(self.blocks, state.layers, strict=True):
            x, states = block.stream(x, states, keep=keep)
            after.append(states)
        return self.norm(x), Streamed(tuple(after), state.position + x.shape[1])


class Embedding(nn.Module):
    """Tokens and where they stand: (B, N) -> (B, N, C). Padding takes no position, and its number does not matter.

    "sinusoidal" and "none" work at any length, beyond those of training too; "learned" has `max_length` positions.
    """

    def __init__(
        self, vocabulary: int, *, dim: int, positions: Positions, max_length: int | None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        require_positive(vocabulary=vocabulary, dim=dim)
        require_rate(dropout=dropout)
        if positions not in get_args(Positions):
            raise ValueError(f"positions is one of {', '.join(map(repr, get_args(Positions)))}, not {positions!r}")
        if positions == "sinusoidal" and dim % 2:
            raise ValueError(f"sinusoidal positions need an even dim, not {dim}; or take positions='learned'")
        self.positions, self.dim = positions, dim
        self.tokens = nn.Embedding(vocabulary, dim)
        nn.init.normal_(self.tokens.weight, std=dim**-0.5)
        self.learned: nn.Embedding | None = None
        if positions == "learned":
            if max_length is None:
                raise ValueError("positions='learned' needs max_length=; or take positions='sinusoidal'")
            require_positive(max_length=max_length)
            self.learned = nn.Embedding(max_length, dim)
            nn.init.normal_(self.learned.weight, std=0.5**0.5)  # as strong as sinusoids
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, tokens_BN: Tensor, *, keep: Tensor | None = None, before: int = 0, padding_B: Tensor | None = None
    ) -> Tensor:
        """`before` tokens came earlier, `padding_B` of them padding."""
        check_ids(tokens_BN)
        self.require_room(before + tokens_BN.shape[1])
        if keep is not None:
            check_keep(keep, tokens_BN.shape[0], tokens_BN.shape[1], tokens_BN.device)
            tokens_BN = tokens_BN.masked_fill(~keep, 0)
        x = self.tokens(tokens_BN) * self.dim**0.5
        if self.positions != "none":
            place_BN = places(tokens_BN, keep=keep, before=before, padding_B=padding_B)
            x = x + (sinusoids(place_BN, self.dim, x.dtype) if self.learned is None else self.learned(place_BN))
        return self.dropout(x)

    def require_room(self, length: int) -> None:
        if self.learned is not None and length > self.learned.num_embeddings:
            raise ValueError(
                f"max_length={self.learned.num_embeddings} is too short for {length} tokens; build with a larger one, "
                "or with positions='sinusoidal', which has no limit"
            )

    def extra_repr(self) -> str:
        return f"positions={self.positions}"


class Progress(NamedTuple):
    """A language model's state: its decoder's, and how many of the tokens so far were padding."""

    decoder: Streamed
    padding_B: Tensor | None


class LanguageModel(nn.Module):
    """The logits of each next token: (B, N) -> (B, N, V), given a context (B, M, C) where `cross` is named."""

    def __init__(
        self,
        vocabulary: int,
        mixer: Choices = "softmax",
        *,
        cross: Choices | None = None,
        dim: int,
        layers: int,
        heads: int = 8,
        head_dim: int | None = None,
        max_length: int | None = None,
        positions: Positions = "sinusoidal",
        tied: bool = False,
        hidden: int | None = None,
        activation: str = "relu",
        norm: Norm = "pre",
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        require_bool(tied=tied)
        self.embedding = Embedding(vocabulary, dim=dim, positions=positions, max_length=max_length, dropout=dropout)
        self.decoder = Decoder(
            mixer,
            cross=cross,
            dim=dim,
            layers=layers,
            heads=heads,
            head_dim=head_dim,
            max_length=max_length,
            hidden=hidden,
            activation=activation,
            norm=norm,
            dropout=dropout,
            drop_path=drop_path,
        )
        self.output = None if tied else nn.Linear(dim, vocabulary, bias=False)

    def forward(
        self,
        tokens_BN: Tensor,
        context_BMC: Tensor | None = None,
        *,
        keep: Tensor | None = None,
        context_keep: Tensor | None = None,
    ) -> Tensor:
        x = self.embedding(tokens_BN, keep=keep)
        return self.logits(self.decoder(x, context_BMC, keep=keep, context_keep=context_keep))

    def start(self, batch: int, *, context: Tensor | None = None, context_keep: Tensor | None = None) -> Progress:
        """The state before the first token; the context is prepared once."""
        return Progress(self.decoder.start(batch, context=context, context_keep=context_keep), None)

    def stream(self, tokens_BN: Tensor, state: Progress, *, keep: Tensor | None = None) -> tuple[Tensor, Progress]:
        """Some more tokens and the state after the earlier ones -> their logits and the next state."""
        y, state = self.read(tokens_BN, state, keep)
        return self.logits(y), state

    @torch.no_grad()
    def generate(
        self,
        prompt_BN: Tensor,
        context_BMC: Tensor | None = None,
        *,
        length: int,
        stop: int | None = None,
        temperature: float = 0.0,
        top_k: int | None = None,
        generator: Generator | None = None,
        keep: Tensor | None = None,
        context_keep: Tensor | None = None,
    ) -> Tensor:
        """At most `length` more tokens for each item; nothing is computed twice.

        The likeliest at temperature 0, else drawn from the softmax of logits / temperature, of the `top_k` likeliest if
        given. What follows an item's `stop` token is `stop` again; when all have ended, there are no more columns.
        Prompts of several lengths are padded on the left.
        """
        check_ids(prompt_BN)
        require_positive(length=length)
        check_sampling(self.embedding.tokens.num_embeddings, stop, temperature, top_k, generator)
        self.embedding.require_room(prompt_BN.shape[1] + length - 1)
        require_eval(self)
        if keep is not None:
            check_keep(keep, prompt_BN.shape[0], prompt_BN.shape[1], prompt_BN.device)
            if not keep[:, -1].all():
                raise ValueError("the next token follows a prompt's last one, which must be real: pad on the left")
        state = self.start(prompt_BN.shape[0], context=context_BMC, context_keep=context_keep)
        y, state = self.read(prompt_BN, state, keep)
        ended_B = torch.zeros_like(prompt_BN[:, 0], dtype=torch.bool)
        found: list[Tensor] = []
        while True:
            token_B = pick(self.logits(y[:, -1]), temperature, top_k, generator)
            if stop is not None:
                token_B = token_B.masked_fill(ended_B, stop)
                ended_B = ended_B | (token_B == stop)
            found.append(token_B)
            if len(found) == length or (stop is not None and ended_B.all()):
                return torch.stack(found, 1)
            y, state = self.read(token_B[:, None], state)

    def read(self, tokens_BN: Tensor, state: Progress, keep: Tensor | None = None) -> tuple[Tensor, Progress]:
        """What `stream` makes logits of."""
        before, padding_B = state.decoder.position, state.padding_B
        x = self.embedding(tokens_BN, keep=keep, before=before, padding_B=padding_B)
        if keep is not None:
            padding_B = (~keep).sum(1) if padding_B is None else padding_B + (~keep).sum(1)
        y, decoder = self.decoder.stream(x, state.decoder, keep=keep)
        return y, Progress(decoder, padding_B)

    def logits(self, y: Tensor) -> Tensor:
        return linear(y, self.embedding.tokens.weight) if self.output is None else self.output(y)


class Seq2Seq(nn.Module):
    """The logits of each next target token, given the source: (B, M), (B, N) -> (B, N, V)."""

    def __init__(
        self,
        source: int,
        target: int,
        *,
        encoder: Choices = "softmax",
        decoder: Choices = "softmax",
        cross: Choices = "softmax",
        dim: int,
        encoder_layers: int,
        decoder_layers: int,
        heads: int = 8,
        head_dim: int | None = None,
        max_length: int | None = None,
        positions: Positions = "sinusoidal",
        tied: bool = False,
        hidden: int | None = None,
        activation: str = "relu",
        norm: Norm = "pre",
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.embedding = Embedding(source, dim=dim, positions=positions, max_length=max_length, dropout=dropout)
        self.encoder = Encoder(
            encoder,
            dim=dim,
            layers=encoder_layers,
            heads=heads,
            head_dim=head_dim,
            max_length=max_length,
            hidden=hidden,
            activation=activation,
            norm=norm,
            dropout=dropout,
            drop_path=drop_path,
        )
        self.decoder = LanguageModel(
            target,
            decoder,
            cross=cross,
            dim=dim,
            layers=decoder_layers,
            heads=heads,
            head_dim=head_dim,
            max_length=max_length,
            positions=positions,
            tied=tied,
            hidden=hidden,
            activation=activation,
            norm=norm,
            dropout=dropout,
            drop_path=drop_path,
        )

    def forward(
        self,
        source_BM: Tensor,
        target_BN: Tensor,
        *,
        source_keep: Tensor | None = None,
        target_keep: Tensor | None = None,
    ) -> Tensor:
        context = self.encode(source_BM, source_keep)
        return self.decoder(target_BN, context, keep=target_keep, context_keep=source_keep)

    def encode(self, source_BM: Tensor, source_keep: Tensor | None = None) -> Tensor:
        return self.encoder(self.embedding(source_BM, keep=source_keep), keep=source_keep)

    def start(self, source_BM: Tensor, *, source_keep: Tensor | None = None) -> Progress:
        """The state before the first target token; the source is encoded once."""
        context = self.encode(source_BM, source_keep)
        return self.decoder.start(source_BM.shape[0], context=context, context_keep=source_keep)

    def stream(
        self, target_BN: Tensor, state: Progress, *, target_keep: Tensor | None = None
    ) -> tuple[Tensor, Progress]:
        return self.decoder.stream(target_BN, state, keep=target_keep)

    @torch.no_grad()
    def generate(
        self,
        source_BM: Tensor,
        *,
        begin: int,
        length: int,
        stop: int | None = None,
        temperature: float = 0.0,
        top_k: int | None = None,
        generator: Generator | None = None,
        source_keep: Tensor | None = None,
    ) -> Tensor:
        """At most `length` target tokens after the token `begin`, as `LanguageModel.generate` says."""
        check_token(self.decoder.embedding.tokens.num_embeddings, begin=begin)
        require_eval(self)
        context = self.encode(source_BM, source_keep)
        return self.decoder.generate(
            source_BM.new_full((source_BM.shape[0], 1), begin),
            context,
            length=length,
            stop=stop,
            temperature=temperature,
            top_k=top_k,
            generator=generator,
            context_keep=source_keep,
        )


def filled(x_BNC: Tensor, keep: Tensor | None) -> Tensor:
    """Zeros where padding stood, so that no gradient passes through what stood there."""
    if keep is None:
        return x_BNC
    check_keep(keep, x_BNC.shape[0], x_BNC.shape[1], x_BNC.device)
    return x_BNC.masked_fill(~keep[:, :, None], 0)


def rising(rate: float, layers: int) -> Iterable[float]:
    """Later layers are left out more often, the last with the whole rate."""
    require_rate(drop_path=rate)
    return [rate * (n + 1) / layers for n in range(layers)]


def require_eval(model: nn.Module) -> None:
    if model.training:
        raise ValueError("the model is in training mode, where dropout would change what it says; call eval() first")


def check_ids(tokens_BN: Any) -> None:
    if not isinstance(tokens_BN, Tensor):
        raise TypeError(f"tokens must be a tensor of shape (batch, length), not {type(tokens_BN).__name__}")
    if tokens_BN.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"tokens must be whole numbers, int64 or int32, not {tokens_BN.dtype}")
    if tokens_BN.dim() != 2 or not tokens_BN.numel():
        raise ValueError(f"tokens must have shape (batch, length), neither of them 0, not {tuple(tokens_BN.shape)}")
