"""Writes what a release is made of beside its wheel: a CycloneDX list of parts, and their licences.

`make dist` runs it. Both are about what the library and its extras require, in the versions of this
environment, which are those that the tests ran with; tools for development are left out. Nothing is
fetched: everything is read from the metadata of what is installed.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = "bayes-by-hypernet"
DEVELOPMENT = ("dev", "docs")


def project() -> dict[str, Any]:
    """The table ``project`` of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def required(extras: Iterable[str]) -> dict[str, set[str]]:
    """Names of all packages that the library and these extras require, and what each requires."""
    table = project()
    waiting = list(map(Requirement, table["dependencies"]))
    for extra in extras:
        waiting += map(Requirement, table["optional-dependencies"][extra])
    found: dict[str, set[str]] = {}
    seen: set[tuple[str, str]] = set()
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        if name == PROJECT:
            waiting += [
                Requirement(line)
                for extra in one.extras
                for line in table["optional-dependencies"][extra]
            ]
            continue
        if one.marker is not None and not one.marker.evaluate({"extra": ""}):
            continue
        for extra in {"", *one.extras}:
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            needs = list(_needs(name, extra))
            found.setdefault(name, set()).update(canonicalize_name(need.name) for need in needs)
            waiting += needs
    return found


def _needs(name: str, extra: str) -> Iterable[Requirement]:
    """What a package requires with one of its extras, or without any."""
    try:
        lines = distribution(name).requires or []
    except PackageNotFoundError as error:
        raise SystemExit(f"{name} is not installed: run `make setup` first.") from error
    for line in lines:
        need = Requirement(line)
        if need.marker is None or need.marker.evaluate({"extra": extra}):
            need.marker = None  # it was judged with the extra that asked for it
            yield need


def reduced(bom: dict[str, Any], needs: dict[str, set[str]], version: str) -> dict[str, Any]:
    """The list of an environment with those parts alone that are needed, and who needs which."""
    parts = {
        name: part
        for part in bom["components"]
        if (name := canonicalize_name(part["name"])) in needs
    }
    if missing := sorted(needs.keys() - parts.keys()):
        raise SystemExit(f"the list of parts lacks {', '.join(missing)}.")
    parts = {name: with_licence(part) for name, part in parts.items()}
    reference = {name: part["bom-ref"] for name, part in parts.items()}
    root = {**bom["metadata"]["component"], "version": version, "type": "library"}
    direct = {canonicalize_name(Requirement(line).name) for line in project()["dependencies"]}
    tree = [{"ref": root["bom-ref"], "dependsOn": sorted(reference[name] for name in direct)}]
    tree += [
        {"ref": reference[name], "dependsOn": sorted(reference[need] for need in needs[name])}
        for name in sorted(needs)
    ]
    return {
        **bom,
        "metadata": {**bom["metadata"], "component": root},
        "components": [parts[name] for name in sorted(parts)],
        "dependencies": tree,
    }


def with_licence(part: dict[str, Any]) -> dict[str, Any]:
    """The part with the licence in its package's own words, where CycloneDX knows no name for it.

    CycloneDX leaves out what is no identifier of its list, such as "3-Clause BSD License".
    """
    if part.get("licenses"):
        return part
    try:
        stated = distribution(part["name"]).metadata.get("License") or ""
    except PackageNotFoundError:
        return part
    words = stated.strip().partition("\n")[0]
    named = {"acknowledgement": "declared", "name": words}
    return {**part, "licenses": [{"license": named}]} if words else part


def licences(bom: dict[str, Any]) -> str:
    """A line for each part: name, version, and its licence as its metadata state it."""
    lines = [
        f"{part['name']} {part['version']}: {', '.join(_stated(part)) or 'not stated'}"
        for part in bom["components"]
    ]
    return "\n".join(lines) + "\n"


def _stated(part: dict[str, Any]) -> list[str]:
    found: list[str] = []
    for one in part.get("licenses", []):
        text = one.get("expression") or one["license"].get("id") or one["license"]["name"]
        # Some packages put the whole text of their licence there, others a classifier.
        found.append(text.strip().partition("\n")[0].rpartition(" :: ")[2])
    return list(dict.fromkeys(found))


def environment() -> dict[str, Any]:
    """CycloneDX's list of everything that is installed beside this Python."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bom.json")
        words = ["environment", "--pyproject", str(ROOT / "pyproject.toml")]
        words += ["--output-reproducible", "--of", "JSON", "-o", str(path), sys.executable]
        subprocess.run([sys.executable, "-m", "cyclonedx_py", *words], check=True)
        return json.loads(path.read_text(encoding="utf-8"))


def main(folder: Path) -> None:
    """Writes both files into the folder that has the wheel."""
    (wheel,) = folder.glob("*.whl")
    stem = "-".join(wheel.name.split("-")[:2])
    extras = [one for one in project()["optional-dependencies"] if one not in DEVELOPMENT]
    bom = reduced(environment(), required(extras), stem.partition("-")[2])
    (folder / f"{stem}.cdx.json").write_text(json.dumps(bom, indent=1) + "\n", encoding="utf-8")
    (folder / f"{stem}.licences.txt").write_text(licences(bom), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
