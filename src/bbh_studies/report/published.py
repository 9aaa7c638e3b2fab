"""The numbers that the paper printed, read from ``published.json``."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path


@dataclass(frozen=True)
class Published:
    """A table of the paper. Decimals keep the printed digits, which tell the rounding."""

    source: str
    rows: Mapping[str, Mapping[str, Decimal]]

    def get(self, variant: str, metric: str) -> Decimal | None:
        """The published number, if there is one."""
        return self.rows.get(variant, {}).get(metric)


def published(study: str) -> Published:
    """What the paper printed for this study; an empty table if it printed nothing."""
    text = Path(__file__).with_name("published.json").read_text(encoding="utf-8")
    content = json.loads(text, parse_float=Decimal, parse_int=Decimal).get(study)
    return Published(**content) if content else Published("", {})
