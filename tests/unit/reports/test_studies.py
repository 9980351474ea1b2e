"""The report of the copy study: what it says first, its numbers and figures, and that no record can break it."""

import copy
import random
import re
from html import unescape
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from anyformer.reports import curves, figures, studies, trials
from anyformer.reports.page import csp_hash

MECHANISMS, PAIR = ("softmax", "linear", "performer:positive", "performer:relu"), ("softmax", "linear")
NAIVE, UNCACHED = "linear, naive", "softmax, nothing cached"
LENGTHS = (8, 16, 32, 64)
PAGE = "html head meta title style body main nav a header footer section h1 h2 h3 h4 p b br span ul li dl dt dd div"
TABLES = "figure figcaption details summary table caption thead tbody tr th td button code mark script"
TAGS = set(f"{PAGE} {TABLES} svg g path use text defs clippath rect".split())

# Records as a study writes them, from made-up laws of learning and of cost


def record(what, results, seed=0, **changes):
    return {
        "schema": 1,
        "kind": "study",
        "what": {"study": "copy", "preset": "laptop", **what},
        "seed": seed,
        "started": "2026-11-20T02:00:00+00:00",
        "ended": "2026-11-20T02:05:00+00:00",
        "commit": "8935629c0ffee8935629c0ffee8935629c0ffee0",
        "dirty": False,
        "versions": {"python": "3.11.7", "torch": "2.13.0+cpu"},
        "machine": {"processor": "AMD EPYC family 26 model 2", "cores": 2, "memory_gib": 24},
        "status": "done",
        "results": [results],
        "repeats": {},
        **changes,
    }


