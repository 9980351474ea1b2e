"""The referee's page: what it says first, what it draws, and that no record can break or misuse it."""

import copy
import json
import re
import shlex
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

import pytest
import synthetic

import anyformer as af
from anyformer.card import entries
from anyformer.cli import command_line
from anyformer.reports import figures, page
from anyformer.reports.figures import all_series, series

TITLES = page.titles(entries())
PAGE = (
    "html head meta title style body main nav a article header footer section h1 h2 h3 h4 p b br span sup ul li dl dt"
)
TABLES = "dd div figure figcaption details summary table caption thead tbody tr th td button code script"
TAGS = set(f"{PAGE} {TABLES} svg g path use text defs clippath rect".split())


def cost(name, n):
    return {"softmax": 1e-9 * n**2, "linear": 3e-7 * n}[name]


def row(**more):
    return synthetic.series("linear", "train", causal=True, cost=cost) | more


def crossing(kind, length=None, low=None, high=None, up_to=4096):
    return {"kind": kind, "length": length, "low": low, "high": high, "up_to": up_to}


def headline(*rows):
    return page.summary(synthetic.record(list(rows)))["headline"]


def view(*rows, **changes):
    return page.view(synthetic.record(list(rows), **changes), "run1", TITLES)


@pytest.fixture(scope="module")
def whole():
    return page.render([synthetic.record()])


class Reader(HTMLParser):
    """Collects tags and attributes as a browser would see them."""

    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


# The answer


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            crossing("measured", 310.4, 290, 340),
            "On this machine linear attention overtakes softmax at 310 [290, 340] tokens for training (causal).",
        ),
        (
            crossing("from the first length", 128),
            "On this machine linear attention overtakes softmax from the first length measured on (128) "
            "for training (causal).",
        ),
        (crossing("none"), "On this machine keep softmax: nothing overtakes it up to 4,096 tokens."),
        (crossing("inconclusive"), "Inconclusive: the machine was too loaded."),
    ],
)
def test_the_page_begins_with_the_answer(found, said):
    assert headline(row(crossover=found)) == said
    text = page.render([synthetic.record([row(crossover=found)])])
    first = re.search(r"<h1>(.*?)</h1>", text)[1]
    assert unescape(re.sub("<[^>]*>", "", first)).replace("\N{NO-BREAK SPACE}", " ") == said
    assert text.index("<h1>") < text.index("<figure>") < text.index("<table")


@pytest.mark.parametrize(
    ("found", "verdict", "rule"),
    [
        (crossing("measured", 310, 290, 340), "310 [290, 340]", "Keep softmax below 310 tokens."),
        (crossing("measured", 310), "310", "Keep softmax below 310 tokens."),
        (
            crossing("from the first length", 128),
            "from the first length measured on (128)",
            "Take linear: it is ahead at every length measured, from 128 tokens on.",
        ),
        (crossing("none"), "never up to 4,096", "Keep softmax up to 4,096 tokens."),
        (
            crossing("inconclusive"),
            "inconclusive: the machine was too loaded",
            "Undecided: the machine was too loaded.",
        ),
    ],
)
def test_each_case_says_what_to_do(found, verdict, rule):
    (level,) = view(row(crossover=found))["answers"]
    (card,) = level["cards"]
    assert (level["level"], card["title"], card["rule"]) == ("Attention alone", "Training, causal", rule)
    ((against, (line,)),) = card["groups"]
    assert (against, line["name"], line["verdict"]) == ("softmax", "linear", verdict)


def test_the_earliest_case_is_the_headline_and_is_marked():
    early = row(crossover=crossing("measured", 200, 190, 210))
    late = row(mechanism="local", mode="forward", crossover=crossing("measured", 900, 890, 910))
    layer = row(level="layer", crossover=crossing("measured", 150, 140, 160))
    found = view(late, early, layer)
    assert "linear attention overtakes softmax at 200 [190, 210]" in found["headline"]["text"]
    marked = [(level["level"], card["title"]) for level in found["answers"] for card in level["cards"] if card["best"]]
    assert marked == [("Attention alone", "Training, causal")]


