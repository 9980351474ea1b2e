"""Who sees whom, against the definition written out pair by pair."""

import pytest
import torch

from anyformer.parts.masks import pairs, seen

CPU = torch.device("cpu")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 2, 5, 99])
@pytest.mark.parametrize(("queries", "keys", "last"), [(4, 4, None), (2, 6, None), (6, 2, None), (3, 7, 5), (2, 3, 9)])
def test_who_sees_whom(queries, keys, last, window, causal):
    stop = keys if last is None else last
    expected = [
        [(not causal or j <= i) and (window is None or abs(i - j) < window) for j in range(keys)]
        for i in range(stop - queries, stop)
    ]
    assert seen(queries, keys, causal=causal, window=window, last=last, device=CPU).tolist() == expected


def test_a_single_query_is_the_last_position():
    assert seen(1, 5, causal=True, device=CPU).all()
    assert seen(1, 5, causal=True, window=2, device=CPU).tolist() == [[False, False, False, True, True]]


def test_padding_is_one_row_for_all_heads_and_queries():
    keep = torch.tensor([[True, False, True], [True, True, True]])
    found = seen(2, 3, causal=True, device=CPU, keep_BM=keep)
    assert found.shape == (2, 1, 2, 3)
    assert found[0, 0].tolist() == [[True, False, False], [True, False, True]]
    assert found[1, 0].tolist() == [[True, True, False], [True, True, True]]


def test_the_mask_is_made_where_it_is_needed():
    assert seen(2, 3, causal=True, device=torch.device("meta")).is_meta


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (5, 5), (3, 9), (9, 9)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 4, 20])
def test_pairs_counts_what_seen_shows(queries, keys, causal, window):
    shown = seen(queries, keys, causal=causal, window=window, device=torch.device("cpu"))
    assert pairs(queries, keys, causal=causal, window=window) == shown.expand(queries, keys).sum()
