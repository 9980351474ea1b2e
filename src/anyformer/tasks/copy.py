"""The copy task: read a sequence of ten different symbols and write it again.

Paper    Katharopoulos et al. 2020, Transformers are RNNs, arXiv:2006.16236, section 4.1
Setting  a separator that is no symbol stands before and behind a sequence, and is the last token to be written
Shapes   B batch, N symbols of the longest item, L symbols of each item, T tokens, V vocabulary
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from anyformer.tasks import Batch

SYMBOLS = 10
SEPARATOR = SYMBOLS
VOCABULARY = SYMBOLS + 1
UNCOUNTED = -100  # a target that is not scored
TRAINING, EVALUATION = 0, 1  # streams of random sequences

Generate = Callable[[nn.Module, Batch, int], Tensor]


class Copy(ABC):
    """Every batch is a function of the seed and the step.

    Lengths vary from `shortest` to `length` if it is given. With `cycle`, that many batches take turns; without, every
    step has a fresh one. Scores are over `evaluations` batches of a random stream that training never draws from.
    `generate(model, prompt, count)` returns the `count` tokens that follow, (B, count), each chosen after those before
    it; with it, evaluation also scores what the model writes by itself.
    """

    unit = "tokens"

    def __init__(
        self,
        *,
        length: int,
        batch_size: int,
        shortest: int | None = None,
        cycle: int | None = None,
        evaluations: int = 4,
        seed: int = 0,
        generate: Generate | None = None,
    ) -> None:
        shortest = length if shortest is None else shortest
        if not 1 <= shortest <= length:
            raise ValueError(f"shortest={shortest} must be from 1 to length={length}")
        for name, value in (("batch_size", batch_size), ("cycle", cycle), ("evaluations", evaluations)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if seed < 0:
            raise ValueError(f"seed must be at least 0, not {seed}")
        self.length, self.batch_size, self.shortest, self.cycle = length, batch_size, shortest, cycle
        self.evaluations, self.seed, self.generate = evaluations, seed, generate

    @property
    def what(self) -> dict[str, Any]:
        return {"task": type(self).__name__, **vars(self), "generate": self.generate is not None}

    @abstractmethod
    def arrange(self, ended_BT: Tensor, lengths_B: Tensor) -> Batch:
        """What the model reads, and the `target`.

        `ended_BT` has N + 1 tokens: the L symbols of an item, then separators.
        """

    @abstractmethod
    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        """Calls the model once: (B, T, V), for every target."""

    @abstractmethod
    def prompt(self, batch: Batch) -> tuple[Batch, Tensor]:
        """What the model knows before it writes the copy, and the N + 1 tokens that it should write then."""

    def batch(self, step: int) -> Batch:
        return self.draw(TRAINING, step if self.cycle is None else step % self.cycle)

    def draw(self, stream: int, number: int) -> Batch:
        drawn = np.random.default_rng((self.seed, stream, number))
        symbols_BN = torch.from_numpy(drawn.integers(SYMBOLS, size=(self.batch_size, self.length)))
        lengths_B = torch.from_numpy(drawn.integers(self.shortest, self.length, size=self.batch_size, endpoint=True))
        ended_BN = symbols_BN.masked_fill(torch.arange(self.length) >= lengths_B[:, None], SEPARATOR)
        return self.arrange(pad(ended_BN, (0, 1), value=SEPARATOR), lengths_B)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int, dict[str, float]]:
        """Cross-entropy in nats; a token is right if its score is the highest, given the true tokens before it."""
        logits_BTV, target_BT = self.logits(model, batch), batch["target"]
        tokens, _ = right(logits_BTV.argmax(-1), target_BT)
        return lost(logits_BTV, target_BT), int((target_BT != UNCOUNTED).sum()), {"token_accuracy": tokens}

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        device = next(model.parameters()).device
        rows: list[list[float]] = []
        for number in range(self.evaluations):
            batch = {name: t.to(device) for name, t in self.draw(EVALUATION, number).items()}
            logits_BTV, target_BT = self.logits(model, batch), batch["target"]
            row = [int((target_BT != UNCOUNTED).sum()), lost(logits_BTV, target_BT).item()]
            row += right(logits_BTV.argmax(-1), target_BT)
            if self.generate is not None:
                prompt, answer_BT = self.prompt(batch)
                row += right(self.generate(model, prompt, answer_BT.shape[1]), answer_BT)
            rows.append(row)
        tokens, loss, *rights = (sum(column) for column in zip(*rows, strict=True))
        items = self.evaluations * self.batch_size
        found = {"loss": loss / tokens, "token_accuracy": rights[0] / tokens, "sequence_accuracy": rights[1] / items}
        if self.generate is not None:
            found |= {"generated_token_accuracy": rights[2] / tokens, "generated_sequence_accuracy": rights[3] / items}
        return found


def lost(logits_BTV: Tensor, target_BT: Tensor) -> Tensor:
    return cross_entropy(logits_BTV.flatten(0, 1), target_BT.flatten(), ignore_index=UNCOUNTED, reduction="sum")


def right(written_BT: Tensor, target_BT: Tensor) -> tuple[int, int]:
    """The tokens that are as they should be, and the sequences whose tokens all are."""
    if written_BT.shape != target_BT.shape:
        raise ValueError(f"{tuple(target_BT.shape)} tokens were to be written, not {tuple(written_BT.shape)}")
    same_BT = written_BT == target_BT
    return int(same_BT.sum()), int((same_BT | (target_BT == UNCOUNTED)).all(-1).sum())


@final
class CopySeq2Seq(Copy):
    """For an encoder and a decoder, called as `model(source, written, source_keep=...)`.

    The source stands between separators. A `generate` for our Seq2Seq is
    `lambda model, p, count: model.generate(p["source"], source_keep=p.get("source_keep"), begin=10, length=count)`.
    """

    def arrange(self, ended_BT: Tensor, lengths_B: Tensor) -> Batch:
        source_BT, place_T = pad(ended_BT, (1, 0), value=SEPARATOR), torch.arange(self.length + 2)
        target_BT = ended_BT.masked_fill(place_T[:-1] > lengths_B[:, None], UNCOUNTED)
        batch = {"source": source_BT, "written": source_BT[:, :-1], "target": target_BT}
        if self.shortest < self.length:
            batch["source_keep"] = place_T < lengths_B[:, None] + 2
        return batch

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(batch["source"], batch["written"], source_keep=batch.get("source_keep"))

    def prompt(self, batch: Batch) -> tuple[Batch, Tensor]:
        return {name: batch[name] for name in ("source", "source_keep") if name in batch}, batch["target"]


@final
class CopyLanguage(Copy):
    """For a causal model of one sequence, called as `model(tokens)`: symbols, separator, the symbols again.

    Only the copy counts. Padding stands behind, where a causal model does not see it; but before a prompt, for which
    a `generate` for our LanguageModel is
    `lambda model, p, count: model.generate(p["tokens"], keep=p.get("keep"), length=count)`.
    """

    def arrange(self, ended_BT: Tensor, lengths_B: Tensor) -> Batch:
        place_T, lengths_B1 = torch.arange(2 * self.length + 2), lengths_B[:, None]
        copied_BT = (place_T - lengths_B1 - 1).clamp(max=self.length)
        both_BT = ended_BT.gather(1, torch.where(place_T <= lengths_B1, place_T, copied_BT))
        counted_BT = (place_T[1:] > lengths_B1) & (place_T[1:] < 2 * lengths_B1 + 2)
        return {"tokens": both_BT[:, :-1], "target": both_BT[:, 1:].masked_fill(~counted_BT, UNCOUNTED)}

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(batch["tokens"])

    def prompt(self, batch: Batch) -> tuple[Batch, Tensor]:
        place_T = torch.arange(self.length + 1, device=batch["tokens"].device)
        lengths_B1 = (batch["target"] != UNCOUNTED).sum(1, keepdim=True) - 1
        earlier_BT = place_T - self.length + lengths_B1
        prompt = {"tokens": batch["tokens"].gather(1, earlier_BT.clamp(min=0))}
        if self.shortest < self.length:
            prompt["keep"] = earlier_BT >= 0
        return prompt, batch["target"].gather(1, place_T + lengths_B1)