def test_who_overtakes_first_stands_first_and_a_second_baseline_last():
    names = ["performer", "linear", "local", "linformer"]
    found = [crossing("none"), crossing("measured", 500, 450, 550), crossing("measured", 200, 190, 210)]
    rows = [row(mechanism=n, crossover=c) for n, c in zip(names, [*found, crossing("inconclusive")], strict=True)]
    other = row(mechanism="local", against="softmax, nothing cached", crossover=crossing("from the first length", 128))
    (level,) = view(other, *rows)["answers"]
    groups = level["cards"][0]["groups"]
    assert [against for against, _ in groups] == ["softmax", "softmax, nothing cached"]
    assert [line["name"] for line in groups[0][1]][:2] == ["local", "linear"]
    assert {line["name"] for line in groups[0][1]} == set(names)
    assert "at 200 [190, 210]" in headline(other, *rows)  # the second baseline makes no headline


def test_inconclusive_cases_are_counted_when_nothing_overtakes():
    found = view(row(crossover=crossing("none")), row(mechanism="local", crossover=crossing("inconclusive")))
    assert "nothing is seen to overtake it up to 4,096 tokens" in found["headline"]["text"]
    assert found["headline"]["detail"] == "1 of 2 comparisons are inconclusive."


def test_a_title_is_given_with_its_name_where_it_does_not_contain_it():
    assert page.titled("linear", TITLES) == "linear attention"
    assert page.titled("local", TITLES) == "sliding-window attention (local)"
    assert page.titled("performer:relu", TITLES) == "Performer (performer:relu)"
    assert page.titled("linear, compiled", TITLES) == "linear attention (linear, compiled)"
    assert page.titled("somebody:else", TITLES) == "somebody:else"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("measured", "linear attention needs less memory than softmax at 310 [290, 340] tokens for training (causal)"),
        ("none", "linear attention never needs less memory than softmax up to 4,096 for training (causal)"),
    ],
)
def test_memory_has_sentences_of_its_own(kind, said):
    memory = row(mode="train memory", crossover=crossing(kind, 310, 290, 340))
    (answer,) = page.summary(synthetic.record([memory]))["answers"]
    assert (answer["sentence"], answer["memory"], answer["mode"]) == (said, True, "train")


# Which runs


def started(hour, **changes):
    return synthetic.record([row()], started=f"2026-11-20T{hour:02}:00:00+00:00", **changes)


def test_the_newest_run_of_each_machine_and_request_counts():
    other = {**synthetic.record()["machine"], "cores": 64}
    runs = [started(3), started(1), started(2, machine=other), started(4, kind="bench"), started(5, status="failed")]
    assert page.newest(runs) == [runs[0], runs[2]]
    longer = started(6, what={**runs[0]["what"], "budget": 600.0})
    assert page.newest([*runs, longer]) == [longer, runs[0], runs[2]]


def test_a_cancelled_run_counts_only_where_there_is_no_other_and_is_marked():
    done, cancelled = started(1), started(2, status="cancelled")
    assert page.newest([done, cancelled]) == [done]
    assert page.newest([cancelled]) == [cancelled]
    assert "This run was cancelled." in page.render([cancelled])
    assert "cancelled" not in page.render([done])


def test_without_a_finished_run_the_error_says_what_to_do():
    with pytest.raises(ValueError, match="no finished run of the referee is recorded: run `anyformer crossover`"):
        page.newest([started(1, kind="bench")])
    with pytest.raises(ValueError, match=r"\(the last one failed: MemoryError: 3\): run"):
        page.newest([started(1, status="failed", error="MemoryError: 3")])


def test_several_runs_begin_with_a_list_of_their_answers():
    runs = [started(1), started(2, machine={"processor": "another one", "cores": 64})]
    text = page.render(runs)
    assert text.index('<nav aria-label="Runs"') < text.index("<h1>")
    assert re.findall(r'<a href="#(run\d)">([^<]*)', text) == [
        ("run1", "another one, 64 cores"),
        ("run2", "AMD EPYC family 26 model 2, 2 cores"),
    ]
    assert text.count("<article ") == text.count("<h1>") == 2


# Figures


def test_every_figure_is_sound_xml_with_words_and_every_id_is_unique():
    text = page.render([synthetic.record(), synthetic.record(machine={"processor": "another"})])
    svgs = re.findall(r"<svg .*?</svg>", text, re.S)
    named = [ElementTree.fromstring(svg) for svg in svgs]
    images = [svg for svg in named if svg.get("role") == "img"]
    assert len(images) == 2 * (8 + 9 + 1 + 8 + 1 + 8)  # speed, time, decoding, memory, state, matrices
    assert all(svg.get("aria-label") for svg in images)
    assert all(svg.get("aria-hidden") == "true" for svg in named if svg not in images)
    ids = re.findall(r'\sid="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]*)', text)) <= set(ids)


