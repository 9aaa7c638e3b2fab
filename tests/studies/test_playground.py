"""The playground of a report, in a real browser: what it shows is what the library predicts."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

import bbh
from bbh_studies.datasets import load_digits
from bbh_studies.problems.digits import digits_network
from bbh_studies.report import write_report
from bbh_studies.report.collect import collect
from bbh_studies.report.playground.draws import NUM_DRAWS, kept_draws
from bbh_studies.report.playground.layers import describe
from bbh_studies.report.playground.noise import FILE, bands_of
from bbh_studies.run.execute import execute
from bbh_studies.run.leftovers import open_posterior
from bbh_studies.run.plan import plan

ROOT = Path(__file__).parents[2]
ROWS = {"map": "MAP", "ensemble": "Deep ensemble", "bbb": "Bayes by Backprop"}
# A seven, in parts of the board.
SEVEN = [[(0.3, 0.15), (0.7, 0.15), (0.45, 0.85)], [(0.4, 0.5), (0.65, 0.5)]]


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A report with a playground; its runs lie in ``runs`` beside it."""
    folder = tmp_path_factory.mktemp("played")
    torch.manual_seed(0)
    runs = plan("digits", variants=list(ROWS), epochs=2, out=folder / "runs", keep_posterior=True)
    assert not execute(runs, device="cpu", console=Console(quiet=True)).failures
    for path in folder.rglob("arrays.npz"):
        path.unlink()  # figures take seconds to draw, and other tests look at them
    return write_report([folder / "runs"], folder / "report.html")


@pytest.fixture
def opened(browser, played, request):
    """The page, at a width and in a colour scheme."""
    width, scheme = getattr(request, "param", (1280, "light"))
    context = browser.new_context(
        viewport={"width": width, "height": 844}, color_scheme=scheme, has_touch=width < 500
    )
    page = context.new_page()
    complaints, requests = [], []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda one: requests.append(one.url))
    page.goto(played.as_uri())
    page.locator(".board").scroll_into_view_if_needed()
    yield page
    assert complaints == []
    assert [url for url in requests if not url.startswith("data:")] == [played.as_uri()]
    context.close()


def draw(page, strokes):
    box = page.locator(".board").bounding_box()
    for stroke in strokes:
        places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in stroke]
        page.mouse.move(*places[0])
        page.mouse.down()
        for place in places[1:]:
            page.mouse.move(*place)
        page.mouse.up()
    settle(page)


def settle(page):
    """Waits until what was drawn last has been painted."""
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def pixels(page):
    return np.array(page.evaluate("bbhPlayground.pixels()")).reshape(8, 8)


def predicted(folder, image, samples=None):
    """What the library predicts for one image, with the very draws of the page by default."""
    posterior, draws = kept_draws(folder)
    inputs = torch.tensor(image, dtype=torch.float32).view(1, 1, 8, 8)
    return bbh.predict(posterior, inputs, samples=samples or draws, keep_draws=True)


def test_beliefs_are_what_the_library_predicts(opened, played):
    page = opened
    page.locator("[data-part=clear]").click()
    draw(page, SEVEN)
    image = pixels(page)
    assert image.max() == 1
    beliefs = page.evaluate("bbhPlayground.beliefs()")
    for row, belief in zip(ROWS, beliefs, strict=True):
        folder = played.parent / "runs" / "digits" / "corrected" / f"{row}-0"
        predictive = predicted(folder, image)
        assert belief["mean"] == pytest.approx(predictive.mean[0].tolist(), abs=1e-5)
        assert belief["entropy"] == pytest.approx(float(predictive.entropy[0]), abs=1e-4)
        assert belief["disagreement"] == pytest.approx(
            float(predictive.mutual_information[0]), abs=1e-4
        )
        low, high = predictive.draws[:, 0].quantile(torch.tensor([0.1, 0.9]), dim=0)
        assert belief["low"] == pytest.approx(low.tolist(), abs=1e-5)
        assert belief["high"] == pytest.approx(high.tolist(), abs=1e-5)
        # The same draws before they were rounded to half precision.
        posterior, _ = open_posterior(folder, functions=False)
        torch.manual_seed(0)
        whole = posterior.eval().sample(posterior.weights.num_useful(NUM_DRAWS))
        assert belief["mean"] == pytest.approx(
            predicted(folder, image, whole).mean[0].tolist(), abs=3e-3
        )


def test_the_page_shows_these_numbers(opened, played):
    page = opened
    draw(page, SEVEN)
    belief = page.evaluate("bbhPlayground.beliefs()")[2]
    card = page.locator("[data-title='Bayes by Backprop']")
    best = int(np.argmax(belief["mean"]))
    assert card.locator(".answer").inner_text() == f"{best} · {100 * belief['mean'][best]:.0f} %"
    assert f"Entropy {belief['entropy']:.2f} nats" in card.locator(".numbers").inner_text()
    assert card.locator(".verdict").inner_text() == belief["verdict"]
    assert "has one draw" in page.locator("[data-title=MAP] .numbers").inner_text()
    # Where the drawing lies among the entropies that the same draws give to known images.
    data = load_digits()
    posterior, draws = kept_draws(played.parent / "runs" / "digits" / "corrected" / "bbb-0")
    for kind, images in (("digit", data.test_images), ("letter", data.outlier_images)):
        entropies = bbh.predict(posterior, images, samples=draws).entropy
        below = float((entropies < belief["entropy"]).float().mean())
        assert belief["shares"][kind] == pytest.approx(below, abs=0.005)
    # Said once the pen rests.
    said = page.locator("[data-part=summary]")
    page.wait_for_function("document.querySelector('[data-part=summary]').textContent")
    assert said.get_attribute("aria-live") == "polite"
    assert f"Bayes by Backprop: {best}, " in said.inner_text()


