"""Encoder, decoder, language model and sequence-to-sequence model of every mechanism."""

import copy
import pickle
from functools import partial

import pytest
import torch
from safetensors.torch import load, save
from torch.nn.functional import cross_entropy
from torch.testing import assert_close
from torch.utils._pytree import tree_map

import anyformer as af
from anyformer.card import find, specs
from anyformer.models.transformer import Decoder, Encoder, LanguageModel, Seq2Seq

V, DIM, N, M = 11, 16, 12, 15
ALL = ["softmax", "linear", "performer:relu"]


def fact(spec):
    entry, variant = find(spec)
    return entry.card.of(variant)


ENCODING = [spec for spec in specs() if fact(spec).causal != "only"]
DECODING = [spec for spec in specs() if fact(spec).causal != "no"]
CROSSING = [spec for spec in specs() if fact(spec).causal != "only" and fact(spec).cross]
STREAMING = [spec for spec in DECODING if fact(spec).stream == "exact"]
PADDED = [spec for spec in DECODING if fact(spec).padding]


def choice(spec, length=M):
    """By name where a model knows all that the mechanism needs, else as a function."""
    if "grid" in fact(spec).tiny:
        return partial(af.build, spec, heads=2, grid=(3, length // 3))
    if "window" in fact(spec).tiny and fact(spec).slot == "attention":
        return partial(af.build, spec, heads=2, window=5)
    return spec


def seq2seq(encoder="softmax", decoder="softmax", cross="softmax", **options):
    torch.manual_seed(0)
    sizes = {"dim": DIM, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, "max_length": 40}
    return Seq2Seq(V, V + 2, encoder=encoder, decoder=decoder, cross=cross, **{**sizes, **options}).double().eval()


def language_model(mixer="softmax", **options):
    torch.manual_seed(0)
    sizes = {"dim": DIM, "heads": 2, "layers": 2, "max_length": 40}
    return LanguageModel(V, mixer, **{**sizes, **options}).double().eval()


def ids(length, batch=3, seed=1):
    return torch.randint(0, V, (batch, length), generator=torch.Generator().manual_seed(seed))


def right(length, batch=3):
    """The first item is whole, each later one loses two tokens more."""
    return torch.arange(length)[None] < length - 2 * torch.arange(batch)[:, None]


# Every mechanism in every place


def learns(model, *inputs, **masks):
    """Forward and backward: all parameters take part."""
    model.float().train()
    logits = model(*inputs, **masks)
    cross_entropy(logits.flatten(0, 1), ids(logits.shape[1], seed=9).flatten()).backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name
    unused = [name for name, weight in model.named_parameters() if not weight.grad.any()]
    assert not unused


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("spec", ENCODING)
def test_as_the_encoders_mixer(spec, norm):
    learns(seq2seq(encoder=choice(spec), norm=norm), ids(M), ids(N), source_keep=right(M), target_keep=right(N))


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("spec", DECODING)
def test_as_the_decoders_mixer(spec, norm):
    learns(seq2seq(decoder=choice(spec), norm=norm), ids(M), ids(N), source_keep=right(M), target_keep=right(N))


@pytest.mark.parametrize("spec", CROSSING)
def test_as_cross_attention(spec):
    learns(seq2seq(cross=choice(spec)), ids(M), ids(N), source_keep=right(M), target_keep=right(N))


@pytest.mark.parametrize("spec", DECODING)
def test_as_a_language_models_mixer(spec):
    learns(language_model(choice(spec)), ids(N), keep=right(N))


@pytest.mark.parametrize("spec", sorted(set(specs()) - set(DECODING)))
def test_only_causal_mechanisms_decode(spec):
    for make in (lambda: seq2seq(decoder=spec), lambda: language_model(spec)):
        with pytest.raises(ValueError, match=r"the decoder's mixer .* cannot be causal; these can: .*\bsoftmax\b"):
            make()


@pytest.mark.parametrize("spec", sorted(set(specs()) - set(CROSSING)))
def test_only_mechanisms_with_cross_attention_cross(spec):
    with pytest.raises(ValueError, match=r"cross .* has no cross-attention; these have: .*\bsoftmax\b"):
        seq2seq(cross=spec)


def test_mechanisms_by_layer():
    model = seq2seq(
        encoder=["linear", "softmax"],
        decoder=["performer:relu", partial(af.build, "local", heads=2, window=3)],
        cross=["softmax", "linear"],
    )
    kinds = [
        [type(block.mixer.core).__name__ for block in part.blocks] for part in (model.encoder, model.decoder.decoder)
    ]
    assert kinds == [["Linear", "Softmax"], ["Performer", "Local"]]
    assert [type(block.cross.core).__name__ for block in model.decoder.decoder.blocks] == ["Softmax", "Linear"]
    learns(model, ids(M), ids(N), source_keep=right(M))


def test_embeddings_are_dropped_out_in_training_only():
    embedding = language_model(dropout=0.5).embedding
    assert torch.equal(embedding(ids(N)), embedding(ids(N)))
    assert (embedding.train()(ids(N)) == 0).any()


def test_drop_path_rises_to_its_rate():
    model = Encoder(dim=DIM, heads=2, layers=4, drop_path=0.2)
    assert [block.drop_path.rate for block in model.blocks] == pytest.approx([0.05, 0.1, 0.15, 0.2])


# Order and batch


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spec", DECODING)
def test_the_future_does_not_show(spec, dtype):
    cross = spec if spec in CROSSING else "softmax"
    lm, s2s = language_model(choice(spec)).to(dtype), seq2seq(decoder=choice(spec), cross=cross).to(dtype)
    tokens, source = ids(N), ids(M, seed=2)
    other = tokens.clone()
    other[:, 8:] = (other[:, 8:] + 1 + ids(N - 8, seed=3) % (V - 1)) % V
    with torch.no_grad():
        assert torch.equal(lm(tokens)[:, :8], lm(other)[:, :8])
        assert torch.equal(s2s(source, tokens)[:, :8], s2s(source, other)[:, :8])
        assert not torch.equal(lm(tokens)[:, 8:], lm(other)[:, 8:])


@pytest.mark.parametrize("spec", ALL)
def test_items_do_not_see_each_other(spec):
    model, source, target, keep = seq2seq(spec, spec, spec), ids(M), ids(N, seed=2), right(M)
    with torch.no_grad():
        whole = model(source, target, source_keep=keep)
        for item in range(3):
            one = slice(item, item + 1)
            assert_close(model(source[one], target[one], source_keep=keep[one]), whole[one])


# Padding


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "none"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("spec", [spec for spec in CROSSING if spec in PADDED and not fact(spec).order])
def test_padding_is_as_if_it_were_not_there(spec, side, positions):
    model = seq2seq(spec, spec, spec, positions=positions)
    source, target = ids(M, 2), ids(N, 2, seed=2)
    source_keep, target_keep = right(M, 2), right(N, 2)
    if side == "left":
        source_keep, target_keep = source_keep.flip(1), target_keep.flip(1)
    with torch.no_grad():
        found = model(source, target, source_keep=source_keep, target_keep=target_keep)
        for item in range(2):
            real = [t[item][keep[item]][None] for t, keep in ((source, source_keep), (target, target_keep))]
            assert_close(found[item][target_keep[item]][None], model(*real))


@pytest.mark.parametrize("spec", PADDED)
def test_what_stands_at_padding_does_not_matter(spec):
    """Not the token, be it none at all, nor its embedding; gradients included."""
    encoder, cross = (spec if spec in able else "softmax" for able in (ENCODING, CROSSING))
    model = seq2seq(choice(encoder), choice(spec), cross, tied=False)
    source, target = ids(M), ids(N, seed=2)
    source_keep, target_keep = right(M), right(N)

    def outcome(fill):
        a, b = source.masked_fill(~source_keep, fill), target.masked_fill(~target_keep, fill)
        logits = model(a, b, source_keep=source_keep, target_keep=target_keep)[target_keep]
        return [logits, *torch.autograd.grad(logits.square().mean(), list(model.parameters()))]

    first = outcome(1)
    for expected, found in zip(first, outcome(-100), strict=True):
        assert torch.equal(expected, found)
    source[source == 0], target[target == 0] = 1, 1  # what stands in for padding from here on
    first = outcome(1)
    with torch.no_grad():
        model.embedding.tokens.weight[0] = torch.nan
        model.decoder.embedding.tokens.weight[0] = torch.nan
    for expected, found in zip(first, outcome(0), strict=True):
        assert torch.equal(expected, found)


@pytest.mark.parametrize("part", [Encoder, Decoder])
def test_nan_at_padding_stays_there(part):
    torch.manual_seed(0)
    model = part("linear", dim=DIM, heads=2, layers=2).double()
    keep = right(N)
    x = torch.randn(3, N, DIM, dtype=torch.float64)
    clean = model(x, keep=keep)
    x = x.masked_fill(~keep[:, :, None], torch.nan).requires_grad_()
    found = model(x, keep=keep)
    assert torch.equal(found, clean)
    found[keep].square().mean().backward()
    assert all(weight.grad.isfinite().all() for weight in (x, *model.parameters()))


def test_the_sources_padding_reaches_cross_attention():
    model, source, target = seq2seq(), ids(M), ids(N, seed=2)
    context = model.encode(source, right(M))
    expected = model.decoder(target, context[:, : M - 4], context_keep=right(M)[:, : M - 4])
    found = model(source, target, source_keep=right(M))
    assert_close(found[2], expected[2])
    assert not torch.allclose(found[2], model.decoder(target, context)[2])


# Positions


@pytest.mark.parametrize("positions", ["sinusoidal", "none"])
def test_positions_that_work_at_any_length(positions):
    model = seq2seq(positions=positions, max_length=None)
    assert model(ids(500, 1), ids(300, 1)).shape == (1, 300, V + 2)


def test_learned_positions_have_an_end():
    model = language_model(positions="learned", max_length=9)
    assert model(ids(9)).shape == (3, 9, V)
    with pytest.raises(ValueError, match=r"max_length=9 is too short for 10 tokens; .* positions='sinusoidal'"):
        model(ids(10))
    _, state = model.stream(ids(7), model.start(3))
    with pytest.raises(ValueError, match="max_length=9 is too short for 10 tokens"):
        model.stream(ids(3), state)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "none"])