def test_figures_take_their_colours_from_the_page(whole):
    colours = set(re.findall(r"#[0-9a-f]{6}\b", " ".join(re.findall(r"<svg .*?</svg>", whole, re.S))))
    assert colours == set()
    used = set(re.findall(r"var\(--(\w+)\)", whole))
    defined = set(re.findall(r"--(\w+):", whole))
    assert used <= defined
    assert set(figures.LIGHT) == set(figures.DARK) <= defined


def test_a_figure_shows_each_length_and_crossing():
    found = [series(row(crossover=crossing("measured", 310, 290, 340)))]
    svg = figures.ratios(found, figures.styles(found), "salt", "label")
    points = len(found[0].points)
    texts = re.findall(r"<text[^>]*>([^<]*)", svg)
    assert {"128", "512", "4,096", "tokens", "310", "1"} <= set(texts)
    assert svg.count("<use ") == points + 2  # and the band and the ring
    hollow = [series(row(status=["measured"] * (points - 1) + ["inconclusive"], crossover=crossing("none")))]
    assert figures.ratios(hollow, figures.styles(hollow), "salt", "label").count("<use ") == points + 2
    assert "310" not in figures.costs(found, figures.styles(found), "salt", "label")


def test_without_points_there_is_no_figure():
    bare = [
        series({**row(), "lengths": [], "ratios": [], "left_out": [{"length": 128, "why": "no time left"}]} | EMPTY)
    ]
    assert figures.ratios(bare, figures.styles(bare), "salt", "label") == ""
    assert figures.costs(bare, figures.styles(bare), "salt", "label") == ""


EMPTY = {"values": {"mechanism": [], "against": []}, "status": [], "over_floor": []}


def test_decoding_labels_the_baseline_that_caches_nothing(whole):
    section = whole[whole.index('id="run1-decoding"') : whole.index('id="run1-memory"')]
    assert section.count("<figure>") == 3
    legend = section[section.index('class="legend"') : section.index("</ul>")]
    assert re.findall(r"</svg>([^<]+)</li>", legend) == ["softmax", "softmax, nothing cached", "linear", "local"]
    assert "“Nothing cached” computes everything again for each token." in section


def test_a_matrix_is_as_dark_as_its_weights_and_blank_at_zero():
    svg = figures.matrix([[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [-1.0, 0.0, 1.0]], "a <label>")
    squares = {
        (path.get("style"), square)
        for path in ElementTree.fromstring(svg)
        for square in re.findall(r"M(\d \d)", path.get("d"))
    }
    full, half, negative = (f"fill: var(--line{n}); fill-opacity: {shade}" for n, shade in ((0, 1), (0, 0.5), (1, 1)))
    assert squares == {(full, "0 0"), (half, "0 1"), (full, "1 1"), (negative, "0 2"), (full, "2 2")}


@pytest.mark.parametrize("weights", [[], [[1.0]] * 2, [[1.0, "x"], [1.0, 0.0]], [[0.0] * 65] * 65, "none"])
def test_a_matrix_that_cannot_be_drawn_is_said_to_be_so(weights):
    found = view(row(), {"mechanism": "local", "matrix": {"causal": True, "weights": weights}})
    assert found["matrices"] == [{"name": "local", "order": "causal", "svg": ""}]


def test_the_same_records_give_the_same_page_and_stay_as_they_are(whole):
    record = synthetic.record()
    assert page.render([record]) == whole
    assert record == synthetic.record()


# The picture that stands alone


def test_the_picture_is_one_svg_with_every_name_and_crossing():
    record = synthetic.record()
    svg = figures.crossing(record)
    root = ElementTree.fromstring(svg)
    assert (root.get("width"), root.get("height")) == (
        root.get("viewBox").split()[2:][0],
        root.get("viewBox").split()[3],
    )
    texts = ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]
    trained = [s for s in all_series(record)[0] if (s.mode, s.level, s.memory) == ("train", "op", False)]
    assert sorted(t for t in texts if t in TITLES or (":" in t and "_" in t)) == sorted(s.mechanism for s in trained)
    assert {figures.short(s.crossing.length) for s in trained if s.crossing.kind == "measured"} <= set(texts)
    assert "Where attention mechanisms overtake softmax" in texts
    assert "var(--" not in svg
    assert figures.crossing(record) == svg


