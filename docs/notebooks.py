"""A hook of MkDocs: every tutorial, a notebook, becomes a page of the site.

In sources, links lead to notebooks (``tutorials/outliers.ipynb``), so that they work where the
repository is read; on the site they lead to the pages.
"""

import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

_LINK = re.compile(r"\]\(((?:tutorials/)?[\w-]+)\.ipynb(#[\w-]+)?\)")
_PICTURE = re.compile(r"!\[png\]\((.+?)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds a page for every notebook, and its pictures."""
    for file in [one for one in files if one.src_uri.endswith(".ipynb")]:
        name = file.src_uri.removesuffix(".ipynb")
        text, resources = MarkdownExporter().from_filename(
            file.abs_src_path, resources={"unique_key": name.rpartition("/")[2]}
        )
        files.append(File.generated(config, f"{name}.md", content=_page(text, file.name)))
        for picture, content in resources["outputs"].items():
            uri = f"{name.rpartition('/')[0]}/{picture}"
            files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lets links to notebooks lead to their pages."""
    return _LINK.sub(r"](\1.md\2)", markdown)


def _page(text: str, name: str) -> str:
    # The address as HTML, which is left as it is: it leads to the notebook itself.
    download = (
        f'<a href="{name}.ipynb" download>Download this notebook</a>, and run it on your machine.\n'
    )
    title, _, rest = text.lstrip().partition("\n")
    # A notebook is read beside its code; on a page a picture needs words.
    pictures = _PICTURE.sub(r"![The figure that the code above draws](\1){ .figure }", rest)
    return f"{title}\n\n{download}\n{pictures}"
