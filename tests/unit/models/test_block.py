"""The block, and who may fill its places."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import anyformer as af
from anyformer.models.block import Block, DropPath, FeedForward, mixers

SOFTMAX = partial(af.build, "softmax", dim=16, heads=2)


def tokens(batch=2, length=7, seed=1):
    return torch.randn(batch, length, 16, generator=torch.Generator().manual_seed(seed))


def choose(choices, *, layers=1, max_length=None, head_dim=None, **kind):
    return mixers(choices, "cross", layers, 16, 2, head_dim, max_length, **kind)


# The block


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_block_is_its_parts(norm):
    torch.manual_seed(0)
    block = Block(SOFTMAX(), cross=SOFTMAX(), norm=norm, activation="gelu").eval()
    x = expected = tokens()
    context = tokens(length=5, seed=2)
    changes = [
        (block.mixer, block.mixer_norm),
        (lambda y: block.cross(y, context), block.cross_norm),
        (lambda y: block.channel.back(nn.functional.gelu(block.channel.wider(y))), block.channel_norm),
    ]
    for change, ln in changes:
        expected = expected + change(ln(expected)) if norm == "pre" else ln(expected + change(expected))
    assert_close(block(x, context), expected)


@pytest.mark.parametrize(
    ("name", "values"),
    [("relu", [0.0, 0.0, 2.0]), ("gelu", [-0.15865525, 0.0, 1.9544997]), ("elu1", [0.36787944, 1.0, 3.0])],
)
def test_activations(name, values):
    layer = FeedForward(dim=1, hidden=1, activation=name)
    with torch.no_grad():
        layer.wider.weight.fill_(1)
        layer.back.weight.fill_(1)
        layer.wider.bias.zero_()
        layer.back.bias.zero_()
    assert_close(layer(torch.tensor([-1.0, 0.0, 2.0])[:, None])[:, 0], torch.tensor(values))


def test_hidden_is_four_times_the_width_unless_given():
    assert Block(SOFTMAX()).channel.wider.out_features == 64
    assert Block(SOFTMAX(), hidden=24).channel.wider.out_features == 24


def test_drop_path_leaves_out_whole_items_and_keeps_the_mean():
    torch.manual_seed(0)
    drop, y = DropPath(0.25), torch.ones(4000, 3, 2)
    dropped = drop(y)
    assert dropped.unique().tolist() == pytest.approx([0, 1 / 0.75])
    assert torch.equal(dropped.amin((1, 2)), dropped.amax((1, 2)))
    assert abs(dropped.mean() - 1) < 0.05
    assert drop.eval()(y) is y


def test_a_block_with_drop_path_passes_some_items_on_unchanged():
    torch.manual_seed(0)
    block, x = Block(SOFTMAX(), drop_path=0.7), tokens(40)
    same = (block(x) == x).all(2).all(1)
    assert 8 < same.sum() < 33  # 0.7 ** 2 of 40
    assert not (block.eval()(x) == x).all(2).all(1).any()


def test_dropout_acts_in_training_only():
    torch.manual_seed(0)
    x, block = tokens(), Block(SOFTMAX(), dropout=0.5)
    for layer in (copy.deepcopy(block.channel), block):
        block.channel.dropout.p = 0.0  # the block's own is left
        assert not torch.equal(layer(x), layer(x))
        assert torch.equal(layer.eval()(x), layer(x))


def test_a_context_is_for_blocks_with_cross_attention():
    x = tokens()
    with pytest.raises(ValueError, match="takes no context; name a cross mechanism"):
        Block(SOFTMAX())(x, x)
    with pytest.raises(ValueError, match="needs a context"):
        Block(SOFTMAX(), cross=SOFTMAX())(x)
    with pytest.raises(ValueError, match="needs a context"):
        Block(SOFTMAX(causal=True), cross=SOFTMAX()).start(2)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"norm": "middle"}, ValueError, "norm is 'pre' or 'post'"),
        ({"activation": "tanh"}, ValueError, "'relu', 'gelu', 'elu1', not 'tanh'"),
        ({"dropout": 1.0}, ValueError, "dropout must be at least 0 and below 1"),
        ({"dropout": True}, TypeError, "dropout is a number"),
        ({"drop_path": -0.1}, ValueError, "drop_path must be at least 0"),
        ({"drop_path": "0.1"}, TypeError, "drop_path is a number"),
        ({"hidden": 0}, ValueError, "hidden must be at least 1"),
    ],
)
def test_options_that_make_no_sense(options, error, says):
    with pytest.raises(error, match=says):
        Block(SOFTMAX(), **options)


# Who fills the places


def test_one_choice_stands_for_all_layers_and_none_is_shared():
    made = choose("linear", layers=3)
    assert [type(m.core).__name__ for m in made] == ["Linear"] * 3
    assert len({id(m) for m in made}) == 3


@pytest.mark.parametrize("sequence", [list, tuple])
def test_a_sequence_has_one_for_each_layer(sequence):
    window = partial(af.build, "local", heads=2, window=3)
    made = choose(sequence(["linear", "performer:relu", window]), layers=3, causal=True)
    assert [type(m.core).__name__ for m in made] == ["Linear", "Performer", "Local"]
    assert made[1].core.kind == "relu"
    assert made[2].core.window == 3
    assert all(m.causal for m in made)


def test_a_name_gets_the_options_that_it_has():
    linformer, lambdas, local = choose(["linformer", "lambda_layer", "lambda_layer:local"], layers=3, max_length=20)
    assert (linformer.core.heads, linformer.core.head_dim, linformer.core.max_length) == (2, 8, 20)
    assert (lambdas.heads, lambdas.max_length, local.heads, local.max_length) == (2, 20, 2, None)
    assert choose("softmax", head_dim=5)[0].core.head_dim == 5


@pytest.mark.parametrize(
    ("choices", "kind", "error", "says"),
    [
        (["linear"], {"layers": 2}, ValueError, "cross names 1 mechanisms for 2 layers"),
        ("linear", {"layers": 0}, ValueError, "layers must be at least 1"),
        ("softmaxx", {}, ValueError, "did you mean 'softmax'"),
        ("linformer", {}, ValueError, "cross 'linformer' needs max_length="),
        ("lambda_layer", {"max_length": 9, "head_dim": 4}, TypeError, "no option 'head_dim'"),
        (3, {}, TypeError, "cross is a mechanism's name or a function of dim and causal, not int"),
        (SOFTMAX(), {}, TypeError, "not AttentionLayer"),
        (lambda dim, causal: nn.Linear(dim, dim), {}, TypeError, "must be built as a Mixer, not Linear"),
        (lambda dim, causal: SOFTMAX(), {"causal": True}, ValueError, "causal=True and came with .* causal=False"),
        (lambda dim, causal: af.build("softmax", dim=8), {}, ValueError, "dim=16 .* came with dim=8"),
    ],
)
def test_choices_that_make_no_sense(choices, kind, error, says):
    with pytest.raises(error, match=says):
        choose(choices, **kind)


@pytest.mark.parametrize("made_by", ["name", "function"])
@pytest.mark.parametrize(
    ("spec", "kind", "says"),
    [
        ("linformer", {"causal": True}, r"cannot be causal; these can: .*\bsoftmax\b"),
        ("local", {"cross": True}, r"has no cross-attention; these have: .*\bsoftmax\b"),
    ],
)
def test_who_cannot_take_a_place_is_refused(spec, kind, says, made_by):
    def function(dim, causal):
        return af.build(spec, dim=dim, heads=2, **({"max_length": 20} if spec == "linformer" else {}))

    with pytest.raises(ValueError, match=f"cross.* {says}"):
        choose(spec if made_by == "name" else function, max_length=20, **kind)


def test_facts_of_the_variant_decide(drop):
    """Dropped in: `doubled` has no causal form, `halved` has no other."""
    drop()
    choose(["mean_of_all:plain", "mean_of_all:doubled"], layers=2)
    choose(["mean_of_all:plain", "mean_of_all:halved"], layers=2, causal=True)
    with pytest.raises(ValueError, match=r"'mean_of_all:doubled' cannot be causal; these can: "):
        choose("mean_of_all:doubled", causal=True)
    with pytest.raises(ValueError, match=r"'mean_of_all:halved' is only causal; these can do without: .*softmax"):
        choose("mean_of_all:halved")
    with pytest.raises(ValueError, match=r"'lambda_layer:local2d' has no cross-attention"):
        choose("lambda_layer:local2d", cross=True)