@pytest.mark.parametrize("rows", [[], [row(mode="train memory")], [row(ratios=[None] * len(row()["lengths"]))]])
def test_without_times_there_is_no_picture(rows):
    with pytest.raises(ValueError, match="no comparison of times"):
        figures.crossing(synthetic.record(rows))


# Tables


def test_every_length_is_in_the_table_of_its_case():
    record = synthetic.record()
    found, _ = all_series(record)
    tables = page.view(record, "run1", TITLES)["numbers"]
    assert sum(len(table["lines"]) for table in tables) == sum(len(s.points) for s in found)
    assert len(tables) == len({s.case for s in found})
    table = page.numbers([series(row(status=["inconclusive"] * len(row()["lengths"])))])
    headings = ["mechanism", "tokens", "ratio", "time", "time of softmax", "over the floor", "remark"]
    assert table["headings"] == list(zip(headings, [False, *[True] * 5, False], strict=True))
    assert [line[1] for line in table["lines"][:2]] == [("128", 128.0), ("256", 256.0)]
    shown = [shown for shown, _ in table["lines"][0]]
    assert shown[:2] + shown[-1:] == ["linear", "128", "inconclusive"]
    assert re.fullmatch(r"0\.\d\d \[0\.\d\d, 0\.\d\d\]", shown[2])
    assert re.fullmatch(r"38\.4 \[[\d.]+, [\d.]+\] µs", shown[3])


def test_columns_of_numbers_have_numbers_as_keys(whole):
    class Table(HTMLParser):
        numeric, column, keys = [], 0, []

        def handle_starttag(self, tag, attributes):
            given = dict(attributes)
            if tag == "thead":
                self.numeric = []
            elif tag == "tr":
                self.column = 0
            elif tag == "th":
                self.numeric.append(given.get("class") == "n")
            elif tag == "td":
                self.keys.append((self.numeric[self.column], given["data-key"]))
                self.column += 1

    read = Table()
    read.feed(whole)
    numbers = [key for numeric, key in read.keys if numeric]
    assert len(numbers) > 1000
    assert all(key == "" or float(key) == float(key) for key in numbers)


@pytest.mark.parametrize(
    ("found", "predicted", "said"),
    [
        (crossing("measured", 300, 290, 310), 3000, "10.0\N{MULTIPLICATION SIGN} too far"),
        (crossing("measured", 300, 290, 310), 150, "2.00\N{MULTIPLICATION SIGN} too near"),
        (crossing("measured", 300, 290, 310), 305, "within the interval"),
        (crossing("measured", 300, 290, 310), None, "sees none"),
        (crossing("from the first length", 128), 100, "right"),
        (crossing("from the first length", 128), 900, "too far"),
        (crossing("none"), None, "right"),
        (crossing("none"), 9000, "right"),
        (crossing("none"), 900, "wrong"),
        (crossing("inconclusive"), 900, "\N{EN DASH}"),
    ],
)
def test_the_extrapolation_is_judged_by_what_is_measured(found, predicted, said):
    one = series(row(crossover=found, extrapolated={"length": predicted, "from": [128, 256, 512, 1024]}))
    assert page.off(one)[0] == said
    judged = page.extrapolation([one])
    assert [line[-1][0] for line in judged["table"]["lines"]] == [said]
    assert ("off by a factor of" in judged["words"]) == (found["kind"] == "measured" and predicted is not None)
    assert ("sees none" in judged["words"]) == (said == "sees none")


def test_fitted_exponents_stand_beside_the_claimed_ones():
    fitted = {"median": 0.98, "low": 0.9, "high": 1.1}
    table = page.scaling([series(row(exponent=fitted, against_exponent=None))])
    assert [[shown for shown, _ in line] for line in table["lines"]] == [
        ["linear", "Training, causal", "attention alone", "0.98 [0.90, 1.10]", "1"]
    ]
    both = page.scaling([series(row()), series(row(mechanism="local"))])
    assert [line[0][0] for line in both["lines"]] == ["linear", "softmax", "local"]  # the baseline once


