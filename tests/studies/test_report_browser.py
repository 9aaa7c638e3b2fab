"""The report as a browser shows it, on a desktop and on a phone, light and dark."""

import pytest


@pytest.fixture
def opened(browser, report, request):
    """The page at a width and in a colour scheme, and what it asked and complained about."""
    width, scheme = request.param
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    complaints, requests = [], []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda one: requests.append(one.url))
    page.goto(report.as_uri())
    yield page, complaints, requests
    page.close()


VIEWS = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]


@pytest.mark.parametrize("opened", VIEWS, indirect=True, ids=lambda view: f"{view[0]}-{view[1]}")
def test_page(opened, report):
    page, complaints, requests = opened
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert complaints == []
    assert [url for url in requests if not url.startswith("data:")] == [report.as_uri()]
    width = page.viewport_size["width"]
    assert page.evaluate("document.documentElement.scrollWidth") == width
    # Every table that is wider than the page scrolls by itself.
    assert page.evaluate(
        "[...document.querySelectorAll('table')].every(one => one.closest('.scroll')"
        ".getBoundingClientRect().right <= innerWidth)"
    )
    broken = page.evaluate(
        "[...document.images].filter(one => !one.complete || !one.naturalWidth || "
        "!one.getBoundingClientRect().height || !one.alt).length"
    )
    assert broken == 0
    assert page.evaluate("document.images.length") > 50
    missing = page.evaluate(
        "[...document.querySelectorAll('a[href^=\"#\"]')].filter(one => "
        "!document.querySelector(one.getAttribute('href'))).length"
    )
    assert missing == 0
    outside = page.evaluate(
        "[...document.querySelectorAll('a:not([href^=\"#\"])')].map(one => one.href)"
    )
    assert outside == ["https://arxiv.org/abs/1711.01297"]


@pytest.mark.parametrize("opened", [(390, "light")], indirect=True)
def test_wide_tables_say_that_they_scroll(opened):
    page, _, _ = opened
    table = page.locator("#mnist-corrected .scroll").first
    hint = table.locator(".more")
    assert table.evaluate("one => one.scrollWidth > one.clientWidth")
    assert "gradient" in table.evaluate("one => getComputedStyle(one).backgroundImage")
    if not page.evaluate("CSS.supports('container-type: scroll-state')"):
        return  # an older browser shows the shade only
    assert hint.is_visible()
    table.evaluate("one => one.scrollTo(one.scrollWidth, 0)")
    hint.wait_for(state="hidden")


@pytest.mark.parametrize("opened", [(1280, "light")], indirect=True)
def test_cells_show_the_known_numbers_and_marks(opened):
    page, _, _ = opened
    cell = "#mnist-corrected [data-row={}] [data-metric={}]"
    shown = {
        (row, metric): page.locator(cell.format(row, metric)).first.inner_text()
        for row, metric in (("bbh", "error"), ("map", "error"), ("bbb", "outlier_entropy_auc"))
    }
    words = {key: " ".join(text.split()) for key, text in shown.items()}
    assert words["bbh", "error"] == "0.56 ± 0.06 paper 0.56 ≈ within noise"
    assert words["map", "error"] == "0.91 ± 0.01 paper 0.80 ▼ worse"
    assert words["bbb", "outlier_entropy_auc"] == "0.310 ± 0.010 paper 0.41 ▲ better"
    single = page.locator("#mnist-noise-paper [data-row=shared-1] [data-metric=error]").first
    assert "? one seed" in single.inner_text()


@pytest.mark.parametrize("opened", [(1280, "light"), (390, "dark")], indirect=True)
def test_contents_stay_in_sight_or_collapse(opened):
    page, _, _ = opened
    wide = page.viewport_size["width"] > 960
    assert page.locator("nav.side").is_visible() == wide
    assert page.locator("details.top").is_visible() != wide
    if wide:
        page.evaluate("scrollTo(0, 5000)")
        assert page.evaluate("document.querySelector('nav.side').getBoundingClientRect().top") >= 0
    else:
        page.locator("details.top summary").click()
        page.locator("details.top a", has_text="MNIST, paper").click()
        top = page.evaluate("document.querySelector('#mnist-paper').getBoundingClientRect().top")
        assert abs(top) < 100


@pytest.mark.parametrize("opened", [(1280, "light"), (1280, "dark")], indirect=True)
def test_text_has_contrast(opened):
    """WCAG 2: at least 4.5 to 1 for text, links and marks, against their own background."""
    page, _, _ = opened
    ratios = page.evaluate(
        """() => {
          const parse = text => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
          const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
            .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
            .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
          const behind = one => {
            for (; one; one = one.parentElement) {
              const colour = getComputedStyle(one).backgroundColor;
              if (!colour.startsWith('rgba(0, 0, 0, 0')) return parse(colour);
            }
            return [255, 255, 255];
          };
          return [...document.querySelectorAll('p, a, figcaption, .mark, .paper, th, td, pre, dd')]
            .map(one => [light(parse(getComputedStyle(one).color)), light(behind(one))])
            .map(([a, b]) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
        }"""
    )
    assert min(ratios) >= 4.5
