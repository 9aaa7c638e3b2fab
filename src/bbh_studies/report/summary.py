"""Sentences about a study, each made from its records and no stronger than they are."""

import math
import statistics
from collections.abc import Mapping, Sequence
from statistics import NormalDist

from bbh_studies.columns import METRICS
from bbh_studies.metric import Metric
from bbh_studies.problems.images.problem import ImageProblem
from bbh_studies.report.collect import Group, Runs
from bbh_studies.report.reproduce import hardware_words, known_data
from bbh_studies.report.tables import Cell, Mark, Table
from bbh_studies.studies import STUDIES

# Metric → what its best row is said to have.
_CLAIMS = {
    "error": "lowest error",
    "pgd_auroc": "best separation of attacked (PGD) from clean images by entropy (AUROC)",
    "ood_auroc": "best separation of outliers from test images by entropy (AUROC)",
    "outlier_entropy_auc": "most entropy on outliers (lowest entropy AUC there)",
    "rmse": "lowest distance of the mean from the true curve (RMSE)",
    "distance_to_nuts": "predictions closest to the reference chain (NUTS)",
    "hmc_agreement": "most labels equal to those of Hamiltonian Monte Carlo (agreement)",
    "hmc_total_variation": "probabilities closest to HMC's (total variation)",
}
_OURS = "bbh"


def findings(table: Table) -> list[str]:
    """Sentences that say which row is best at what, and where Bayes by Hypernet is not."""
    best = [text for name in _CLAIMS if (text := _finding(table, name))]
    return [*best, *filter(None, [behind(table)])]


def behind(table: Table) -> str:
    """Every column in which another row is better than Bayes by Hypernet; empty if there is none.

    If Bayes by Hypernet has several rows, its best one counts.
    """
    found: list[str] = []
    for column in table.columns:
        cells = _ranked(table, column.name)
        ours = {runs: cell for runs, cell in cells.items() if runs.variant == _OURS}
        if not ours or not any(cell.best for cell in cells.values()):
            continue
        if any(cell.best for cell in ours.values()):
            continue
        own, top = _first(ours, column), _first(cells, column)
        found.append(f"{column.title} {own[1].text} ({top[0].full_title} {top[1].text})")
    return f"Bayes by Hypernet is behind in: {'; '.join(found)}." if found else ""


def against_paper(table: Table) -> str:
    """How often the published values were met; empty if none can be judged."""
    marks = [cell.mark for row in table.rows for cell in row.cells if cell and cell.mark]
    counts = {mark: marks.count(mark) for mark in (Mark.NOISE, Mark.BETTER, Mark.WORSE)}
    judged = sum(counts.values())
    if not judged:
        return ""
    words = ", ".join(f"{count} {mark.words}" for mark, count in counts.items() if count)
    return f"Of {judged} published {_plural(judged, 'value')} that can be judged: {words}."


def provenance(group: Group) -> str:
    """On which hardware and data the runs were made."""
    machines = sorted({hardware_words(record.hardware) for record in group.records})
    data = sorted(
        {" ".join(pair) for record in group.records for pair in known_data(record).items()}
    )
    return f"Hardware: {'; '.join(machines)}. Data: {', '.join(data) or 'not recorded'}."


def caveats(group: Group, table: Table) -> list[str]:
    """Sentences about what limits the meaning of the numbers."""
    records = group.records
    # A reference is the same whatever the seed.
    ranked = [runs for runs in group.rows if not runs.is_reference] or group.rows
    seeds = [len(runs.entries) for runs in ranked]
    machines = {hardware_words(record.hardware) for record in records}
    dirty = sum(record.dirty for record in records)
    own = [runs.full_title for runs in group.rows if runs.own]
    fingerprints = {tuple(sorted(record.data.items())) for record in records}
    broken = sum(
        not all(math.isfinite(value) for value in record.metrics.values()) for record in records
    )
    found = [_seeds(seeds)]
    if len(machines) > 1:
        found.append("Runs were made on different hardware: do not compare times.")
    if any(record.hardware.get("gpu_shared") for record in records):
        found.append("Runs shared their card with other processes: times say little.")
    if group.shared:
        found.append(f"All rows differ from the preset in {_list(group.shared)}.")
    if own:
        found.append(f"Rows that differ from the preset: {'; '.join(own)}.")
    if len(fingerprints) > 1:
        found.append("Runs used different data (see their fingerprints): rows are not comparable.")
    for whose in sorted({one.data.get("pixels", "") for one in records} - {""}):
        found.append(f"Pixels are {whose}, so that errors may differ from those on the original.")
    for whose in sorted(
        {one.data["HMC's pixels"] for one in records if "HMC's pixels" in one.data}
    ):
        found.append(f"HMC saw {whose} pixels: a part of every distance from it is theirs.")
    if attacked := [one.config.get("attack_images", 0) for one in records if one.curves]:
        number = min(attacked)
        found.append(
            f"{number:,} images are attacked, the same for all rows: other images would change an "
            f"accuracy by up to {50 / math.sqrt(number):.1f} points (one standard error)."
        )
    if noise := search_noise(group, table):
        found.append(noise)
    if dirty:
        found.append(
            f"{dirty} of {len(records)} runs came from a tree with uncommitted changes, so their "
            "commit does not tell all of the code."
        )
    if any(cell and cell.paper for row in table.rows for cell in row.cells):
        purpose = " and this preset trains differently on purpose" * (group.preset == "corrected")
        found.append(f"The paper's values are single runs without error bars{purpose}.")
    if broken:
        found.append(f"{broken} of {len(records)} runs have a metric that is not finite.")
    return found


