"""A crossover record as a run on a real machine would write it, drawn from made-up laws of cost."""

import math
import random

LENGTHS = [128, 256, 512, 1024, 2048, 4096]
SLOW, FAST = 3.2e-9, 1.7e-7  # seconds for a pair of tokens, for a token
COSTS = {  # name: seconds of a call, seconds a token, against softmax's own quadratic cost
    "softmax": lambda n, causal: 2.0e-5 + 8e-8 * n + SLOW * n**2 * (0.6 if causal else 1),
    "softmax, nothing cached": lambda n, causal: 3.0e-5 + 6e-7 * n + 1.2e-8 * n**2,
    "linear": lambda n, causal: 1.1e-4 + (1.5 if causal else 1) * 4.2e-7 * n,
    "local": lambda n, causal: 6.0e-5 + 6.0e-7 * n,
    "performer": lambda n, causal: 2.0e-4 + (2.2 if causal else 1) * 1.2e-6 * n,
    "linformer": lambda n, causal: 4.0e-4 + 2.0e-6 * n,
    "lambda_layer:local": lambda n, causal: 9.0e-4 + 1.4e-5 * n,
}
BYTES = {
    "softmax": lambda n: 4.0e5 + 1.0e4 * n,
    "linear": lambda n: 9.0e5 + 6.0e3 * n,
    "local": lambda n: 5.0e5 + 5.4e3 * n,
    "performer": lambda n: 2.5e6 + 6.5e3 * n,
    "linformer": lambda n: 1.6e6 + 7.0e3 * n,
    "lambda_layer:local": lambda n: 3.0e6 + 1.9e4 * n,
}
STATE = {"softmax": lambda n: 2048.0 * n, "linear": lambda n: 66560.0, "local": lambda n: 131072.0}
MODES = {"forward": 1.0, "train": 3.1}


def exactly(value):
    return {"median": value, "low": value, "high": value}


def spread(value, draw, wide=0.06):
    low, high = (1 + wide * draw.uniform(0.5, 1.5) for _ in range(2))
    return {"median": value, "low": value / low, "high": value * high}


def crossing(lengths, ratios):
    """The kind and place of the length from which on the ratios stay above 1."""
    ahead = next((n for n in range(len(lengths)) if all(r["low"] > 1 for r in ratios[n:])), None)
    said = {"kind": "none", "length": None, "low": None, "high": None, "up_to": lengths[-1]}
    if ahead == 0:
        return said | {"kind": "from the first length", "length": lengths[0]}
    if ahead is None:
        return said
    left, right = lengths[ahead - 1], lengths[ahead]
    below, above = math.log(ratios[ahead - 1]["median"]), math.log(ratios[ahead]["median"])
    share = min(1.0, max(0.0, -below / (above - below)))
    at = left * (right / left) ** share
    return said | {"kind": "measured", "length": at, "low": at * 0.94, "high": at * 1.07}


def series(name, mode, level="op", causal=False, against="softmax", cost=None, lengths=LENGTHS, seed=0, **more):
    """A row that compares; `cost` gives the seconds or bytes of a name at a length."""
    draw = random.Random(f"{name}{mode}{level}{causal}{seed}")
    memory = "memory" in mode
    measured = [cost(name, n) / cost(against, n) for n in lengths]
    bisected = [
        round((lengths[n] * lengths[n + 1]) ** 0.5)
        for n in range(len(lengths) - 1)
        if not memory and (measured[n] - 1) * (measured[n + 1] - 1) < 0
    ]
    lengths = sorted([*lengths, *bisected])
    ours = [exactly(cost(name, n)) if memory else spread(cost(name, n), draw) for n in lengths]
    theirs = [exactly(cost(against, n)) if memory else spread(cost(against, n), draw) for n in lengths]
    ratios = [t["median"] / o["median"] for o, t in zip(ours, theirs, strict=True)]
    ratios = [exactly(r) if memory else spread(r, draw) for r in ratios]
    found = crossing(lengths, ratios)
    return {
        "mechanism": name,
        "against": against,
        "mode": mode,
        "level": level,
        "causal": causal,
        "unit": "bytes" if memory else "seconds",
        "lengths": lengths,
        "ratios": ratios,
        "values": {"mechanism": ours, "against": theirs},
        "status": ["measured"] * len(lengths),
        "over_floor": [None if memory else spread(draw.uniform(1.5, 6), draw) for _ in lengths],
        "exponent": None if memory else spread(0.98, draw),
        "against_exponent": None if memory else spread(1.94, draw),
        "claimed_exponent": 1.0,
        "against_claimed_exponent": 2.0,
        "crossover": found,
        "extrapolated": None
        if memory
        else {"length": found["length"] and found["length"] * draw.choice([0.4, 1.3, 8.7]), "from": lengths[:4]},
        "left_out": [],
        **more,
    }