def test_what_is_missing_is_said_with_the_reason():
    gaps = [{"length": 4096, "why": "no time left"}, {"length": 2048, "why": "no time left"}]
    failed = {"mechanism": "performer", "failed": "causal: the future leaks"}
    record = synthetic.record([row(left_out=gaps), failed, {"mechanism": "funnel", "skipped": "it needs a grid"}])
    record["what"]["names"] = ["linear", "performer", "funnel", "local"]
    text = page.render([record])
    assert "<b>performer</b>: no number: a law fails: causal: the future leaks" in text
    lines = page.left_out(record, all_series(record)[0])["lines"]
    assert [[shown for shown, _ in line] for line in lines] == [
        ["funnel", "everything", "\N{EN DASH}", "\N{EN DASH}", "it needs a grid"],
        ["local", "everything", "\N{EN DASH}", "\N{EN DASH}", "the record holds nothing of it"],
        ["linear", "Training, causal", "attention alone", "4,096, 2,048", "no time left"],
    ]


def test_what_was_not_measured_at_all_is_said_in_its_case():
    found = view({**row(), "lengths": [], "ratios": [], "left_out": [{"length": 128, "why": "no time left"}]} | EMPTY)
    ((_, (line,)),) = found["answers"][0]["cards"][0]["groups"]
    assert line["verdict"] == "not measured: no time left"
    assert found["answers"][0]["cards"][0]["rule"] == "Nothing was measured against softmax."
    assert found["numbers"] == found["sections"] == []


def test_the_capability_table_has_every_card():
    table = page.capabilities(entries())
    assert {line[0][0].partition(":")[0] for line in table["lines"]} == set(af.mechanisms())
    (softmax,) = [line for line in table["lines"] if line[0][0] == "softmax"]
    assert [shown for shown, _ in softmax][-3:] == ["O(N^2)", "O(N)", "Vaswani et al. 2017, arXiv:1706.03762"]


# Where it comes from


def test_the_source_is_told():
    text = page.render([synthetic.record([row()])])
    for fact in (
        "AMD EPYC family 26 model 2",
        "2.13.0+cpu",
        "c0ffee0 with uncommitted changes",
        "full, causal",
        "local.window=64",
    ):
        assert fact in text
    assert "uncommitted" not in page.render([synthetic.record([row()], dirty=False)])
    assert "<dd>not known</dd>" in page.render([synthetic.record([row()], commit=None, dirty=False)])
    limited = synthetic.record([{"limits": {"operations_per_second": 2.16e11, "bytes_per_second": 4.6e10}}])
    assert "216 GFLOP/s" in page.render([limited])


def test_the_command_runs_the_same_again():
    record = synthetic.record()
    words = shlex.split(" ".join(page.command(record)))
    assert words[:3] == ["anyformer", "crossover", "linear"]
    args, what = command_line(words[1:]).parse_args(words[1:]), record["what"]
    assert args.names == what["names"]
    assert args.lengths == ",".join(map(str, what["lengths"]))
    assert (args.mode, args.level, args.causal) == ("forward,train,decode", "op,layer", None)
    assert (args.against, args.batch, args.heads, args.head_dim) == ("softmax", 1, 4, 64)
    assert (args.dtype, args.device, args.threads, args.seed) == ("float32", "cpu", 2, 0)
    assert (args.set, args.budget, args.compile) == (["local.window=64"], "120", False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"orders": [True]}, ["--causal"]),
        ({"orders": [False]}, ["--no-causal"]),
        ({"compile": True}, ["--compile"]),
        ({"names": ["$(touch x); `y`"]}, ["$(touch x); `y`"]),
    ],
)
def test_the_command_is_quoted_and_has_what_was_asked(changes, words):
    record = synthetic.record([], what={**synthetic.record()["what"], **changes})
    assert words[0] in shlex.split(" ".join(page.command(record)))
    assert "--level" not in page.command(synthetic.record([], what={"levels": ["op, else layer"]}))


# Anybody's records


ATTACK = "<img src=x onerror=window.hacked=1>\"'><script>alert(1)</script>{{ 7 * 7 }}$x_1$]]>&amp;"


