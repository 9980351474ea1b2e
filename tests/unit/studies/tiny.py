"""Does the runner run? A study of a few steps that sleep; what it does is written down in the working folder."""

import json
import os
import time
from pathlib import Path

from anyformer.studies import Claim, Trial, judged

PRESETS = {"quick": (3, 0.0), "slow": (12, 0.15)}  # steps, and seconds of each
CLAIMS = (
    Claim(
        "1",
        "000",
        "Counting ends.",
        "always",
        lambda what: what["part"] == "training",
        lambda records: ("reproduced", f"{len(records)} ended"),
    ),
)


def trials(preset, seeds):
    steps, each = PRESETS[preset]
    own = [("count, a", "training"), ("count, b", "training"), ("timing, c", "timing")]
    return [
        Trial({"study": "tiny", "preset": preset, "trial": name, "part": part, "steps": steps, "each": each}, seed)
        for seed in range(seeds)
        for name, part in own
        if seed == 0 or part == "training"
    ]


def run(what, seed, folder):
    """Goes on from the step that is in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    state = folder / "step"
    for step in range(int(state.read_text()) if state.exists() else 0, what["steps"]):
        with Path("log").open("a") as log:
            log.write(json.dumps([what["trial"], seed, step, os.getpid()]) + "\n")
        time.sleep(what["each"])
        (folder / "part").write_text(str(step + 1))
        os.replace(folder / "part", state)
    if Path("fails").exists() and what["trial"] == "count, a":
        raise ValueError("told to fail")
    return {"seconds": what["steps"] * what["each"]}


def seconds(what):
    return what["steps"] * what["each"], "by arithmetic"


def verdicts(records):
    return judged(CLAIMS, records, trials)