def test_pixels_are_made_as_the_data_are(opened):
    page = opened
    # An example of the data set is shown as it is, to begin with.
    assert pixels(page) == pytest.approx(load_digits().test_images[0, 0].numpy(), abs=1e-6)
    draw(page, [[(0.5, 0.2), (0.5, 0.8)]])
    line = pixels(page)
    # In the middle, from top to bottom, in sixteenths.
    assert line[:, 3:5].min() > 0
    assert line == pytest.approx(line[:, ::-1])
    assert (line * 16 == (line * 16).round()).all()
    # A smaller one elsewhere is the same digit.
    page.locator("[data-part=clear]").click()
    draw(page, [[(0.2, 0.1), (0.2, 0.45)]])
    assert np.abs(pixels(page) - line).mean() < 0.03
    # Digits of the data set have a third of their pixels on; so has a drawing.
    page.locator("[data-part=clear]").click()
    draw(page, SEVEN)
    shape = pixels(page)
    assert 0.2 < shape.mean() < 0.4
    assert shape[0].max() > 0
    assert shape[-1].max() > 0


def test_the_keyboard_draws(opened):
    page = opened
    page.locator("[data-part=clear]").click()
    page.keyboard.press("Shift+Tab")  # from the first button back to the board
    assert page.evaluate("document.activeElement.className") == "board"
    at = page.evaluate("scrollY")
    page.keyboard.press("Space")
    for _ in range(16):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    page.keyboard.press("ArrowLeft")  # the pen is up
    settle(page)
    assert page.evaluate("scrollY") == at
    line = pixels(page)
    assert line[:, 3:5].min() > 0
    assert line == pytest.approx(line[:, ::-1])
    page.keyboard.press("Space")
    page.keyboard.press("ArrowLeft")
    settle(page)
    assert (pixels(page) != line).any()
    page.keyboard.press("Backspace")
    settle(page)
    assert (pixels(page) == line).all()
    page.keyboard.press("Escape")
    settle(page)
    assert pixels(page).max() == 0
    assert page.evaluate("bbhPlayground.beliefs()") is None
    assert page.locator(".belief .verdict").all_inner_texts() == ["waits for a drawing"] * len(ROWS)


VIEWS = [(390, "light"), (390, "dark"), (1280, "dark")]


@pytest.mark.parametrize("opened", VIEWS, indirect=True, ids=lambda view: f"{view[0]}-{view[1]}")
def test_every_width_and_colour_scheme(opened):
    page = opened
    width = page.viewport_size["width"]
    assert page.evaluate("document.documentElement.scrollWidth") == width
    cards = page.locator(".belief")
    assert cards.count() == len(ROWS)
    for index in range(len(ROWS)):
        box = cards.nth(index).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    colours = page.evaluate(
        "[...document.querySelectorAll('.board, .belief')].map(one => "
        "[getComputedStyle(one).color, getComputedStyle(one).backgroundColor])"
    )
    assert all(text != behind for text, behind in colours)


@pytest.mark.parametrize("opened", [(390, "light")], indirect=True)
def test_a_finger_draws_and_does_not_scroll(opened):
    page = opened
    page.locator("[data-part=clear]").click()
    box, at = page.locator(".board").bounding_box(), page.evaluate("scrollY")
    touch = page.context.new_cdp_session(page)
    for kind, y in (("Start", 0.2), ("Move", 0.5), ("Move", 0.8)):
        point = {"x": box["x"] + box["width"] / 2, "y": box["y"] + y * box["height"]}
        touch.send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": [point]})
    touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    settle(page)
    assert page.evaluate("scrollY") == at
    assert pixels(page)[:, 3:5].min() > 0
    # The board stays in sight when the beliefs are read.
    page.locator(".belief").last.scroll_into_view_if_needed()
    assert 0 <= page.locator(".board").bounding_box()["y"] < 100


def test_the_slider_stops_at_stored_posteriors_only(opened):
    page = opened
    bands = json.loads(FILE.read_text())
    slider, shown = page.locator("#playground-level"), page.locator("#playground-noise output")
    assert shown.inner_text() == "σ = 9"
    slider.press("ArrowRight")
    assert shown.inner_text() == "σ = 27"
    assert "27" in slider.get_attribute("aria-valuetext")
    notes = page.locator(".noise-panel figcaption").all_inner_texts()
    spread = round(bands["rows"]["bbh"]["bands"]["27"]["std"][-1])
    assert notes[list(bands["rows"]).index("bbh")] == f"spread at x = 6: ± {spread}"
    assert notes[list(bands["rows"]).index("nuts")] == "not on record for this noise"
    for _ in bands["levels"]:
        slider.press("ArrowLeft")
    assert shown.inner_text() == f"σ = {bands['levels'][0]:g}"


def test_stored_bands_are_those_of_the_records():
    results = ROOT / "results"
    folders = [results / "toy", *sorted(results.glob("noise-*"))]
    assert bands_of(collect(folders)) == json.loads(FILE.read_text())


def test_reports_without_kept_posteriors_have_no_playground(report):
    assert "playground" not in report.read_text().lower()


def test_layers_of_the_page():
    layers = describe(digits_network())
    assert [one["kind"] for one in layers if one["kind"] != "relu"] == [
        *("convolution", "convolution", "pooling", "dense", "dense")
    ]
    assert sum(one["weights"] for one in layers) == 13_706
    for unknown in (nn.Conv2d(1, 2, 3, padding=1), nn.Linear(2, 2, bias=False), nn.MaxPool2d(3, 2)):
        with pytest.raises(ValueError, match="a page cannot compute"):
            describe(nn.Sequential(unknown))
