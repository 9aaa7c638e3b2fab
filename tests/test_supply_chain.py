"""What the project is made of: pinned for CI without a gap, and listed in a release."""

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
_spec = importlib.util.spec_from_file_location("parts", ROOT / "release" / "parts.py")
parts = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(parts)


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    kept = (line.partition("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, equal, version in kept if equal}


def test_an_installation_for_ci_adds_nothing_that_is_not_pinned():
    needed = parts.required(["dev"])
    assert len(needed) > 100
    assert sorted(needed.keys() - pins().keys()) == []


def test_nothing_is_pinned_twice_or_in_vain():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert len(pins()) == sum("==" in line for line in lines)
    assert sorted(pins().keys() - parts.required(["dev"]).keys()) == []


def test_pins_are_within_the_declared_ranges():
    table = parts.project()
    declared = [*table["dependencies"]]
    for lines in table["optional-dependencies"].values():
        declared += lines
    for one in map(Requirement, declared):
        if one.name != parts.PROJECT:
            version = Version(pins()[canonicalize_name(one.name)])
            assert one.specifier.contains(version, prereleases=True), str(one)


def part(name: str, licence: dict[str, object]) -> dict[str, object]:
    return {
        "type": "library",
        "name": name,
        "version": "1.0",
        "bom-ref": f"{name}==1.0",
        "licenses": [licence],
    }


@pytest.fixture
def listed():
    needs = parts.required([])
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"bom-ref": "root", "name": "it", "type": "application"}},
        "components": [
            part(name, {"license": {"name": "MIT\nPermission is hereby granted"}})
            for name in [*sorted(needs), "a-tool"]
        ],
        "dependencies": [],
    }
    return needs, bom


def test_the_list_of_a_release_has_what_is_required_and_nothing_else(listed):
    needs, bom = listed
    made = parts.reduced(bom, needs, "3.2")
    assert [one["name"] for one in made["components"]] == sorted(needs)
    assert "torch" in needs
    assert "sympy" in needs["torch"]  # also what is required by others
    assert "pytest" not in needs
    depends = {one["ref"]: one["dependsOn"] for one in made["dependencies"]}
    assert "torch==1.0" in depends["root"]
    assert "sympy==1.0" in depends["torch==1.0"]
    assert made["metadata"]["component"]["version"] == "3.2"
    validation = pytest.importorskip("cyclonedx.validation.json")
    schema = pytest.importorskip("cyclonedx.schema").SchemaVersion.V1_6
    assert validation.JsonStrictValidator(schema).validate_str(json.dumps(made)) is None


def test_what_is_missing_is_named(listed):
    needs, bom = listed
    bom["components"] = [one for one in bom["components"] if one["name"] != "torch"]
    with pytest.raises(SystemExit, match="lacks torch"):
        parts.reduced(bom, needs, "3.2")


def test_a_licence_that_cyclonedx_has_no_name_for(monkeypatch):
    """Its metadata state it all the same, as those of protobuf and transformers do."""
    metadata = {"License": "3-Clause BSD License\nwith its whole text"}
    monkeypatch.setattr(parts, "distribution", lambda name: SimpleNamespace(metadata=metadata))
    unnamed = {"name": "a", "version": "1.0"}
    made = parts.with_licence(unnamed)
    assert parts.licences({"components": [made]}) == "a 1.0: 3-Clause BSD License\n"
    metadata.clear()
    assert parts.with_licence(unnamed) == unnamed
    known = part("a", {"license": {"id": "MIT"}})
    assert parts.with_licence(known) == known


def test_licences_are_a_line_each():
    ways = {
        "a": {"license": {"id": "MIT"}},
        "b": {"expression": "Apache-2.0 OR BSD-3-Clause"},
        "c": {"license": {"name": "A licence\nwith its whole text"}},
        "e": {"license": {"name": "License :: OSI Approved :: MIT License"}},
    }
    bom = {"components": [part(name, licence) for name, licence in ways.items()]}
    bom["components"].append({"name": "d", "version": "2"})
    assert parts.licences(bom).splitlines() == [
        "a 1.0: MIT",
        "b 1.0: Apache-2.0 OR BSD-3-Clause",
        "c 1.0: A licence",
        "e 1.0: MIT License",
        "d 2: not stated",
    ]
