"""Softmax models against torch.nn.Transformer with the same weights."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import anyformer as af
from anyformer.models.transformer import Seq2Seq
from anyformer.parts.positions import sinusoids

V, DIM, HEADS, HIDDEN, B, N, M = 13, 24, 4, 40, 3, 7, 11
BIASED = partial(af.build, "softmax", heads=HEADS, bias=True)


class Theirs(nn.Module):
    """torch's model between the same embeddings, sinusoids and logits."""

    def __init__(self, norm):
        super().__init__()
        self.source, self.target = nn.Embedding(V, DIM), nn.Embedding(V, DIM)
        self.inner = nn.Transformer(DIM, HEADS, 2, 3, HIDDEN, 0.0, batch_first=True, norm_first=norm == "pre")
        if norm == "post":  # the paper's has no further norm at the end
            self.inner.encoder.norm = self.inner.decoder.norm = None
        self.output = nn.Linear(DIM, V, bias=False)

    def forward(self, source, target, padding):
        source, target = (
            embed(t) * DIM**0.5 + sinusoids(torch.arange(t.shape[1])[None], DIM, torch.float64)
            for embed, t in ((self.source, source), (self.target, target))
        )
        future = torch.ones(target.shape[1], target.shape[1]).triu(1).bool()
        y = self.inner(source, target, tgt_mask=future, src_key_padding_mask=padding, memory_key_padding_mask=padding)
        return self.output(y)


def pairs(ours, theirs):
    """Each weight of ours with theirs."""
    yield ours.embedding.tokens.weight, theirs.source.weight
    yield ours.decoder.embedding.tokens.weight, theirs.target.weight
    yield ours.decoder.output.weight, theirs.output.weight
    stacks = (ours.encoder, theirs.inner.encoder), (ours.decoder.decoder, theirs.inner.decoder)
    for mine, other in stacks:
        if other.norm is not None:
            yield from both(mine.norm, other.norm)
        for block, layer in zip(mine.blocks, other.layers, strict=True):
            norms = [layer.norm1, layer.norm2]
            yield from attention(block.mixer, layer.self_attn)
            if block.cross is not None:
                yield from attention(block.cross, layer.multihead_attn)
                yield from both(block.cross_norm, norms.pop(1))
                norms.append(layer.norm3)
            yield from both(block.mixer_norm, norms[0])
            yield from both(block.channel_norm, norms[1])
            yield from both(block.channel.wider, layer.linear1)
            yield from both(block.channel.back, layer.linear2)


def both(mine, other):
    yield mine.weight, other.weight
    yield mine.bias, other.bias


def attention(mine, other):
    for n, part in enumerate((mine.q, mine.k, mine.v)):
        rows = slice(n * DIM, (n + 1) * DIM)
        yield part.weight, (other.in_proj_weight, rows)
        yield part.bias, (other.in_proj_bias, rows)
    yield from both(mine.out, other.out_proj)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("training", [False, True], ids=["eval", "training"])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_torch_transformer(norm, padded, training):
    torch.manual_seed(0)
    sizes = {"dim": DIM, "encoder_layers": 2, "decoder_layers": 3, "hidden": HIDDEN}
    ours = Seq2Seq(V, V, encoder=BIASED, decoder=BIASED, cross=BIASED, norm=norm, **sizes).double().train(training)
    theirs = Theirs(norm).double().train(training)
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.normal_(std=0.4)
        matched = list(pairs(ours, theirs))
        for mine, other in matched:
            mine.copy_(other[0][other[1]] if isinstance(other, tuple) else other)
    assert {id(mine) for mine, _ in matched} == {id(weight) for weight in ours.parameters()}

    source, target = torch.randint(0, V, (B, M)), torch.randint(0, V, (B, N))
    keep = torch.arange(M)[None] < M - 2 * torch.arange(B)[:, None]
    expected = theirs(source, target, ~keep if padded else None)
    found = ours(source, target, source_keep=keep if padded else None)
    assert_close(found, expected, rtol=1e-10, atol=1e-10)

    scale = torch.linspace(-1, 1, found.numel(), dtype=torch.float64).view_as(found).sin()
    (found * scale).sum().backward()
    (expected * scale).sum().backward()
    for mine, other in matched:
        wanted = other[0].grad[other[1]] if isinstance(other, tuple) else other.grad
        assert_close(mine.grad, wanted, rtol=1e-8, atol=1e-9)
