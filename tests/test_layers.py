"""Which module may import which."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
# From the ground up. A module may import from its own layer's modules only if they are in the same
# room (the same entry), and from all layers below.
LAYERS = [
    ["version", "checks", "files", "memory", "residuals", "triton_available", "compiled"],
    ["batches", "normal_numbers", "per_example", "metrics", "predictive"],
    ["stacking", "decisions"],
    ["samples", "standardisation", "plots", "acquisition"],
    ["network", "noise", "annealing", "likelihoods", "lines", "reference", "frozen"],
    ["priors", "processes"],
    ["distribution"],
    ["divergences", "generators", "execution"],
    ["posterior"],
    ["threads"],
    ["methods", "objective", "prediction"],
    ["training", "storage", "attacks", "inspect"],
    ["adapters"],
]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}


def modules(package: str) -> list[Path]:
    return sorted((SOURCE / package).rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Module and name of everything that a file imports, at its top or later."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where a name comes from"
            yield from ((node.module or "", alias.name) for alias in node.names)


def room(dotted: str) -> str:
    return dotted.split(".")[1]


def test_every_room_has_a_place():
    found = {
        path.relative_to(SOURCE / "bbh").parts[0].removesuffix(".py") for path in modules("bbh")
    }
    assert found - {"__init__"} == LEVEL.keys()


@pytest.mark.parametrize("path", modules("bbh"), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_down(path):
    own = path.relative_to(SOURCE / "bbh").parts[0].removesuffix(".py")
    if own == "__init__":
        return  # the front door re-exports from everywhere
    for module, name in imports(path):
        assert not module.startswith("bbh_studies")
        if module == "bbh":
            module = f"bbh.{name}"
        if not module.startswith("bbh."):
            continue
        other = room(module)
        assert other == own or LEVEL[other] < LEVEL[own], f"{path} imports {module}"


@pytest.mark.parametrize(
    "path",
    [*modules("bbh"), *modules("bbh_studies")],
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_no_module_reaches_for_private_names(path):
    for module, name in imports(path):
        if module.startswith("bbh"):
            parts = [*module.split("."), name]
            private = [part for part in parts if part.startswith("_") and part != "__version__"]
            assert not private, f"{path} imports {module}.{name}"


def test_the_library_does_without_what_only_studies_need():
    code = (
        "import importlib, pkgutil, sys\n"
        # As if they were not installed.
        "sys.modules |= dict.fromkeys(('typer', 'matplotlib', 'jinja2', 'pooch', 'bbh_studies'))\n"
        "sys.modules |= dict.fromkeys(('lightning', 'transformers', 'huggingface_hub', 'onnx'))\n"
        "import bbh\n"
        # Classes of other libraries' kinds: these modules, or their users, say what to install.
        "needing = ('lightning', 'lightning_callback', 'hugging_face', 'plots.shown')\n"
        "for one in pkgutil.walk_packages(bbh.__path__, 'bbh.'):\n"
        "    if not one.name.endswith('_triton') and not one.name.endswith(needing):\n"
        "        importlib.import_module(one.name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_vmap_stays_in_its_rooms():
    """Only execution, and a method's own mathematics, batch by themselves."""
    users = {
        path.relative_to(SOURCE / "bbh").parts[0]
        for path in modules("bbh")
        for module, name in imports(path)
        if (module, name) == ("torch.func", "vmap")
    }
    assert users <= {"execution", "methods", "generators"}