def band(tokens, window, causal):
    """The matrix of a window, every row summing to one."""
    draw = random.Random(tokens + window)
    rows = []
    for i in range(tokens):
        row = [draw.expovariate(1) if abs(i - j) < window and not (causal and j > i) else 0.0 for j in range(tokens)]
        rows.append([weight / sum(row) for weight in row])
    return rows


def inconclusive(row):
    """The same row on a machine that was too loaded at its longest lengths."""
    status = ["measured"] * (len(row["lengths"]) - 2) + ["inconclusive"] * 2
    wide = [
        r if s == "measured" else {**r, "low": 0.5, "high": 9.0} for r, s in zip(row["ratios"], status, strict=True)
    ]
    said = {"kind": "inconclusive", "length": None, "low": None, "high": None, "up_to": row["lengths"][-1]}
    return row | {"status": status, "ratios": wide, "crossover": said, "extrapolated": None}


def results(seed=0):
    rows = [
        {"limits": {"operations_per_second": 2.16e11, "bytes_per_second": 4.6e10}},
        {"mechanism": "performer:exp", "failed": "formula: the fast form is off its formula by 0.031"},
        {"mechanism": "synthesizer", "skipped": "it needs max_length, and none was given"},
    ]
    for name, window in (("softmax", 99), ("linear", 99), ("local", 5), ("performer", 99)):
        for causal in (False, True):
            weights = band(24, window, causal)
            rows.append({"mechanism": name, "matrix": {"causal": causal, "tokens": 24, "weights": weights}})
    for level, projections in (("op", 0.0), ("layer", 9e-7)):
        for causal in (False, True):
            for mode, times in MODES.items():
                for name in ("linear", "local", "performer", "linformer", "lambda_layer:local"):
                    if causal and name == "linformer":
                        continue

                    def cost(who, n, times=times, causal=causal, projections=projections):
                        return times * (COSTS[who](n, causal) + projections * n)

                    def held(who, n, times=times):
                        return times * BYTES[who](n)

                    row = series(name, mode, level, causal, cost=cost, seed=seed)
                    if (name, level, mode) == ("performer", "layer", "train"):
                        row = inconclusive(row)
                    if name == "lambda_layer:local":
                        row["left_out"] = [{"length": 8192, "why": "no time left"}]
                    rows += [row, series(name, f"{mode} memory", level, causal, cost=held)]

    def token(who, n):
        return {"softmax": 2.1e-5 + 1.9e-8 * n, "softmax, nothing cached": COSTS["softmax"](n, True) + 4e-5}.get(
            who, 3.4e-5 if who == "linear" else 4.1e-5
        )

    for name in ("linear", "local"):
        for against in ("softmax", "softmax, nothing cached"):
            rows.append(series(name, "decode", causal=True, against=against, cost=token, seed=seed))
        rows.append(series(name, "decode memory", causal=True, cost=lambda who, n: STATE[who](n)))
    return rows


def record(rows=None, seed=0, **changes):
    """A finished record; keywords replace its fields."""
    return {
        "schema": 1,
        "kind": "crossover",
        "what": {
            "names": ["linear", "local", "performer", "linformer", "lambda_layer:local"],
            "against": "softmax",
            "lengths": LENGTHS,
            "modes": ["forward", "train", "decode"],
            "levels": ["op", "layer"],
            "orders": [False, True],
            "batch": 1,
            "heads": 4,
            "head_dim": 64,
            "dtype": "float32",
            "device": "cpu",
            "threads": 2,
            "set": {"local": {"window": 64}},
            "compile": False,
            "budget": 120.0,
        },
        "seed": seed,
        "started": "2026-11-20T00:04:11+00:00",
        "ended": "2026-11-20T00:06:09+00:00",
        "commit": "8935629c0ffee8935629c0ffee8935629c0ffee0",
        "dirty": True,
        "versions": {"python": "3.11.7", "anyformer": "0.2.0", "torch": "2.13.0+cpu"},
        "machine": {
            "system": "Linux",
            "architecture": "x86_64",
            "processor": "AMD EPYC family 26 model 2",
            "cores": 2,
            "memory_gib": 24,
            "threads": 2,
            "blas": "mkl",
            "torch_build": "cpu",
            "gpu": None,
        },
        "status": "done",
        "results": results(seed) if rows is None else rows,
        "repeats": {},
        **changes,
    }
