"""The wheel as a stranger installs it: without extras, where nothing else is installed."""

import importlib.metadata
import os
import subprocess
import sys
import venv
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
# Of the extra `studies`, but for Jinja: torch requires it as well, so it is always there.
OPTIONAL = ("matplotlib", "pooch", "tensorboard", "typer")


def run(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    # Nothing that leads out of an environment, nor to the folder of the sources.
    kept = {key: text for key, text in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run([*map(str, words)], cwd=cwd, env=kept, capture_output=True, text=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    done = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, what it requires, and what that requires; nothing else.

    The packages are this environment's own, linked: torch alone would take minutes to install.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for distribution in distributions(required_by(wheel)):
        for name in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            if not (packages / name).exists():
                (packages / name).symlink_to(Path(str(distribution.locate_file(name))))
    install = ("install", "--no-deps", "--no-index", "--no-build-isolation", "--quiet")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python")
    done = run(*pip, folder / "bin" / "python", *install, wheel, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "bin" / "python"


def required_by(wheel: Path) -> list[Requirement]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        headers = HeaderParser().parsestr(archive.read(name).decode())
    return [Requirement(line) for line in headers.get_all("Requires-Dist", [])]


def distributions(requirements: list[Requirement]) -> list[importlib.metadata.Distribution]:
    """Those that requirements without extras name, directly or through others."""
    found: dict[tuple[str, str], importlib.metadata.Distribution] = {}
    waiting = [(one, "") for one in requirements]
    while waiting:
        requirement, wanted_by = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": wanted_by}):
            continue
        for extra in ("", *requirement.extras):
            if (requirement.name, extra) in found:
                continue
            distribution = importlib.metadata.distribution(requirement.name)
            found[requirement.name, extra] = distribution
            waiting += [(Requirement(line), extra) for line in distribution.requires or []]
    return list(found.values())


def test_the_wheel_has_both_packages_with_their_data_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    packed = {name for name in names if ".dist-info/" not in name}
    sources = (path for path in (ROOT / "src").rglob("*") if path.is_file())
    assert packed == {
        path.relative_to(ROOT / "src").as_posix()
        for path in sources
        if "__pycache__" not in path.parts
    }
    assert {name.partition("/")[0] for name in packed} == {"bbh", "bbh_studies"}
    assert {"bbh/py.typed", "bbh_studies/report/template.html.j2"} <= packed
    assert {Path(name).suffix for name in packed} >= {".py", ".j2", ".json", ".npz"}


WORK = """
import importlib.util, sys
import torch
import bbh

assert "site-packages" in bbh.__file__, bbh.__file__
there = [name for name in sys.argv[1:] if importlib.util.find_spec(name)]
assert not there, f"{there} should not be installed here"
torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
batch = torch.randn(12, 2), torch.randint(3, (12,))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*batch), batch_size=4)
for make in (bbh.methods.bayes_by_hypernet, bbh.methods.bayes_by_backprop):
    posterior = make(network, bbh.likelihoods.Categorical())
    bbh.fit(posterior, loader, epochs=2)
    bbh.save(posterior, "posterior.safetensors")
    loaded = bbh.load("posterior.safetensors", network)
    means = []
    for one in (posterior, loaded):
        torch.manual_seed(1)
        means.append(bbh.predict(one, batch[0], num_samples=5).mean)
    torch.testing.assert_close(*means)
assert "jinja2" not in sys.modules
"""


def test_the_library_works_with_what_it_requires(python, tmp_path):
    done = run(python, "-c", WORK, *OPTIONAL, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_command_names_the_extra_it_needs(python, tmp_path):
    remedy = "bbh: the command line needs typer: pip install 'bayes-by-hypernet[studies]'\n"
    for words in ((python.parent / "bbh",), (python, "-m", "bbh_studies")):
        done = run(*words, "--help", cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (1, "", remedy)