def test_only_without_positions_does_order_not_show(positions):
    model, tokens = seq2seq(positions=positions), ids(M, 1)
    turned = model(tokens.flip(1), ids(N, 1))
    assert torch.allclose(turned, model(tokens, ids(N, 1))) == (positions == "none")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"positions": "rotary"}, "positions is one of 'sinusoidal', 'learned', 'none', not 'rotary'"),
        ({"positions": "learned", "max_length": None}, "positions='learned' needs max_length="),
        ({"dim": 15, "heads": 3}, "sinusoidal positions need an even dim, not 15"),
    ],
)
def test_positions_that_make_no_sense(options, says):
    with pytest.raises(ValueError, match=says):
        language_model(**options)


# Streaming


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "none"])
@pytest.mark.parametrize("spec", STREAMING)
def test_streamed_equals_whole(spec, positions):
    cross = spec if spec in CROSSING else "softmax"
    model = seq2seq(decoder=choice(spec), cross=cross, positions=positions)
    source, target, keep = ids(M), ids(N, seed=2), right(N).flip(1)
    keep[1, 6:8] = False
    with torch.no_grad():
        whole = model(source, target, source_keep=right(M), target_keep=keep)
        state, outputs = model.start(source, source_keep=right(M)), []
        for chunk, kept in zip(target.split([5, 1, 4, 2], 1), keep.split([5, 1, 4, 2], 1), strict=True):
            y, state = model.stream(chunk, state, target_keep=None if kept.all() else kept)
            outputs.append(y)
    assert state.decoder.position == N
    assert state.padding_B.tolist() == [0, 4, 4]
    assert_close(torch.cat(outputs, 1)[keep], whole[keep])


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("spec", STREAMING)
def test_a_decoder_streams_too(spec, norm):
    torch.manual_seed(0)
    model = Decoder(choice(spec), cross="linear", dim=DIM, heads=2, layers=2, norm=norm).double().eval()
    x, context = torch.randn(2, N, DIM).double(), torch.randn(2, M, DIM).double()
    with torch.no_grad():
        first, state = model.stream(x[:, :7], model.start(2, context=context))
        second, state = model.stream(x[:, 7:], state)
    assert_close(torch.cat([first, second], 1), model(x, context))
    assert state.position == N


