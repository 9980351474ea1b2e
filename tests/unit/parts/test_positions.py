"""Where tokens stand."""

import math

import pytest
import torch
from torch.testing import assert_close

from anyformer.parts.positions import places, sinusoids

TOKENS = torch.zeros(2, 5, dtype=torch.int64)


def test_places_count_from_zero_or_from_the_tokens_before():
    assert places(TOKENS).tolist() == [[0, 1, 2, 3, 4]]
    assert places(TOKENS, before=7).tolist() == [[7, 8, 9, 10, 11]]


def test_padding_takes_no_place():
    keep = torch.tensor([[False, False, True, True, True], [True, False, True, True, False]])
    assert places(TOKENS, keep=keep)[keep].tolist() == [0, 1, 2, 0, 1, 2]
    later = places(TOKENS, before=5, padding_B=(~keep).sum(1))
    assert later.tolist() == [[3, 4, 5, 6, 7], [3, 4, 5, 6, 7]]


def test_places_of_chunks_are_those_of_the_whole():
    keep = torch.tensor([[False, False, False, True, True], [True, False, True, True, True]])
    first, second = keep.split([2, 3], 1)
    chunked = torch.cat(
        [
            places(TOKENS[:, :2], keep=first),
            places(TOKENS[:, 2:], keep=second, before=2, padding_B=(~first).sum(1)),
        ],
        1,
    )
    assert torch.equal(chunked, places(TOKENS, keep=keep))


def test_sinusoids_are_those_of_the_paper():
    found = sinusoids(torch.tensor([[0, 3, 5000]]), 8, torch.float64)
    for n, place in enumerate((0, 3, 5000)):
        angles = [place / 10_000 ** (2 * i / 8) for i in range(4)]
        expected = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)
        assert_close(found[0, n], expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_sinusoids_of_few_bits_are_rounded_only_once(dtype):
    place = torch.arange(1000)[None]
    found = sinusoids(place, 16, dtype)
    assert found.dtype == dtype
    assert torch.equal(found, sinusoids(place, 16, torch.float32).to(dtype))
