"""The playground of a report: draw a digit, and see what each posterior believes about it.

Everything happens in the page, with draws of the weights that lie in it: no server, no network.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bbh_studies.report.collect import Group
from bbh_studies.report.playground.draws import NUM_DRAWS, draws_of
from bbh_studies.report.playground.noise import noise_card

# In the order in which they use each other.
_SCRIPTS = ("network.js", "strokes.js", "canvas.js", "beliefs.js", "noise.js", "page.js")
_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Playground:
    """What the template puts on the page.

    Attributes:
        data: Draws, examples and bands, as JSON that may stand within HTML.
        script: The page's own JavaScript.
        style: Its style sheet.
        titles: The posteriors, in their order.
        num_draws: The most draws that a posterior has here.
        num_digits: The number of test digits that drawings are compared with.
        num_letters: The number of letters that they are compared with.
        num_levels: The number of noise levels.
    """

    data: str
    script: str
    style: str
    titles: tuple[str, ...]
    num_draws: int
    num_digits: int
    num_letters: int
    num_levels: int


def playground(groups: Sequence[Group]) -> Playground | None:
    """The playground of the first group whose runs kept posteriors of digits; None without one."""
    digits = next((found for one in groups if (found := draws_of(one)) is not None), None)
    if digits is None:
        return None
    noise = noise_card()
    return Playground(
        data=_within_html({"digits": digits, "noise": noise}),
        script=f"(() => {{\n{''.join(_read(name) for name in _SCRIPTS)}}})();",
        style=_read("playground.css"),
        titles=tuple(row["title"] for row in digits["rows"]),
        num_draws=NUM_DRAWS,
        num_digits=len(digits["rows"][0]["entropies"]["digit"]),
        num_letters=len(digits["rows"][0]["entropies"]["letter"]),
        num_levels=len(noise["levels"]),
    )


def _within_html(content: dict[str, Any]) -> str:
    # Nothing in it may end the element that holds it.
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
