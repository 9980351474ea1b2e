"""A mechanism dropped into a folder of its own, as anybody would add one."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

DROPPED = '''"""Mean attention: every query takes the mean of the values that it sees.

Paper    Nobody 2031, On Taking Means, arXiv:3101.00001
         y_i = power sum_j v_j / sum_j 1
Differs  nothing
"""

from torch import Tensor

from anyformer.card import Card
from anyformer.contract import Attention
from anyformer.parts.masks import seen


class Mean(Attention):
    card = Card(
        title="mean attention",
        paper="Nobody 2031, On Taking Means, arXiv:3101.00001",
        year=2031,
        causal="option",
        cross=True,
        padding=True,
        stream="none",
        state="none",
        time=2,
        memory=2,
        variants={"plain": {"power": 1.0}, "doubled": {"power": 2.0}, "halved": {"power": 0.5}},
        overrides={"doubled": {"causal": "no"}, "halved": {"causal": "only"}},
    )

    def __init__(
        self, *, heads: int, head_dim: int, causal: bool = False, power: float = 1.0, shift: float = 0.0
    ) -> None:
        super().__init__(heads=heads, head_dim=head_dim, causal=causal)
        self.power, self.shift = power, shift

    def formula(self, q_BHND: Tensor, k_BHMD: Tensor, v_BHME: Tensor, keep_BM: Tensor | None = None) -> Tensor:
        q, k, v = self.checked(q_BHND, k_BHMD, v_BHME, keep_BM)
        sees = seen(q.shape[2], k.shape[2], causal=self.causal, device=q.device, keep_BM=keep_BM).to(v.dtype)
        return self.power * (sees / sees.sum(-1, keepdim=True).clamp(min=1)) @ v + self.shift

    attend = formula
'''


@pytest.fixture
def drop(tmp_path, monkeypatch):
    """Writes a mechanism's file into a temporary folder that anyformer.mechanisms looks into too."""
    package = importlib.import_module("anyformer.mechanisms")
    root = tmp_path / "dropped_in"
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(root)])
    before = set(sys.modules)

    def write(name="mean_of_all", text=DROPPED, idea="averages"):
        path = root / idea / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        importlib.invalidate_caches()
        return path

    yield write
    for module in set(sys.modules) - before:
        if module.startswith("anyformer.mechanisms."):
            parent, _, child = module.rpartition(".")
            vars(sys.modules.get(parent, package)).pop(child, None)
            del sys.modules[module]


@pytest.fixture
def python(tmp_path):
    """Runs Python in a process of its own, in an empty folder."""

    def run(*words, **environment):
        return subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            capture_output=True,
            timeout=120,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def source():
    """The folder of the package that is tested."""
    return Path(importlib.import_module("anyformer").__file__).parent
