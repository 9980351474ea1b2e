"""The copy task: what stands where, what is scored, and that a batch depends on nothing but seed and step."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot

import anyformer as af
from anyformer.tasks.copy import SEPARATOR, SYMBOLS, UNCOUNTED, VOCABULARY, CopyLanguage, CopySeq2Seq
from anyformer.training.loop import train

BOTH = pytest.mark.parametrize("kind", [CopySeq2Seq, CopyLanguage])


def real(row):
    return row[row != UNCOUNTED].tolist()


# Batches


def test_seq2seq_reads_between_separators_and_writes_one_at_the_end():
    batch = CopySeq2Seq(length=5, batch_size=3).batch(0)
    assert set(batch) == {"source", "written", "target"}
    for source, written, target in zip(batch["source"], batch["written"], batch["target"], strict=True):
        symbols = target[:5].tolist()
        assert all(0 <= symbol < SYMBOLS for symbol in symbols)
        assert source.tolist() == [SEPARATOR, *symbols, SEPARATOR]
        assert written.tolist() == [SEPARATOR, *symbols]
        assert target.tolist() == [*symbols, SEPARATOR]


def test_seq2seq_of_several_lengths_marks_what_is_real():
    batch = CopySeq2Seq(length=9, shortest=2, batch_size=200).batch(0)
    assert {len(real(target)) - 1 for target in batch["target"]} == set(range(2, 10))
    for source, keep, written, target in zip(
        *(batch[n] for n in ("source", "source_keep", "written", "target")), strict=True
    ):
        *symbols, end = real(target)
        assert end == SEPARATOR
        assert max(symbols) < SYMBOLS
        assert source[keep].tolist() == [SEPARATOR, *symbols, SEPARATOR]
        assert keep[: len(symbols) + 2].all()
        assert written[: len(symbols) + 1].tolist() == [SEPARATOR, *symbols]
        assert target[: len(symbols) + 1].tolist() == [*symbols, SEPARATOR]


def test_a_language_model_is_scored_on_the_copy_alone():
    batch = CopyLanguage(length=5, batch_size=3).batch(0)
    assert set(batch) == {"tokens", "target"}
    for tokens, target in zip(batch["tokens"], batch["target"], strict=True):
        symbols = tokens[:5].tolist()
        assert tokens.tolist() == [*symbols, SEPARATOR, *symbols]
        assert target.tolist() == [UNCOUNTED] * 5 + [*symbols, SEPARATOR]


def test_a_language_model_of_several_lengths():
    task = CopyLanguage(length=9, shortest=2, batch_size=200)
    batch = task.batch(0)
    prompt, answer = task.prompt(batch)
    assert {len(real(target)) - 1 for target in batch["target"]} == set(range(2, 10))
    for tokens, target, known, keep, rest in zip(*batch.values(), *prompt.values(), answer, strict=True):
        *symbols, end = real(target)
        size = len(symbols)
        assert end == SEPARATOR
        assert tokens[: 2 * size + 1].tolist() == [*symbols, SEPARATOR, *symbols]
        assert target[size : 2 * size + 1].tolist() == [*symbols, SEPARATOR]
        assert known[keep].tolist() == [*symbols, SEPARATOR]
        assert keep[-size - 1 :].all()  # padded on the left
        assert rest[: size + 1].tolist() == [*symbols, SEPARATOR]
        assert len(real(rest)) == size + 1


@BOTH
def test_a_batch_depends_on_seed_and_step_alone(kind):
    def tokens(step, **options):
        return kind(**{"length": 12, "batch_size": 4, "seed": 3, **options}).batch(step)["target"]

    first = tokens(5)
    torch.manual_seed(99)
    assert torch.equal(tokens(5), first)
    assert not torch.equal(tokens(6), first)
    assert not torch.equal(tokens(5, seed=4), first)


@BOTH
def test_batches_take_turns_in_a_cycle(kind):
    task, fresh = kind(length=12, batch_size=4, cycle=8), kind(length=12, batch_size=4)
    found = [task.batch(step)["target"] for step in range(24)]
    for step, target in enumerate(found):
        assert torch.equal(target, fresh.batch(step % 8)["target"])
    assert len({tuple(target.flatten().tolist()) for target in found}) == 8


def test_symbols_are_equally_frequent():
    target = CopySeq2Seq(length=100, batch_size=100).batch(0)["target"][:, :-1]
    shares = torch.bincount(target.flatten(), minlength=VOCABULARY) / target.numel()
    assert shares[SEPARATOR] == 0
    assert (shares[:SYMBOLS] - 0.1).abs().max() < 0.015  # five standard deviations


# Scores


class Knowing(nn.Module):
    """Copies by looking, apart from errors at the last symbol of items that begin with 0."""

    def __init__(self, sure=50.0, wrong=False):
        super().__init__()
        self.sure, self.wrong = nn.Parameter(torch.tensor(sure)), wrong
        self.seen = []

    def forward(self, tokens, written=None, *, source_keep=None):
        self.seen.append(tokens)
        half = tokens.shape[1] // 2
        first, answer = tokens[:, 1], tokens[:, 1:].clone()
        if written is None:
            first, answer = tokens[:, 0], torch.cat([tokens[:, :half], tokens[:, : half + 1]], 1)
        if self.wrong:
            answer[:, -2] = torch.where(first == 0, (answer[:, -2] + 1) % SYMBOLS, answer[:, -2])
        return one_hot(answer, VOCABULARY) * self.sure


@BOTH
def test_whoever_copies_has_the_full_score(kind):
    scores = kind(length=6, batch_size=16).evaluate(Knowing())
    assert scores == {"loss": pytest.approx(0, abs=1e-6), "token_accuracy": 1.0, "sequence_accuracy": 1.0}


@BOTH
def test_whoever_guesses_has_the_loss_of_guessing(kind):
    task, model = kind(length=6, batch_size=16), Knowing(sure=0.0)
    assert task.evaluate(model)["loss"] == pytest.approx(math.log(VOCABULARY))
    total, count, _ = task.loss(model, task.batch(0))
    assert count == 16 * 7
    assert total.item() == pytest.approx(count * math.log(VOCABULARY))


@BOTH
def test_an_error_costs_a_token_and_its_sequence(kind):
    task = kind(length=6, batch_size=50, evaluations=3)
    model = Knowing(wrong=True)
    scores = task.evaluate(model)
    begins = torch.cat(model.seen)[:, 1 if kind is CopySeq2Seq else 0]
    failed = int((begins == 0).sum())
    assert 0 < failed < 150
    assert scores["token_accuracy"] == pytest.approx(1 - failed / (150 * 7))
    assert scores["sequence_accuracy"] == pytest.approx(1 - failed / 150)
    total, count, sums = task.loss(model, task.batch(0))
    assert sums["token_accuracy"] / count == pytest.approx(1 - int((task.batch(0)["target"][:, -7] == 0).sum()) / count)
    assert total.item() / count == pytest.approx(50 * (1 - sums["token_accuracy"] / count), rel=1e-4)


@BOTH
def test_scores_are_over_sequences_that_training_never_sees(kind):
    task, model = kind(length=20, batch_size=8, evaluations=5, cycle=2), Knowing()
    task.evaluate(model)
    tested = {tuple(row.tolist()) for row in torch.cat(model.seen)}
    assert len(tested) == 5 * 8
    trained = {tuple(row.tolist()) for step in range(200) for row in next(iter(task.batch(step).values()))}
    assert not tested & trained
    model.seen.clear()
    task.evaluate(model)
    assert {tuple(row.tolist()) for row in torch.cat(model.seen)} == tested


@BOTH
@pytest.mark.parametrize("shortest", [None, 2])
def test_what_a_model_writes_by_itself_is_scored(kind, shortest):
    def copying(model, prompt, count):
        if kind is CopySeq2Seq:
            written = prompt["source"][:, 1:]
        else:
            keep = prompt.get("keep", torch.ones_like(prompt["tokens"], dtype=torch.bool))
            written = torch.zeros_like(prompt["tokens"])
            for row, tokens, real in zip(written, prompt["tokens"], keep, strict=True):
                row[: int(real.sum())] = tokens[real]
        assert written.shape[1] == count
        return written if model.sure else written.roll(1, 1)

    task = kind(length=6, shortest=shortest, batch_size=16, generate=copying)
    good, bad = task.evaluate(Knowing()), task.evaluate(Knowing(sure=0.0))
    assert good["generated_token_accuracy"] == good["generated_sequence_accuracy"] == 1.0
    assert bad["generated_token_accuracy"] < 0.3
    assert bad["generated_sequence_accuracy"] == 0.0


def test_too_few_written_tokens_are_no_answer():
    task = CopySeq2Seq(length=6, batch_size=4, generate=lambda model, prompt, count: prompt["source"][:, :1])
    with pytest.raises(ValueError, match=r"\(4, 7\) tokens were to be written, not \(4, 1\)"):
        task.evaluate(Knowing())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shortest": 9}, "shortest=9 must be from 1 to length=8"),
        ({"shortest": 0}, "shortest=0 must be from 1 to length=8"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"cycle": 0}, "cycle must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        CopySeq2Seq(**{"length": 8, "batch_size": 4, **options})


# Learning


class Tiny(nn.Module):
    """One causal layer whose keys are the tokens one place earlier: what followed this token before?"""

    def __init__(self, length):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.places = nn.Embedding(VOCABULARY, 32), nn.Embedding(length, 32)
        self.mixer, self.out = af.build("softmax", dim=32, heads=4, causal=True), nn.Linear(32, VOCABULARY)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return self.out(x + self.mixer(x))


def test_a_model_learns_to_copy():
    task = CopyLanguage(length=5, batch_size=32)
    lines = train(
        Tiny(11), task, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-2), steps=300, quiet=True
    )
    assert lines[0]["loss"] > 2
    assert lines[-1]["evaluation"]["token_accuracy"] > 0.95
