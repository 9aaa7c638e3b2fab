"""A hook of MkDocs: every tutorial, a notebook, becomes a page of the site and of its gallery.

In sources, links lead to notebooks (``tutorials/outliers.ipynb``), so that they work where the
repository is read; on the site they lead to the pages.
"""

import re
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

_LINK = re.compile(r"\]\(((?:tutorials/)?[\w-]+)\.ipynb(#[\w-]+)?\)")
_PICTURE = re.compile(r"!\[png\]\((.+?)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds a page for every notebook, its pictures, and a gallery of them all."""
    cards: dict[str, str] = {}
    for file in [one for one in files if one.src_uri.endswith(".ipynb")]:
        name = file.src_uri.removesuffix(".ipynb")
        text, resources = MarkdownExporter().from_filename(
            file.abs_src_path, resources={"unique_key": name.rpartition("/")[2]}
        )
        files.append(File.generated(config, f"{name}.md", content=_page(text, file.name)))
        for picture, content in resources["outputs"].items():
            uri = f"{name.rpartition('/')[0]}/{picture}"
            files.append(File.generated(config, uri, content=content))
        last = max(resources["outputs"], key=_cell_and_place)
        folder = name.rpartition("/")[0]
        cards[f"{name}.md"] = _card(_title(text), f"{name}.md", f"{folder}/{last}")
    files.append(File.generated(config, "gallery.md", content=_gallery(cards, _pages(config.nav))))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lets links to notebooks lead to their pages."""
    return _LINK.sub(r"](\1.md\2)", markdown)


def _title(text: str) -> str:
    return text.lstrip().partition("\n")[0].removeprefix("# ")


def _cell_and_place(picture: str) -> tuple[int, ...]:
    """Where a picture stands in its notebook, from its name: ``outliers_12_0.png``."""
    return tuple(int(number) for number in re.findall(r"_(\d+)", picture))


def _card(title: str, page: str, picture: str) -> str:
    shown = f"[![{title}]({picture})]({page})\n\n[{title}]({page})"
    return f"<div markdown>\n\n{shown}\n\n</div>"


def _gallery(cards: dict[str, str], order: list[str]) -> str:
    """A page with a picture of every tutorial, in the order of the navigation."""
    others = [
        _card("Functions that fit twenty points", "studies.md", "assets/toy.svg"),
        _card("Draw a digit, and see who believes what", "playground.md", "assets/playground.png"),
        _card(
            "Entropy of known and strange inputs", "plots.md", "assets/plots-entropy-histogram.svg"
        ),
        _card("Most and least certain examples", "plots.md", "assets/plots-examples.svg"),
    ]
    shown = sorted(cards, key=order.index)
    body = "\n\n".join([*(cards[page] for page in shown), *others])
    intro = "What the library draws. Every picture leads to the page that makes it."
    return f'# Gallery\n\n{intro}\n\n<div class="gallery" markdown>\n\n{body}\n\n</div>\n'


def _pages(nav: Any) -> list[str]:
    """The pages of a navigation in their order."""
    if isinstance(nav, str):
        return [nav]
    inner = nav.values() if isinstance(nav, dict) else nav or []
    return [page for part in inner for page in _pages(part)]


def _page(text: str, name: str) -> str:
    # The address as HTML, which is left as it is: it leads to the notebook itself.
    download = (
        f'<a href="{name}.ipynb" download>Download this notebook</a>, and run it on your machine.\n'
    )
    title, _, rest = text.lstrip().partition("\n")
    # A notebook is read beside its code; on a page a picture needs words.
    pictures = _PICTURE.sub(r"![The figure that the code above draws](\1){ .figure }", rest)
    return f"{title}\n\n{download}\n{pictures}"
