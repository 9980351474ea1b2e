"""The page in a real browser, from disk and without a network."""

import shutil
from contextlib import contextmanager

import pytest
import synthetic

from anyformer.reports import page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="neither chromium nor google-chrome is installed")

HOSTILE = "<img src=x onerror=window.hacked=1>"


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(page.render([synthetic.record()]), encoding="utf-8")
    return path


@contextmanager
def opened(browser, path, width=1280, **options):
    """The page, after which nothing may have gone wrong and nothing may have been asked of a network."""
    context = browser.new_context(viewport={"width": width, "height": 900}, **options)
    context.set_offline(True)
    wrong = []

    def guard(route):
        if route.request.url.startswith("file://"):
            route.continue_()
        else:
            wrong.append(f"asked for {route.request.url}")
            route.abort()

    context.route("**/*", guard)
    shown = context.new_page()
    shown.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    shown.on("pageerror", lambda error: wrong.append(str(error)))
    shown.goto(path.as_uri())
    yield shown
    context.close()
    assert wrong == []


def test_it_opens_from_disk_without_a_network(browser, whole):
    with opened(browser, whole) as shown:
        assert shown.locator("h1").inner_text().startswith("On this machine")
        assert shown.locator("h1").bounding_box()["y"] < 200


def test_every_figure_has_a_size_and_a_name(browser, whole):
    with opened(browser, whole) as shown:
        figures = shown.locator("figure svg")
        assert figures.count() == 35
        for box in figures.evaluate_all("all => all.map(svg => [svg.clientWidth, svg.clientHeight, svg.ariaLabel])"):
            assert box[0] > 100
            assert box[1] > 100
            assert box[2]
        drawn = shown.locator("figure svg path").evaluate_all("all => all.filter(p => p.getBBox().width > 0).length")
        assert drawn > 500


def test_a_click_or_a_key_on_a_heading_sorts_both_ways(browser, whole):
    with opened(browser, whole) as shown:
        table = shown.locator("#run1-numbers table").first
        heading = table.locator("th", has_text="ratio")

        def ratios():
            return [float(text.split()[0]) for text in table.locator("td:nth-child(3)").all_inner_texts()]

        before = ratios()
        heading.locator("button").click()
        assert heading.get_attribute("aria-sort") == "ascending"
        assert ratios() == sorted(before) != before
        heading.locator("button").click()
        assert heading.get_attribute("aria-sort") == "descending"
        assert ratios() == sorted(before, reverse=True)
        name = table.locator("th", has_text="mechanism")
        name.locator("button").focus()
        shown.keyboard.press("Enter")
        names = table.locator("td:nth-child(1)").all_inner_texts()
        assert names == sorted(names)
        assert (name.get_attribute("aria-sort"), heading.get_attribute("aria-sort")) == ("ascending", None)


def test_what_is_missing_is_sorted_last_both_ways(browser, whole):
    with opened(browser, whole) as shown:
        table = shown.locator("#run1-scaling table").nth(1)
        for _ in range(2):
            table.locator("th", has_text="off by").locator("button").click()
            said = table.locator("td:nth-child(6)").all_inner_texts()
            assert [text == "right" for text in said] == sorted(text == "right" for text in said)
            assert said.count("right") == 8


def luminance(colour):
    parts = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_colour_schemes_can_be_read(browser, whole, scheme):
    def colour(place, name):
        return place.evaluate("(node, name) => getComputedStyle(node)[name]", name)

    with opened(browser, whole, color_scheme=scheme) as shown:
        ground = colour(shown.locator("body"), "backgroundColor")
        assert (luminance(ground) > 0.8) == (scheme == "light")
        assert (luminance(ground) < 0.05) == (scheme == "dark")
        for words in ("h1", ".detail", "section p", "summary", "nav a", ".card .rule", "h3"):
            assert contrast(colour(shown.locator(words).first, "color"), ground) > 4.5, words
        surface = colour(shown.locator("figure").first, "backgroundColor")
        figure = shown.locator("figure svg").first
        for n in range(figure.locator("text").count()):
            assert contrast(colour(figure.locator("text").nth(n), "fill"), surface) > 3
        strokes = {colour(place, "stroke") for place in figure.locator("use").all()} - {"none"}
        assert len(strokes) >= 5
        assert all(contrast(stroke, surface) > 3 for stroke in strokes)


def test_a_phone_scrolls_down_and_not_aside(browser, whole):
    with opened(browser, whole, width=390) as shown:
        shown.locator("details").evaluate_all("all => all.forEach(one => one.open = true)")
        assert shown.evaluate("document.documentElement.scrollWidth") <= 390
        boxes = shown.locator("figure svg").evaluate_all("all => all.map(svg => svg.getBoundingClientRect().right)")
        assert max(boxes) <= 390
        sizes = shown.locator("figure svg text").evaluate_all(
            "all => all.map(text => parseFloat(getComputedStyle(text).fontSize) * text.getCTM().a)"
        )
        assert min(sizes) >= 9
        ticks = shown.locator("figure svg text").evaluate_all(
            "all => all.map(t => [t.getBoundingClientRect(), t.closest('svg').getBoundingClientRect()])"
            ".map(([t, svg]) => Math.max(svg.left - t.left, t.right - svg.right))"
        )
        assert max(ticks) < 1  # no text is cut off


@pytest.mark.parametrize("width", [390, 1280])
def test_a_hostile_record_executes_nothing(browser, tmp_path, width):
    def cost(name, n):
        return n**2 if name == "softmax" else 300.0 * n

    rows = [
        synthetic.series(HOSTILE + 40 * "x", mode, cost=cost, against="softmax") for mode in ("train", "train memory")
    ]
    rows += [{"mechanism": HOSTILE, "failed": HOSTILE}, {"mechanism": HOSTILE, "skipped": 60 * HOSTILE}]
    rows += [{"mechanism": HOSTILE, "matrix": {"causal": True, "weights": [[1.0]]}}]
    record = synthetic.record(rows, machine={"processor": HOSTILE, HOSTILE: HOSTILE}, commit=f"{HOSTILE}</script>")
    record["what"] |= {"names": [HOSTILE], "dtype": "javascript:window.hacked=1", "set": {HOSTILE: {HOSTILE: HOSTILE}}}
    path = tmp_path / "hostile.html"
    path.write_text(page.render([record]), encoding="utf-8")
    with opened(browser, path, width=width) as shown:
        shown.locator("th button").evaluate_all("all => all.forEach(button => button.click())")
        assert shown.evaluate("window.hacked") is None
        assert shown.locator("img, iframe, object, embed, form").count() == 0
        assert HOSTILE in shown.locator("h1").inner_text()
        assert shown.evaluate("document.documentElement.scrollWidth") <= width


def test_the_picture_opens_alone(browser, tmp_path):
    from anyformer.reports.figures import crossing

    (tmp_path / "crossing.svg").write_text(crossing(synthetic.record()), encoding="utf-8")
    path = tmp_path / "shown.html"
    path.write_text("<!doctype html><img src=crossing.svg>", encoding="utf-8")
    with opened(browser, path) as shown:
        width, height = shown.locator("img").evaluate("img => [img.naturalWidth, img.naturalHeight]")
        assert width > height > 300
