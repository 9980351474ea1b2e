"""What models say."""

from functools import partial

import pytest
import torch

import anyformer as af
from anyformer.models.generate import pick
from anyformer.models.transformer import LanguageModel, Seq2Seq

V, DIM, M, LENGTH = 29, 16, 13, 20
LOCAL = partial(af.build, "local", heads=2, window=4)
SELF = {"softmax": "softmax", "linear": "linear", "relu": "performer:relu", "positive": "performer", "local": LOCAL}


def language_model(mixer="softmax", **options):
    torch.manual_seed(0)
    return LanguageModel(V, mixer, **{"dim": DIM, "heads": 2, "layers": 2, **options}).double().eval()


def seq2seq(decoder="softmax", cross="softmax", **options):
    torch.manual_seed(1)
    sizes = {"dim": DIM, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, "decoder": decoder, "cross": cross}
    return Seq2Seq(V, V, **{**sizes, **options}).double().eval()


def ids(length, batch=3, seed=1):
    return torch.randint(0, V, (batch, length), generator=torch.Generator().manual_seed(seed))


def right(length, batch=3):
    return torch.arange(length)[None] < length - 2 * torch.arange(batch)[:, None]


def same_as_recomputed(generate, logits, tokens):
    """The likeliest tokens and drawn ones, which differ more, are those of a whole pass for each token."""
    for temperature in (0.0, 1.0):
        drawn = [torch.Generator().manual_seed(0) for _ in range(2)] if temperature else [None, None]
        found, whole = generate(temperature=temperature, generator=drawn[0]), tokens
        for _ in range(LENGTH):
            with torch.no_grad():
                new = pick(logits(whole)[:, -1], temperature, None, drawn[1])
            whole = torch.cat([whole, new[:, None]], 1)
        assert torch.equal(found, whole[:, -LENGTH:])
    assert len(found.unique()) > V / 2


@pytest.mark.parametrize("mixer", SELF.values(), ids=SELF)
def test_a_language_model_says_what_recomputing_says(mixer):
    model, prompt = language_model(mixer), ids(9)
    same_as_recomputed(partial(model.generate, prompt, length=LENGTH), model, prompt)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("cross", ["softmax", "linear", "performer", "performer:relu"])
@pytest.mark.parametrize("mixer", SELF.values(), ids=SELF)
def test_a_seq2seq_model_says_what_recomputing_says(mixer, cross, padded):
    model, source = seq2seq(mixer, cross), ids(M)
    keep = right(M) if padded else None
    generate = partial(model.generate, source, begin=2, length=LENGTH, source_keep=keep)
    same_as_recomputed(generate, lambda target: model(source, target, source_keep=keep), torch.full((3, 1), 2))


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "none"])
@pytest.mark.parametrize("mixer", SELF.values(), ids=SELF)
def test_prompts_of_several_lengths_are_padded_on_the_left(mixer, positions):
    model, prompt, keep = language_model(mixer, positions=positions, max_length=30), ids(9), right(9).flip(1)
    found = model.generate(prompt, length=LENGTH, keep=keep)
    for item in range(3):
        alone = prompt[item][keep[item]][None]
        assert torch.equal(found[[item]], model.generate(alone, length=LENGTH))
    with pytest.raises(ValueError, match="pad on the left"):
        model.generate(prompt, length=LENGTH, keep=right(9))


def test_nothing_is_computed_twice():
    model, passes = seq2seq(decoder="linear"), []
    for name in ("encoder.blocks.0.mixer", "decoder.decoder.blocks.0.cross.k", "decoder.decoder.blocks.0.mixer.k"):
        part = model.get_submodule(name)
        part.register_forward_hook(lambda part, given, _, name=name: passes.append((name, given[0].shape[1])))
    model.generate(ids(M), begin=2, length=6)
    each = ("decoder.decoder.blocks.0.mixer.k", 1)
    assert passes == [("encoder.blocks.0.mixer", M), ("decoder.decoder.blocks.0.cross.k", M), *[each] * 6]


def test_a_prompt_is_one_chunk_and_only_its_end_becomes_logits():
    model, passes = language_model(), []
    for part in (model.decoder.blocks[0].mixer.k, model.output):
        part.register_forward_hook(lambda part, given, _: passes.append(tuple(given[0].shape[:-1])))
    model.generate(ids(9), length=3)
    assert passes == [(3, 9), (3,), (3, 1), (3,), (3, 1), (3,)]


