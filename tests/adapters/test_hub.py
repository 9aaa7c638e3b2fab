"""Posteriors as folders in the layout of the Hugging Face hub."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch

import bbh
from bbh.likelihoods import Categorical, Gaussian
from bbh.storage import StorageError
from scenarios import METHODS, BatchNormNet, mlp


def assert_same(first, second):
    state = second.state_dict()
    assert first.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in first.state_dict().items())


@pytest.mark.parametrize("method", ["bayes_by_hypernet", "mixture", "bayes_by_backprop"])
def test_a_folder_holds_a_posterior(method, tmp_path):
    posterior = METHODS[method](BatchNormNet(), Categorical())
    posterior.keep_reference(torch.randn(5, 1, 6, 6))
    bbh.adapters.save_pretrained(posterior, tmp_path / "model")
    loaded = bbh.adapters.load_pretrained(tmp_path / "model", BatchNormNet())
    assert_same(posterior, loaded)


def test_models_of_transformers_need_no_network(tmp_path):
    hugging_face = pytest.importorskip("adapters.hugging_face")
    for make in (hugging_face.bert, hugging_face.gpt2):
        posterior = bbh.methods.bayes_by_backprop(make(), Categorical())
        bbh.adapters.save_pretrained(posterior, tmp_path)  # the second replaces the first
        loaded = bbh.adapters.load_pretrained(tmp_path)
        assert_same(posterior, loaded)
        data = hugging_face.sentences(3)
        samples = posterior.eval().sample(2)
        expected = bbh.predict(posterior, data, samples=samples).mean
        torch.testing.assert_close(bbh.predict(loaded, data, samples=samples).mean, expected)


def test_the_model_card(tmp_path):
    hub = pytest.importorskip("huggingface_hub", reason="no huggingface_hub: pip install it")
    posterior = bbh.methods.bayes_by_hypernet(mlp(), Categorical())
    metrics = {"error": 1.5, "nll": 0.0625}
    about = "Tells three kinds of flowers apart."
    bbh.adapters.save_pretrained(posterior, tmp_path, metrics=metrics, description=about)
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    for part in (
        about,
        "bayes by hypernet",
        "Categorical",
        "FanIn",
        "| nll | 0.0625 |",
        "Sequential",
    ):
        assert part in text
    known = hub.metadata_load(tmp_path / "README.md")
    assert known["library_name"] == "bayes-by-hypernet"
    assert known["tags"] == ["bayesian", "uncertainty", "bayes-by-hypernet"]
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["method"] == "bayes_by_hypernet"
    assert config["num_weights"] == 4 * 16 + 16 + 16 * 3 + 3


def test_code_of_the_card_works(tmp_path):
    posterior = bbh.methods.bayes_by_backprop(mlp(), Categorical())
    bbh.adapters.save_pretrained(posterior, tmp_path)
    code = (tmp_path / "README.md").read_text().split("```python\n")[1].split("```")[0]
    code = code.replace('"PATH or user/model"', repr(str(tmp_path)))
    code = code.replace("...  # a Sequential of the same structure", "network")
    names = {"network": mlp(), "inputs": torch.randn(2, 4)}
    exec(code, names)
    assert names["predictive"].mean.shape == (2, 3)


def test_uploading(tmp_path, monkeypatch):
    """The hub is asked for exactly one repository and given exactly the three files."""
    calls = []

    class Api:
        def __init__(self, token):
            calls.append(token)

        def create_repo(self, name, *, private, exist_ok):
            calls.append((name, private, exist_ok))

        def upload_folder(self, *, repo_id, folder_path):
            from pathlib import Path

            calls.append((repo_id, sorted(one.name for one in Path(folder_path).iterdir())))
            return "address"

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(HfApi=Api))
    posterior = bbh.methods.bayes_by_backprop(mlp(), Gaussian())
    assert bbh.adapters.push_to_hub(posterior, "me/model") == "address"
    files = ["README.md", "config.json", "model.safetensors"]
    assert calls == [None, ("me/model", True, True), ("me/model", files)]


def test_downloading(tmp_path, monkeypatch):
    posterior = bbh.methods.bayes_by_backprop(mlp(), Gaussian())
    bbh.adapters.save_pretrained(posterior, tmp_path)

    def download(name, *, allow_patterns):
        assert name == "me/model"
        assert set(allow_patterns) == {"README.md", "config.json", "model.safetensors"}
        return str(tmp_path)

    monkeypatch.chdir(tmp_path)
    known = SimpleNamespace(snapshot_download=download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", known)
    assert_same(bbh.adapters.load_pretrained("me/model", mlp()), posterior)


class TestErrors:
    def test_other_networks_must_be_passed(self, tmp_path):
        posterior = bbh.methods.bayes_by_backprop(mlp(), Categorical())
        bbh.adapters.save_pretrained(posterior, tmp_path)
        with pytest.raises(StorageError, match=r"Sequential, which is no model of transformers"):
            bbh.adapters.load_pretrained(tmp_path)

    @pytest.mark.parametrize("name", ["Trainer", "pipeline", "os", "NoSuchModel"])
    def test_only_models_are_made(self, name, tmp_path):
        pytest.importorskip("transformers")
        facts = {"network": {"class": name, "config": {}}}
        (tmp_path / "config.json").write_text(json.dumps(facts))
        with pytest.raises(StorageError, match="does not have"):
            bbh.adapters.load_pretrained(tmp_path)

    @pytest.mark.parametrize(
        "changed",
        [
            {"hidden_size": "x"},
            {"hidden_size": -8},
            {"vocab_size": 10**12},
            {"num_hidden_layers": 10**9},
        ],
        ids=str,
    )
    def test_configurations_that_were_tampered_with(self, changed, tmp_path):
        """The last two would take all memory, or hours."""
        hugging_face = pytest.importorskip("adapters.hugging_face")
        posterior = bbh.methods.bayes_by_backprop(hugging_face.bert(), Categorical())
        bbh.adapters.save_pretrained(posterior, tmp_path)
        facts = json.loads((tmp_path / "config.json").read_text())
        facts["network"]["config"] |= changed
        (tmp_path / "config.json").write_text(json.dumps(facts))
        with pytest.raises(StorageError, match=r"config.json describes no Bert.* that can be made"):
            bbh.adapters.load_pretrained(tmp_path)

    @pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation"])
    def test_no_program_is_downloaded(self, name, tmp_path):
        """transformers would fetch and run what a configuration names as its attention."""
        hugging_face = pytest.importorskip("adapters.hugging_face")
        posterior = bbh.methods.bayes_by_backprop(hugging_face.bert(), Categorical())
        bbh.adapters.save_pretrained(posterior, tmp_path)
        facts = json.loads((tmp_path / "config.json").read_text())
        facts["network"]["config"][name] = "somebody/attention"
        (tmp_path / "config.json").write_text(json.dumps(facts))
        loaded = bbh.adapters.load_pretrained(tmp_path)
        assert loaded.network.config._attn_implementation != "somebody/attention"

    def test_no_folder(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"there is no folder .*nothing"):
            bbh.adapters.load_pretrained(tmp_path / "nothing", mlp())

    @pytest.mark.parametrize("content", [None, "{", "[]", "{}", '{"network": 3}', "[" * 100_000])
    def test_damaged_folders(self, content, tmp_path):
        if content is not None:
            (tmp_path / "config.json").write_text(content)
        with pytest.raises(StorageError, match="missing or damaged"):
            bbh.adapters.load_pretrained(tmp_path)

    def test_the_hub_is_not_installed(self, monkeypatch, tmp_path):
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
        monkeypatch.chdir(tmp_path)
        with pytest.raises(ImportError, match=r"pip install 'bayes-by-hypernet\[huggingface\]'"):
            bbh.adapters.load_pretrained("me/model", mlp())