@pytest.mark.parametrize("spec", STREAMING)
def test_a_state_is_a_value(spec):
    """An old one stays valid; items can be put into another order."""
    model, tokens = language_model(choice(spec)), ids(N)
    with torch.no_grad():
        _, old = model.stream(tokens[:, :5], model.start(3), keep=right(5).flip(1))
        first, new = model.stream(tokens[:, 5:], old)
        model.stream(tokens[:, 5:].flip(1), old)
        again, _ = model.stream(tokens[:, 5:], old)
        order = torch.tensor([2, 0, 0, 1])
        turned = tree_map(lambda leaf: leaf[order] if isinstance(leaf, torch.Tensor) else leaf, old)
        beams, _ = model.stream(tokens[order, 5:], turned)
    assert torch.equal(first, again)
    assert_close(beams, first[order])
    assert (old.decoder.position, new.decoder.position) == (5, N)


@pytest.mark.parametrize("spec", sorted(set(DECODING) - set(STREAMING)))
def test_who_does_not_stream_says_so_at_the_start(spec):
    with pytest.raises(ValueError, match=r"does not stream; these do: .*softmax"):
        language_model(choice(spec)).start(2)
    with pytest.raises(ValueError, match=r"does not stream; these do: .*softmax"):
        seq2seq(decoder=choice(spec)).generate(ids(M), begin=1, length=3)