def attacked(value):
    """The value with every text and key that means nothing to the page replaced."""
    kept = {
        "crossover",
        *figures.MODES,
        *figures.LEVELS,
        *figures.KINDS,
        *(f"{m} memory" for m in figures.MODES),
        "done",
    }
    if isinstance(value, str):
        return value if value in kept else ATTACK
    if isinstance(value, list):
        return [attacked(inside) for inside in value]
    if isinstance(value, dict):
        return {key: attacked(inside) for key, inside in value.items()}
    return value


def test_nothing_of_a_record_becomes_markup():
    hostile = attacked(synthetic.record()) | {"kind": "crossover", "machine": {ATTACK: ATTACK, "processor": ATTACK}}
    for mine in hostile["results"]:
        if "status" in mine:
            mine["status"] = ["measured"] * len(mine["lengths"])
    hostile["what"]["against"] = ATTACK
    text = page.render([hostile])
    found = Reader(text)
    assert {tag for tag, _ in found.tags} <= TAGS
    assert not [name for _, attributes in found.tags for name in attributes if name.startswith("on")]
    assert len(found.all("script")) == 1
    assert "49" not in re.findall(r"<h1>(.*?)</h1>", text)[0]
    assert ATTACK in unescape(text)
    picture = ElementTree.fromstring(figures.crossing(hostile))
    assert not [node for node in picture.iter() if node.tag.rpartition("}")[2] in ("img", "script", "image")]


def test_the_policy_allows_the_pages_own_script_and_nothing_else(whole):
    found = Reader(whole)
    (policy,) = [meta["content"] for meta in found.all("meta") if meta.get("http-equiv")]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    script = re.search(r"<script>(.*?)</script>", whole, re.S)[1]
    assert rules["script-src"] == f"'{page.csp_hash(script)}'"
    assert "unsafe" not in rules["script-src"]
    loads = [value for _, attributes in found.tags for name, value in attributes.items() if name in ("src", "srcset")]
    assert loads == []
    links = {attributes["href"] for tag, attributes in found.tags if "href" in attributes}
    assert all(link.startswith(("#", "https://arxiv.org/abs/")) for link in links)
    assert "@import" not in whole
    assert "url(http" not in whole


ODD = [None, True, -1, 0, 1e308, 10**400, float("nan"), "NaN", "", [], [[]], {}, [None], "\ud800\u202e\x00"]


@pytest.mark.parametrize("key", sorted(row()))
def test_an_odd_row_is_read_or_named_but_never_breaks_the_page(key):
    good = [series(row()), series(row(mechanism="local"))]
    for odd in ODD:
        record = synthetic.record([row(**{key: odd}), row(mechanism="local")])
        found, unread = all_series(record)
        assert len(found) + len(unread) == 2
        assert good[1] in found
        told = page.summary(record)
        assert len(told["answers"]) == len(found)
        assert len(told["warnings"]) == len(unread)
        json.dumps(told["answers"], allow_nan=False)
        for s in found:
            if s not in good:
                assert figures.ratios([s], figures.styles([s]), "salt", "label").isprintable()
    missing = row()
    del missing[key]
    assert page.render([synthetic.record([missing])]).encode()


@pytest.mark.parametrize("key", [key for key in synthetic.record([]) if key != "kind"])
def test_an_odd_record_is_a_page_or_a_clear_error(key):
    for odd in ODD:
        try:
            text = page.render([synthetic.record([{"mechanism": "linear", "failed": "formula"}]) | {key: odd}])
        except ValueError as error:
            assert "no finished run" in str(error)  # noqa: PT017
        else:
            assert text.encode()
    missing = synthetic.record([row()])
    del missing[key]
    if key != "status":
        assert page.render([missing]).encode()


@pytest.mark.parametrize(
    "place", [("crossover", "kind"), ("crossover", "length"), ("crossover", "up_to"), ("values", "against")]
)
def test_odd_parts_of_a_row_never_break_the_page(place):
    for odd in ODD:
        strange = copy.deepcopy(row())
        strange[place[0]][place[1]] = odd
        found, unread = all_series(synthetic.record([strange]))
        assert len(found) + len(unread) == 1
        assert all(figures.costs([s], figures.styles([s]), "salt", "label").encode() for s in found)
        assert page.summary(synthetic.record([strange]))["headline"].endswith(".")