def training(mechanism, length, data="fresh", steps=3000, activation="relu", seed=0, **changes):
    draw = random.Random(f"{mechanism} {length} {data} {steps} {activation} {seed}")
    half = 60 * length**0.5 * (1 + MECHANISMS.index(mechanism)) * draw.uniform(0.8, 1.25)
    curve = [[n * steps // 50, 2.35 / (1 + (n * steps / 50 / half) ** 3)] for n in range(1, 51)]
    loss, right = curve[-1][1], 1 - curve[-1][1] / 2.6
    scores = {"loss": loss, "token_accuracy": right, "sequence_accuracy": right**length}
    scores |= {f"generated_{name}": 0.99 * scores[name] for name in ("token_accuracy", "sequence_accuracy")}
    source = [random.Random(length * 100 + n).randrange(10) for n in range(length)]
    written = [t if draw.random() < right else draw.randrange(11) for t in (*source, 10)]
    what = {
        "trial": f"{data}, {mechanism}, length {length}, {steps} steps" + ", elu1" * (activation == "elu1"),
        "part": "training",
        "mechanism": mechanism,
        "length": length,
        "data": data,
        "steps": steps,
        "activation": activation,
        "dim": 64,
        "heads": 4,
        "layers": 2,
        "features": None,
        "batch_size": 8,
        "learning_rate": 1e-3,
    }
    results = {
        "curve": curve,
        "diverged": False,
        "seconds": 0.02 * steps + seed,
        "tokens_per_second": 4000.0,
        "final_loss": loss,
        "final_loss_sum": loss * 8 * (length + 1),
        "evaluation": scores,
        "training_evaluation": scores if data == "fixed" else None,
        "samples": [{"source": source, "copy": written}] * 4,
    }
    return record(what, results | changes, seed)


COSTS = {
    "short": {"softmax": (4e-4, 6e-6, 0), "linear": (5e-4, 1e-5, 0), NAIVE: (6e-4, 3e-4, 0)},
    "layer": {"softmax": (4e-4, 3e-6, 2e-9), "linear": (6e-4, 5e-6, 0), NAIVE: (6e-4, 4e-5, 0)},
    "model": {"softmax": (1e-2, 2e-4, 6e-7), "linear": (2e-2, 4e-4, 0)},
    "decode": {"softmax": (7e-5, 5e-8, 0), UNCACHED: (7e-4, 2e-6, 4e-10), "linear": (9e-5, 0, 0)},
}
TIMED = {
    "short": LENGTHS,
    "layer": [2**n for n in range(3, 14)],
    "model": [2**n for n in range(3, 13)],
    "decode": [196, 784, 3072],
}


def timing(level, lengths=None, **changes):
    """Every round takes the same, so that medians and ratios are known."""
    lengths = list(TIMED[level] if lengths is None else lengths)
    seconds = {
        name: [None if name == NAIVE and n > 64 else [a + b * n + c * n * n] * 9 for n in lengths]
        for name, (a, b, c) in COSTS[level].items()
    }
    found = {"kind": "measured", "length": 819.2, "low": 758.1, "high": 921.6, "up_to": lengths[-1]}
    heads, head_dim = {"model": (4, 16), "decode": (8, 32)}.get(level, (8, 64))
    what = {"trial": f"timing, {level}", "level": level, "part": "timing", "budget": 60.0, "lengths": lengths}
    what |= {"heads": heads, "head_dim": head_dim, "batch_size": 1} | ({"layers": 2} if level == "model" else {})
    results = {
        "lengths": lengths,
        "seconds": seconds,
        "exponent": {name: {"median": 1.01, "low": 0.97, "high": 1.06} for name in seconds},
        "crossover": {name: found for name in seconds if name != "softmax"},
    }
    if level == "decode":
        results["bytes"] = {"softmax": [2048 * n for n in lengths], "linear": [33792 for _ in lengths]}
        results["bytes"] |= {UNCACHED: [None] * len(lengths)}
    else:
        results["left_out"] = []
    return record(what, results | changes)


def whole(seeds=3):
    found = [timing(level) for level in TIMED]
    for seed in range(seeds):
        found += [training(m, n, seed=seed) for m in MECHANISMS for n in LENGTHS]
        found += [training(m, n, "fixed", seed=seed) for m in PAIR for n in LENGTHS]
        found += [training(m, 32, steps=10_000, seed=seed) for m in PAIR]
        found += [training(m, 32, "fixed", activation="elu1", seed=seed) for m in PAIR]
    return found


VERDICTS = [
    {
        "claim": f"1{letter}",
        "document": "002",
        "says": f"Linear converges, part {letter}.",
        "claimed": "0 to 70",
        "verdict": word,
        "because": f"{letter}: linear's loss is 0.02 [0.01, 0.03] higher.",
        "records": [f"fixed, {m}, length {n}, 3000 steps" for m in PAIR for n in LENGTHS],
    }
    for letter, word in zip("abcde", ("reproduced", "refuted", "refuted", "inconclusive", "not measured"), strict=True)
]


@pytest.fixture(scope="module")
def records():
    return whole()


@pytest.fixture(scope="module")
def page(records):
    return studies.page("copy", records, VERDICTS)


@pytest.fixture(scope="module")
def files(records):
    return studies.markdown("copy", records, VERDICTS)


def blocks(found, title, kind):
    """What the blocks of one kind in a section say."""
    study = trials.read("copy", found)
    (section,) = [one for one in studies.sections("copy", study, VERDICTS) if one.title == title]
    return [said for name, said in section.blocks if name == kind]


def shown(table):
    return [[text for text, _ in line] for line in table["lines"]]


# What it says first


def test_both_forms_begin_with_the_verdicts(page, files):
    said = "The copy task, run again: 5 claims, 1 reproduced, 2 refuted, 1 inconclusive, 1 not measured"
    assert re.search(r"<h1>(.*?)</h1>", page)[1] == said
    assert f"**{said}.**" in files["copy.md"]
    assert page.index('<table class="verdicts">') < page.index("<figure>")
    assert files["copy.md"].index("| 1a: **reproduced** |") < files["copy.md"].index("![")
    for row in VERDICTS:
        assert row["says"] in page
        assert row["says"] in files["copy.md"]
    assert page.count('linear&#x27;s loss is 0.02&nbsp;<span class="ci">[0.01, 0.03]</span> higher.') == 5
    assert files["copy.md"].count(r"linear's loss is 0.02 \[0.01, 0.03\] higher.") == 5
    assert page.count("from fixed, softmax/linear, length 8/16/32/64, 3000 steps") == 5


def test_trials_are_named_together_only_where_all_combinations_are_there():
    names = [f"fixed, {m}, length {n}, 30 steps" for m in PAIR for n in (4, 8)]
    assert studies.condensed([*names, names[0] + ", elu1"]) == [
        "fixed, softmax/linear, length 4/8, 30 steps",
        "fixed, softmax, length 4, 30 steps, elu1",
    ]
    assert studies.condensed(names[:3]) == names[:3]
    assert studies.condensed([]) == []


# Its numbers


def test_document_002_meets_at_3149():
    assert round(trials.meeting(studies.THEIRS)) == 3149
    assert trials.meeting({8: (1, 2), 16: (1, 4), 32: (1, 8)}) is None  # they run apart


def test_their_table_stands_beside_ours(records):
    (table,) = blocks(records, "Their table, and ours", "table")
    model = {name: [3000 * (a + b * n + c * n * n) for n in LENGTHS] for name, (a, b, c) in COSTS["model"].items()}
    ratio = [linear / softmax for softmax, linear in zip(*model.values(), strict=True)]
    first = ["8", "221", "1,738", "7.86", "34.9", "69.6", figures.digits(ratio[0]), "61 ± 1", "61 ± 1"]
    assert shown(table)[0] == first
    assert [line[6] for line in shown(table)] == [figures.digits(r) for r in ratio]
    (about,) = blocks(records, "Their table, and ours", "text")
    assert "Ours: 4 heads of 16, 2 + 2 layers, batch 1, on AMD EPYC family 26 model 2, 2 cores" in about


def test_scores_are_means_and_deviations_over_seeds():
    values = (0.5, 0.6, 0.7)
    found = [
        training("linear", 8, seed=seed, final_loss=v, evaluation={"token_accuracy": v})
        for seed, v in enumerate(values)
    ]
    (table,) = blocks([*found, training("linear", 16, seed=0)], "After the last step", "table")
    headings = [heading for heading, _ in table["headings"]]
    first, second = (dict(zip(headings, line, strict=True)) for line in shown(table))
    assert (first["seeds"], first["loss, training"], first["tokens"]) == ("3", "0.6 ± 0.1", "60.0 ± 10.0")
    assert (second["seeds"], "±" in second["tokens"]) == ("1", False)
    assert "loss of a batch" not in headings  # only document 002's own set-up has it


def test_a_curve_goes_on_without_the_seed_that_stopped():
    one, other = [[10, 2.0], [20, 1.0]], [[10, 4.0]]
    found = trials.read("copy", [training("linear", 8, seed=s, curve=c) for s, c in enumerate((one, other))])
    assert trials.over_seeds(found.trainings) == [(10, 3.0, pytest.approx(2**0.5)), (20, 1.0, 0.0)]


def test_an_interval_is_that_of_the_verdicts():
    from anyformer.measure import time

    values = [random.Random(3).uniform(1, 2) for _ in range(5)] + [1.5, 1.6, 1.7]
    assert trials.interval(values) == tuple(time.interval(values))


def test_crossings_are_all_in_one_picture(records):
    (picture,) = blocks(records, "Where linear overtakes", "picture")
    (table,) = blocks(records, "Where linear overtakes", "table")
    lengths = dict(shown(table))
    assert list(lengths.values())[:4] == ["3,149", "512", "819 [758, 922]", "819 [758, 922]"]
    assert "linear, whole model: the same regressions from 8 to 64" in lengths
    svg = ElementTree.fromstring(curves.sheet(picture))
    texts = ["".join(node.itertext()) for node in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("819") == 2
    assert {"3,149", "512", "linear, document 002", "the paper", "linear, one layer"} <= set(texts)


def test_decoding_has_time_and_bytes(records):
    (table,) = blocks(records, "Decoding", "table")
    assert shown(table)[1] == [
        *("784", "90 µs", "109 µs", "2.51 ms"),
        *(figures.digits((7e-5 + 5e-8 * 784) / 9e-5), figures.digits((7e-4 + 2e-6 * 784 + 4e-10 * 784**2) / 9e-5)),
        *("33 KiB", "1.53 MiB"),
    ]


def test_the_newest_record_of_a_trial_counts(records):
    old, new = (training("linear", 8, final_loss=v, final_loss_sum=v) for v in (9.0, 1.0))
    failed = {**training("linear", 8, final_loss=5.0), "status": "failed"}
    (one,) = trials.read("copy", [old, new, failed, {"kind": "bench"}]).trainings
    assert one.numbers["final_loss"] == 1.0
    other = record({**new["what"], "preset": "paper"}, {})
    with pytest.raises(ValueError, match="several presets"):
        studies.page("copy", [new, other], VERDICTS)


# What is missing


def test_what_has_not_run_is_said():
    found = [training(m, n, seed=s) for m in PAIR for n in (8, 16) for s in (0, 1)]
    gone = found.pop()
    lost = training("linear", 8, "fixed", diverged=True, evaluation=None, final_loss=None, final_loss_sum=None)
    (said,) = blocks([*found, lost, timing("layer", left_out=[16384])], "What is missing", "list")
    assert gone["seed"] == 1
    assert said[:3] == [
        "Fresh data, 3,000 steps, linear, 16 tokens: not run with seed 1.",
        "A fixed set of 8 batches, 3,000 steps, linear, 8 tokens: not run with seed 1.",
        "A fixed set of 8 batches, 3,000 steps, linear, 8 tokens: diverged with seed 0, and has only its curve.",
    ]
    assert "Timing of whole model: not run." in said
    assert "Timing of one layer: no time was left at 16,384 tokens." in said
    assert any(one.startswith("Timing of one layer: linear, naive was not run at 128, 256") for one in said)
    assert (
        "Nothing" in blocks(whole(1)[:1] + [timing(level, LENGTHS) for level in TIMED], "What is missing", "list")[0][0]
    )


def test_a_case_that_has_not_run_is_a_line_of_its_table():
    found = [training("softmax", 8), training("linear", 8), training("softmax", 16)]
    (table,) = blocks(found, "After the last step", "table")
    assert shown(table)[3][:4] == ["16", "linear", "not run", "\N{EN DASH}"]


@pytest.mark.parametrize("found", [[], [timing("decode")], [timing("short")], [training("linear", 8)]])
def test_little_is_a_page_that_says_so(found):
    page, files = studies.page("copy", found, []), studies.markdown("copy", found, [])
    for text in (page, files["copy.md"]):
        assert ("The timing of decoding has not run." in text) == (found != [timing("decode")])
        assert ("No training has run." in text) == (found != [training("linear", 8)])
        assert "No such training has run." in text
        assert "the timing of the whole model has not run" in text
    assert {"copy.md", "copy-crossover.svg"} <= set(files)


# Copies


def test_wrong_symbols_are_marked():
    found = [training("linear", 4, samples=[{"source": [1, 2, 3, 4], "copy": [1, 9, 3, 10, 4]}])]
    page, text = studies.page("copy", found, []), studies.markdown("copy", found, [])["copy.md"]
    assert "<code>1234|</code>" in page
    assert "<code>1<mark>9</mark>3<mark>|</mark><mark>4</mark></code></td><td>3 wrong</td>" in page
    assert "source  1234|\nlinear  193|4\n         ^ ^^\n```" in text


@pytest.mark.parametrize("odd", [[], [1, 2], [1, "x", None, 99, -3], [1, 2, 3, 4, 10, 5]])
def test_a_copy_of_any_kind_is_shown(odd):
    found = [training("linear", 4, samples=[{"source": [1, 2, 3, 4], "copy": odd}])]
    (sample,) = blocks(found, "Copies", "samples")
    ((source, (line,)),) = sample["sources"]
    assert source == "1234|"
    assert len(line["written"]) == max(5, len(odd))
    assert line["wrong"] != "right"


# Figures


def test_every_figure_is_sound_and_every_id_is_unique(page):
    svgs = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg .*?</svg>", page, re.S)]
    images = [svg for svg in svgs if svg.get("role") == "img"]
    assert len(images) == 4 + 5 + 1 + 2 + 3 + 2  # fresh, fixed, long, crossings, lengths, decoding
    assert all(svg.get("aria-label") for svg in images)
    ids = re.findall(r'\sid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]*)', page)) <= set(ids)
    assert re.findall(r"#[0-9a-f]{6}\b", " ".join(re.findall(r"<svg .*?</svg>", page, re.S))) == []


def test_pictures_stand_alone_and_never_change(records, files):
    assert studies.markdown("copy", copy.deepcopy(records), VERDICTS) == files
    pictures = {name: text for name, text in files.items() if name != "copy.md"}
    assert len(pictures) == 6
    for name, text in pictures.items():
        root = ElementTree.fromstring(text)
        assert root.get("width") == root.get("viewBox").split()[2]
        assert "var(--" not in text
        assert files["copy.md"].count(f"]({name})") == 1
    assert "Date" not in "".join(files.values())


def test_panels_of_one_figure_have_one_scale(records):
    fresh, _ = blocks(records, "Convergence", "picture")
    assert [panel.title for panel in fresh.panels] == [f"{n} tokens" for n in LENGTHS]
    ticks = {tuple(re.findall(r">(0\.\d+|1|10)</text>", panel["svg"])) for panel in curves.panels(fresh)}
    assert len(ticks) == 1
    assert next(iter(ticks))


def test_every_row_of_every_markdown_table_is_whole(files):
    tables = re.findall(r"(?:^\|.*\n)+", files["copy.md"], re.M)
    assert len(tables) >= 10
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


# Whatever stands in a record


class Reader(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))


ATTACK = '"><img src=x onerror=alert(1)></script><script>alert(2)</script>{{ 7 * 7 }}'
KEPT = {"study", "copy", "done", "training", "timing", "fresh", "fixed", "measured", *MECHANISMS, *TIMED}


def attacked(value):
    """Every text that means nothing to the report replaced."""
    if isinstance(value, str):
        return value if value in KEPT else ATTACK
    if isinstance(value, list):
        return [attacked(inside) for inside in value]
    if isinstance(value, dict):
        return {key: attacked(inside) for key, inside in value.items()}
    return value


def test_nothing_of_a_record_becomes_markup():
    hostile = [
        {**attacked(one), "versions": {ATTACK: ATTACK}, "started": ATTACK, "commit": ATTACK} for one in whole(1)[:8]
    ]
    for n, one in enumerate(hostile):
        one["what"]["trial"] = f"{n}{ATTACK}"
    verdicts = [{**attacked(VERDICTS[0]), "verdict": ATTACK}]
    page, files = studies.page("copy", hostile, verdicts), studies.markdown("copy", hostile, verdicts)
    found = Reader(page)
    assert {tag for tag, _ in found.tags} <= TAGS
    assert not [name for _, attributes in found.tags for name in attributes if name.startswith("on")]
    assert [tag for tag, _ in found.tags].count("script") == 1
    assert ATTACK in unescape(page)
    text = re.sub(r"```.*?```", "", files["copy.md"], flags=re.S)
    assert re.findall(r"(?<!\\)<", text) == []
    for name, picture in files.items():
        if name != "copy.md":
            assert not [n for n in ElementTree.fromstring(picture).iter() if n.tag.endswith(("script", "img", "image"))]


def test_the_policy_allows_the_pages_own_script_and_nothing_else(page):
    found = Reader(page)
    (policy,) = [a["content"] for tag, a in found.tags if tag == "meta" and "http-equiv" in a]
    script = re.search(r"<script>(.*?)</script>", page, re.S)[1]
    assert f"script-src '{csp_hash(script)}'" in policy
    assert policy.startswith("default-src 'none'")
    assert [a for _, a in found.tags if {"src", "srcset"} & a.keys()] == []
    links = {a["href"] for _, a in found.tags if "href" in a}
    assert all(link.startswith(("#", "https://arxiv.org/abs/")) for link in links)


ODD = [None, True, -1, 0, 1e308, 10**400, float("nan"), "NaN", "", [], [[]], {}, [None], "\ud800\u202e\x00"]


DRAWN = {"curve", "lengths", "seconds", "bytes", "crossover", "exponent", "length", "activation", "steps"}


@pytest.mark.parametrize("part", ["what", "results"])
@pytest.mark.parametrize(
    "make", [lambda: training("linear", 8), lambda: timing("layer", [8, 64]), lambda: timing("decode")]
)
def test_an_odd_record_is_read_or_named_but_never_breaks_the_page(make, part):
    def inside(one):
        return one["what"] if part == "what" else one["results"][0]

    for key in inside(make()).keys() - {"study", "preset"}:
        for odd in ODD:
            strange = make()
            inside(strange)[key] = odd
            study = trials.read("copy", [strange])
            assert len(study.trainings) + len(study.timings) + len(study.unread) == 1
            if study.unread:
                assert studies.missing(study)[0].endswith("so nothing here is from it.")
                continue
            for section in studies.sections("copy", study, []):
                for kind, said in section.blocks:
                    if kind != "picture":
                        assert studies.MARKS[kind](said).encode()
                    elif key in DRAWN and said.name != "crossover":
                        assert curves.sheet(said).encode()


@pytest.mark.parametrize("key", sorted(record({}, {}).keys() - {"kind", "what", "status"}))
def test_odd_facts_never_break_the_page(key):
    for odd in ODD:
        study = trials.read("copy", [training("linear", 8) | {key: odd}])
        for section in studies.sections("copy", study, []):
            assert all(kind == "picture" or studies.MARKS[kind](said).encode() for kind, said in section.blocks)


def test_a_record_that_cannot_be_read_is_named():
    bad = training("linear", 8, curve=[[1, -2.0]])
    (said,) = blocks([bad], "What is missing", "list")
    assert said[0] == (
        "fresh, linear, length 8, 3000 steps: its curve has points without a step and a loss: the record cannot be "
        "read, so nothing here is from it."
    )


def test_importing_the_report_needs_neither_torch_nor_the_extra(python):
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'numpy', 'jinja2', 'matplotlib', 'rich')))\n"
        "import anyformer.reports.studies"
    )
    done = python("-c", code)
    assert (done.returncode, done.stderr) == (0, b"")
