"""The documentation as a browser shows it: opened from disk, and from a server."""

import os
import subprocess
import sys
import threading
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parent.parent
# A part of `make test-docs`.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir"]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [*words, str(folder)], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Links(HTMLParser):
    """What a page leads to and what it loads, tag and address, and the places one can lead to."""

    def __init__(self, page: Path):
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self.places: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [(tag, value) for name, value in attrs if name in ("href", "src") and value]
        self.places |= {value for name, value in attrs if name in ("id", "name") and value}


def test_every_link_is_a_file_and_nothing_comes_from_elsewhere(site):
    # Only a server shows the page of what is not found, and that at any depth.
    pages = [page for page in site.rglob("*.html") if page.name != "404.html"]
    assert len(pages) > 10
    read = {page.resolve(): Links(page) for page in pages}
    for page in pages:
        links = read[page.resolve()].found
        assert any(tag == "a" for tag, _ in links)
        for tag, address in links:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                assert tag == "a" or parts.scheme == "data", f"{page.name} loads {address}"
            elif parts.path:
                target = page.parent / unquote(parts.path)
                assert target.is_file(), f"{page.name} leads to {address}"
                if parts.fragment and target.suffix == ".html":
                    places = read[target.resolve()].places
                    assert unquote(parts.fragment) in places, f"{page.name} leads to {address}"


@pytest.fixture(params=["disk", "server"])
def address(request: pytest.FixtureRequest, site: Path):
    """Of the site's folder."""
    if request.param == "disk":
        yield site.as_uri()
        return

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("width", [390, 1280])
def test_a_tutorial_is_a_page_with_pictures_for_every_screen(browser, site, width):
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme="dark")
    page.goto(f"{site.as_uri()}/tutorials/outliers.html")
    assert page.locator("body").get_attribute("data-md-color-scheme") == "slate"
    pictures = page.locator("img.figure")
    assert pictures.count() == 2
    assert pictures.evaluate_all("all => all.every(one => one.naturalWidth > 0)")
    # Code scrolls, the page does not.
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.locator("a[download]").get_attribute("href") == "outliers.ipynb"
    page.close()


def test_links_and_search_work(browser, address):
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    complaints, requests = [], []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda one: requests.append(one.url))
    page.goto(f"{address}/index.html")
    page.locator("nav.md-nav--primary a", has_text="Scale conventions").click()
    page.wait_for_url(f"{address}/scale.html")
    page.locator("input.md-search__input").click()
    page.keyboard.type("refresh_batch_norm")
    result = page.locator("a.md-search-result__link").first
    result.wait_for()
    assert "Posterior, fit, predict" in result.inner_text()
    result.click()
    page.wait_for_url(f"{address}/api/posterior.html*")
    assert page.locator("h1").inner_text().startswith("Posterior, fit, predict")
    page.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith((address, "data:"))] == []