# Ends


def test_items_end_at_their_stop_token():
    model, prompt = language_model(), ids(9)
    free = model.generate(prompt, length=LENGTH)
    stop = free[0, 4].item()
    found = model.generate(prompt, length=LENGTH, stop=stop)
    assert found.shape[1] <= LENGTH
    ends = []
    for row, unstopped in zip(found.tolist(), free.tolist(), strict=True):
        ends.append(unstopped.index(stop) + 1 if stop in unstopped else LENGTH)
        assert row == (unstopped[: ends[-1]] + [stop] * LENGTH)[: found.shape[1]]
    assert len(set(ends)) > 1, "all items end together, which tests nothing"
    assert found.shape[1] == max(ends)
    first = model.generate(prompt[:1], length=LENGTH, stop=stop)
    assert first.tolist() == [free[0, : ends[0]].tolist()]  # no column after all have ended


@pytest.mark.parametrize("length", [1, 2, 7])
def test_no_more_tokens_than_asked_for(length):
    assert language_model().generate(ids(9), length=length).shape == (3, length)
    assert seq2seq().generate(ids(M), begin=0, length=length).shape == (3, length)


def test_learned_positions_must_reach_to_the_end():
    model = language_model(positions="learned", max_length=12)
    assert model.generate(ids(9), length=4).shape == (3, 4)  # the last one is said, not read
    with pytest.raises(ValueError, match="max_length=12 is too short for 13 tokens"):
        model.generate(ids(9), length=5)


# Sampling


def test_sampling_is_what_the_seed_says():
    model, prompt = language_model(), ids(9)

    def drawn(seed, **options):
        return model.generate(prompt, length=8, generator=torch.Generator().manual_seed(seed), **options)

    assert torch.equal(drawn(0, temperature=1.0), drawn(0, temperature=1.0))
    assert not torch.equal(drawn(0, temperature=1.0), drawn(1, temperature=1.0))
    greedy = model.generate(prompt, length=8)
    assert torch.equal(drawn(0, temperature=1.0, top_k=1), greedy)
    assert torch.equal(drawn(0, temperature=1e-4), greedy)


@pytest.mark.parametrize("top_k", [None, 3, 6])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_as_often_as_their_probability(temperature, top_k):
    logits = torch.tensor([0.3, -1.0, 2.0, 1.0, -3.0, 0.0])
    likeliest = logits.topk(top_k or 6).indices
    expected = torch.zeros(6)
    expected[likeliest] = (logits[likeliest] / temperature).softmax(-1)
    draws = pick(logits.expand(20_000, -1), temperature, top_k, torch.Generator().manual_seed(0))
    often = draws.bincount(minlength=6) / 20_000
    assert ((often - expected).abs() <= 4 * (expected * (1 - expected) / 20_000).sqrt()).all()


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"length": 0}, ValueError, "length must be at least 1"),
        ({"temperature": -1.0}, ValueError, "temperature must be finite and at least 0"),
        ({"temperature": float("inf")}, ValueError, "temperature must be finite"),
        ({"temperature": True}, TypeError, "temperature is a number"),
        ({"temperature": 1.0, "top_k": V + 1}, ValueError, f"top_k={V + 1} is more than the vocabulary of {V}"),
        ({"temperature": 1.0, "top_k": 0}, ValueError, "top_k must be at least 1"),
        ({"top_k": 3}, ValueError, "have no effect at temperature=0"),
        ({"generator": torch.Generator()}, ValueError, "have no effect at temperature=0"),
        ({"stop": V}, ValueError, f"stop={V} is no token of a vocabulary of {V}"),
        ({"stop": 1.0}, TypeError, "stop is the number of a token"),
    ],
)
def test_requests_that_make_no_sense(options, error, says):
    with pytest.raises(error, match=says):
        language_model().generate(ids(9), **{"length": 2, **options})
    with pytest.raises(error, match=says):
        seq2seq().generate(ids(9), begin=0, **{"length": 2, **options})


def test_begin_is_a_token():
    with pytest.raises(ValueError, match="begin=-1 is no token"):
        seq2seq().generate(ids(9), begin=-1, length=2)


def test_a_model_in_training_is_not_asked():
    for ask in (
        lambda: language_model().train().generate(ids(9), length=2),
        lambda: seq2seq().train().generate(ids(9), begin=0, length=2),
    ):
        with pytest.raises(ValueError, match=r"call eval\(\) first"):
            ask()