def search_noise(group: Group, table: Table) -> str:
    """How far chance alone moves the errors of settings that were tried on validation images.

    An error of p on n images has the standard error √(p(1 − p)/n), because other images might have
    been set aside. Whoever takes the lowest of k such numbers takes luck with it: about
    Φ⁻¹((k − 0.375)/(k + 0.25)) standard errors, Blom (1958), if all have the same true error and
    err independently.
    """
    problem = STUDIES[group.study].problem if group.study in STUDIES else None
    errors = [cell.statistic.mean / 100 for cell in _ranked(table, "error").values()]
    if "split=validation" not in group.problem or not isinstance(problem, ImageProblem):
        return ""
    if not errors or not 0 < (middle := statistics.median(errors)) < 1:
        return ""
    images, number = problem.num_validation, len(errors)
    error = 100 * math.sqrt(middle * (1 - middle) / images)
    text = (
        f"Noise of the search: an error of {100 * middle:.2f} % on {images:,} images has a "
        f"standard error of {error:.2f} points, and that of the seed comes on top."
    )
    if number == 1:
        return text
    luck = NormalDist().inv_cdf((number - 0.375) / (number + 0.25)) * error
    return (
        f"{text} Of {number} rows with equal true errors the lowest would be {luck:.2f} points too "
        "low by luck, or less as far as rows err on the same images."
    )


def _finding(table: Table, name: str) -> str:
    cells = _ranked(table, name)
    best = {runs: cell for runs, cell in cells.items() if cell.best}
    if not best:
        return ""
    column = METRICS[name]
    top, _ = _first(best, column)
    unit = f" {column.unit}" if column.unit else ""
    tied = [runs.full_title for runs in best if runs != top]
    others = f"; not told apart from it: {_list(tied)}" if tied else ""
    untested = all(cell.statistic.std is None for cell in cells.values())
    others += " (one seed each, not tested)" * untested
    text = f"{top.full_title} has the {_CLAIMS[name]}: {cells[top].text}{unit}{others}."
    inside = table.column("entropy_auc").get(top)
    # Entropy on outliers is no merit of a method that is as unsure about test images.
    if name == "outlier_entropy_auc" and inside:
        text += f" On test images its entropy AUC is {inside.text}, where high is good."
    return text


def _ranked(table: Table, name: str) -> dict[Runs, Cell]:
    """The cells of a column that can be compared: references and broken runs are left out."""
    return {
        runs: cell
        for runs, cell in table.column(name).items()
        if not runs.is_reference and math.isfinite(cell.statistic.mean)
    }


def _first(cells: Mapping[Runs, Cell], column: Metric) -> tuple[Runs, Cell]:
    choose = min if column.better == "low" else max
    return choose(cells.items(), key=lambda one: one[1].statistic.mean)


def _seeds(counts: Sequence[int]) -> str:
    fewest, most = min(counts), max(counts)
    if most == 1:
        return "One seed per row: differences between rows may be chance."
    number = str(fewest) if fewest == most else f"{fewest} to {most}"
    few = ": few for a standard deviation" if fewest < 5 else ""
    return f"{number} seeds per row{few}."


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _plural(count: int, word: str) -> str:
    return word if count == 1 else f"{word}s"