# Weights and copies


@pytest.mark.parametrize("tied", [False, True])
def test_tied_logits_share_the_embedding(tied):
    model = seq2seq(tied=tied)
    assert sum(weight.shape == (V + 2, DIM) for weight in model.parameters()) == 2 - tied


def test_embeddings_and_tied_logits_start_with_about_unit_variance():
    torch.manual_seed(0)
    model = LanguageModel(500, dim=256, layers=1, tied=True, positions="none")
    tokens = torch.randint(0, 500, (4, 50))
    others = torch.ones(4, 50, 500).scatter(2, tokens[..., None], 0).bool()  # its own embedding is still in a token
    assert model.embedding(tokens).std().item() == pytest.approx(1, abs=0.05)
    assert model(tokens)[others].std().item() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("spec", ALL)
def test_copies(spec, tied):
    model, source, target = seq2seq(spec, spec, spec, tied=tied), ids(M), ids(N)
    expected = model(source, target)
    loaded = seq2seq(spec, spec, spec, tied=tied)
    for weight in loaded.state_dict().values():
        weight.zero_()
    loaded.load_state_dict(load(save(model.state_dict())))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), loaded):
        assert torch.equal(other(source, target), expected)
        learns(other, source, target)  # tied weights are still tied: none is unused
        assert len(list(other.parameters())) == len(list(model.parameters()))


@pytest.mark.parametrize("spec", ["softmax", "linear"])
def test_on_another_device(spec):
    """Without data, but any move to the CPU would fail."""
    model = seq2seq(spec, spec, spec).to("meta")
    source, target = ids(M).to("meta"), ids(N).to("meta")
    logits = model(source, target, source_keep=right(M).to("meta"), target_keep=right(N).to("meta"))
    assert logits.device.type == "meta"
    assert logits.shape == (3, N, V + 2)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("spec", [*ALL, "performer"])
def test_bfloat16_autocast(spec, norm):
    model, source, target = seq2seq(spec, spec, spec, norm=norm).float(), ids(M), ids(N, seed=2)
    expected = model(source, target, source_keep=right(M))
    with torch.autocast("cpu", torch.bfloat16):
        found = model(source, target, source_keep=right(M))
        chosen = model.generate(source, begin=1, length=4, source_keep=right(M))
        learns(model, source, target, source_keep=right(M))
    assert found.dtype == torch.bfloat16
    assert chosen.shape == (3, 4)
    assert_close(found.float(), expected, rtol=0, atol=0.1)


def test_in_bfloat16_altogether():
    model, source, target = seq2seq(), ids(M), ids(N, seed=2)
    assert_close(model.to(torch.bfloat16)(source, target).double(), seq2seq()(source, target), rtol=0, atol=0.1)


@pytest.mark.parametrize(
    ("tokens", "error", "says"),
    [
        ([[1, 2]], TypeError, "tokens must be a tensor of shape \\(batch, length\\), not list"),
        (torch.zeros(2, 3), ValueError, "tokens must be whole numbers, int64 or int32, not torch.float32"),
        (torch.zeros(3, dtype=torch.int64), ValueError, "shape \\(batch, length\\), neither of them 0, not \\(3,\\)"),
        (torch.zeros(2, 0, dtype=torch.int64), ValueError, "not \\(2, 0\\)"),
    ],
)
def test_tokens_that_make_no_sense(tokens, error, says):
    with pytest.raises(error, match=says):
        language_model()(tokens)
    with pytest.raises(error, match=says):
        language_model().generate(tokens, length=1)


def test_masks_that_make_no_sense():
    with pytest.raises(ValueError, match=r"keep must have shape \(3, 12\)"):
        language_model()(ids(N), keep=right(M))
    with pytest.raises(ValueError, match="keep must be bool"):
        language_model().generate(ids(N), length=1, keep=right(N).long())
    with pytest.raises(ValueError, match="takes no context"):
        language_model()(ids(N), torch.zeros(3, M, DIM).double())


def test_int32_tokens():
    model = language_model()
    assert torch.equal(model(ids(N).int()), model(ids(N)))
    assert torch.equal(model.generate(ids(N).int(), length=3, stop=1), model.generate(ids(N), length=3, stop=1))