@pytest.mark.parametrize(
    "interval",
    [None, {}, [], 3, {"median": 1.0}, *({"median": m, "low": 1.0, "high": 2.0} for m in ("1", -1.0, 0, 1e300, 3.0))],
)
def test_an_interval_that_is_none_is_left_out(interval):
    strange = row()
    strange["ratios"][2] = interval
    found = series(strange)
    assert [p.ratio is None for p in found.points].count(True) == 1
    assert page.numbers([found])["lines"][2][2] == ("\N{EN DASH}", "")
    assert page.render([synthetic.record([strange])])


@pytest.mark.parametrize(
    "rows", [[], [None, 3, "text", []], [{"unknown": 1}], [row(mode="train memory")], [row(lengths=[300] * 7)]]
)
def test_a_record_with_little_in_it_says_what_is_missing(rows):
    text = page.render([synthetic.record(rows)])
    if not any(isinstance(r, dict) and "crossover" in r for r in rows):
        assert "This record holds no comparison of times." in text
        assert "<p>There are none.</p>" in text
    if rows and "crossover" not in (rows[0] or {}):
        assert f"of a kind that this page does not know: {len(rows)}." in text


def test_one_length_is_a_page():
    short = synthetic.series("linear", "forward", cost=cost, lengths=[300])
    text = page.render([synthetic.record([short])])
    assert text.count("<figure>") == 2
    assert figures.crossing(synthetic.record([short]))


def test_unreadable_rows_are_named():
    bad = [row(mode="sideways"), row(lengths=[1, 2]), row(mechanism=7), row(crossover=crossing("measured"))]
    (warning,) = view(*bad)["warnings"]
    assert warning == (
        "Rows of the record that cannot be read: row 1: its mode 'sideways' is unknown; row 2: it has 2 lengths, but "
        "7 of 'ratios'; row 3: its 'mechanism' is 7, which is no name; and 1 more."
    )


def test_texts_are_cut_and_stay_on_their_line():
    assert figures.printable("a\n\tb") == "a b"
    assert len(figures.printable("x" * 10_000)) == figures.LONGEST
    assert figures.printable("\ud800a\u202eb\x1b[31m") == "\N{REPLACEMENT CHARACTER}a\N{REPLACEMENT CHARACTER}b" + (
        "\N{REPLACEMENT CHARACTER}[31m"
    )
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert figures.printable(deep) == "?"
    with pytest.raises(ValueError, match="nested without end"):
        page.newest([synthetic.record(what=deep)])


def test_many_mechanisms_keep_apart_by_colour_marker_and_dash():
    found = [series(row(mechanism=f"number_{n}")) for n in range(24)]
    styles = figures.styles(found)
    assert len({styles[f"number_{n}"][:3] for n in range(24)}) == 24
    assert figures.ratios(found, styles, "salt", "label")
    picture = ElementTree.fromstring(
        figures.crossing(synthetic.record([row(mechanism=f"number_{n}") for n in range(14)]))
    )
    heights = sorted(
        float(text.get("y"))
        for text in picture.iter("{http://www.w3.org/2000/svg}text")
        if "number_" in (text.text or "")
    )
    assert len(heights) == 14
    assert all(low - high > 13.9 for high, low in pairwise(heights))  # no name on another
    assert 80 < heights[0] < heights[-1] < 430


@pytest.mark.parametrize(
    ("value", "said"),
    [(1.5e-7, "150 ns"), (3.84e-5, "38.4 µs"), (0.0123, "12.3 ms"), (2.0, "2.00 s"), (7200.0, "7,200 s")],
)
def test_times_have_their_unit(value, said):
    exactly = figures.Interval(value, value, value)
    assert page.ranged(exactly, figures.TIME) == (said, value)


# Without the extra


@pytest.mark.parametrize("missing", ["jinja2", "matplotlib"])
def test_without_the_extra_the_error_names_it(monkeypatch, missing):
    monkeypatch.setitem(__import__("sys").modules, missing, None)
    monkeypatch.setitem(__import__("sys").modules, f"{missing}.style", None)
    with pytest.raises(ImportError, match=r"pip install 'anyformer\[report\]'"):
        page.render([synthetic.record([row()])])


def test_importing_the_page_needs_neither_torch_nor_the_extra(python):
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'numpy', 'jinja2', 'matplotlib', 'rich')))\n"
        "import anyformer.reports.page, anyformer.reports.figures, anyformer.cli.report"
    )
    done = python("-c", code)
    assert (done.returncode, done.stderr) == (0, b"")
