"""A run of the referee: laws first, then measurements, and everything into a record however it ends."""

import sys
import warnings
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch

from anyformer.card import find, mechanisms
from anyformer.cli._example import example_options, matrix
from anyformer.cli._terminal import Progress
from anyformer.laws import Quick, catalogued, judge
from anyformer.measure.contenders import AGAIN, COMPILED, UNCACHED, Sizes, facts, refusal, spec
from anyformer.measure.floor import limits
from anyformer.measure.live import Live
from anyformer.measure.referee import Referee, plan

Row = dict[str, Any]

CHECKED = ("formula", "causal", "padding")  # laws that a mechanism keeps before it gets a number
IMAGES = (784, 3072)  # lengths of the images that the paper of linear attention decodes
AFTERWARDS = 6.0  # seconds for starting, the intervals, the table and the page
PICTURED = 24  # tokens of an attention matrix


def defaults(against: str) -> list[str]:
    """Every mechanism but the baseline, by its default variant."""
    return [name for name in mechanisms() if name != against]


def referee(what: Row, budget: float, seed: int, record: Row, earlier: Row | None = None, *, quiet: bool) -> None:
    """Fill the record with what is measured; with `earlier`, go on from that one's measurements."""
    began = perf_counter()
    budget -= min(AFTERWARDS, 0.1 * budget)
    if what["threads"]:
        torch.set_num_threads(what["threads"])
    torch.manual_seed(seed)
    dtype = getattr(torch, what["dtype"])
    sizes = Sizes(what["batch"], what["heads"], what["head_dim"], dtype, what["device"], what["set"])
    with Progress(quiet=quiet) as progress:
        names = lawful(what, record, progress)
        progress.tell("measuring the machine's own limits", budget - (perf_counter() - began))
        machine = limits(dtype=dtype, device=sizes.device)
        record["results"].append({"limits": machine._asdict()})
        fields, idle = plan(
            names,
            what["against"],
            levels=what["levels"],
            orders=what["orders"],
            modes=passes(what["modes"]),
            lengths={
                "forward": what["lengths"],
                "train": what["lengths"],
                "decode": sorted({*what["lengths"], *(n for n in IMAGES if n <= max(what["lengths"]))}),
            },
            uncached=what["against"] + UNCACHED,
            refused=refusal,
        )
        record["results"] += [{"mechanism": name, "skipped": why} for name, why in idle.items()]
        if not fields:
            return
        world, before = Live(sizes, machine, progress.tell), list[str]()
        if earlier is not None:
            record["repeats"], record["resumed"] = earlier["repeats"], earlier["started"]
            world.floors = next((row["floors"] for row in earlier["results"] if "floors" in row), {})
            before = next((row["disturbed"] for row in earlier["results"] if "disturbed" in row), [])
        referee = Referee(fields, record["repeats"], before)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                referee.run(world, budget - (perf_counter() - began))
        finally:
            floors = {(cell, name): least for cell, by_name in world.floors.items() for name, least in by_name.items()}
            record["results"] += [*referee.rows(floors, claimed), *pictures(names), {"floors": world.floors}]
            record["results"].append({"disturbed": referee.disturbed})
            if world.high_water:
                record["results"].append({"high_water": world.high_water})


def passes(modes: Sequence[str]) -> list[str]:
    """Each mode as the referee runs it: memory is that of both passes, and decoding has a memory of its own."""
    found = [mode for mode in modes if mode != "memory"]
    if "decode" in modes:
        found.append("decode memory")
    return found + (["forward memory", "train memory"] if "memory" in modes else [])


def lawful(what: Row, record: Row, progress: Progress) -> list[str]:
    """Who may be measured: no number for what breaks a law, and none at all if that is the baseline."""
    sound, threads = [], torch.get_num_threads()
    torch.set_num_threads(1)  # for small tensors that is faster
    for name in dict.fromkeys([what["against"], *what["names"]]):
        progress.tell(f"{name}: judging by the laws", None)
        broken = [f"{o.law}: {o.note}" for o in judge(catalogued(name, Quick), CHECKED) if o.status == "fail"]
        if broken:
            record["results"].append({"mechanism": name, "failed": "; ".join(broken)})
            print(f"{name} gets no number: {'; '.join(broken)}", file=sys.stderr)
        else:
            sound.append(name)
    torch.set_num_threads(threads)
    if what["against"] not in sound:
        return []
    names = [name if name != what["against"] else name + AGAIN for name in what["names"] if name in sound]
    return names + ([name + COMPILED for name in names if compilable(name, record)] if what["compile"] else [])


def compilable(name: str, record: Row) -> bool:
    from torch._inductor.exc import InvalidCxxCompiler

    why = refusal(name + COMPILED, "layer", "forward", False) if facts(name).causal != "only" else ""
    if not why:
        try:
            torch.compile(lambda x: x + 1)(torch.zeros(8))
        except Exception as error:
            no_compiler = isinstance(error, InvalidCxxCompiler) or "compiler" in str(error).lower()
            why = "there is no C++ compiler" if no_compiler else " ".join(str(error).split())[:200]
    if why:
        record["results"].append({"mechanism": name + COMPILED, "skipped": why})
    return not why


def claimed(name: str, mode: str) -> float:
    """The exponent of a card, for a pass over N tokens or for one token after N."""
    card = facts(name)
    if mode == "decode memory":
        return 0.0 if card.state == "constant" else 1.0
    if mode.endswith(" memory"):
        return card.memory
    if mode == "decode" and not name.endswith(UNCACHED):
        return 0.0 if card.state == "constant" else 1.0
    return card.time


def pictures(names: Sequence[str]) -> list[Row]:
    """The attention matrix that each mechanism amounts to, of few tokens."""
    found: list[Row] = []
    for name in dict.fromkeys(map(spec, names)):
        card = facts(name)
        if card.slot != "attention":
            continue
        chosen = find(name)[0].card.variants.get(find(name)[1] or "", {})
        weights = matrix(name, card.causal != "no", PICTURED, example_options(card, chosen, PICTURED))
        rounded = [[round(weight, 4) for weight in row] for row in weights]
        found.append(
            {"mechanism": name, "matrix": {"causal": card.causal != "no", "tokens": PICTURED, "weights": rounded}}
        )
    return found
