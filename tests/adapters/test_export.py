"""Exported programs predict what ``bbh.predict`` predicts with the same draws."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import bbh
from bbh.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian
from scenarios import METHODS, BatchNormNet, LSTMNet, TransformerNet, TwoInputs, dropout_mlp, mlp


def tokens(number):
    return torch.randint(7, (number, 5))


def features(number):
    return torch.randn(number, 4)


def images(number):
    return torch.randn(number, 1, 6, 6)


def pairs(number):
    return torch.randn(number, 2), torch.randn(number, 3)


NETWORKS = {
    "mlp": (mlp, features),
    "batch norm": (BatchNormNet, images),
    "lstm": (LSTMNet, tokens),
    "transformer": (TransformerNet, tokens),
    "two inputs": (TwoInputs, pairs),
}


def assert_predicts(run, posterior, exported, make_inputs, sizes=(1, 5)):
    """A program gives, for any number of examples, what the library gives."""
    for number in sizes:
        inputs = make_inputs(number)
        expected = bbh.predict(posterior, inputs, samples=exported.samples)
        found = run(inputs)
        assert tuple(found) == exported.output_names
        for name, value in found.items():
            torch.testing.assert_close(value, getattr(expected, name), rtol=1e-4, atol=1e-5)


def in_onnxruntime(exported, path):
    """Runs the program's ONNX file."""
    runtime = pytest.importorskip("onnxruntime", reason="no onnxruntime: pip install onnxruntime")
    pytest.importorskip("onnxscript", reason="no ONNX: pip install 'bayes-by-hypernet[export]'")
    exported.save_onnx(path)
    session = runtime.InferenceSession(path)
    assert [one.name for one in session.get_inputs()] == list(exported.input_names)
    assert all(one.shape[0] == "batch" for one in session.get_inputs())
    names = [one.name for one in session.get_outputs()]

    def run(inputs):
        if isinstance(inputs, dict):
            given = {name: value.numpy() for name, value in inputs.items()}
        else:
            values = inputs if isinstance(inputs, tuple) else (inputs,)
            given = dict(zip(exported.input_names, map(torch.Tensor.numpy, values), strict=True))
        return dict(zip(names, map(torch.from_numpy, session.run(None, given)), strict=True))

    return run


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_every_method(method):
    posterior = method(mlp(), Categorical())
    exported = bbh.export(posterior, features(3), num_samples=4)
    assert_predicts(exported, posterior, exported, features)


@pytest.mark.parametrize(
    "name",
    [
        "batch norm",
        "two inputs",
        pytest.param("lstm", marks=pytest.mark.slow),
        pytest.param("transformer", marks=pytest.mark.slow),
    ],
)
def test_networks(name):
    make, make_inputs = NETWORKS[name]
    posterior = bbh.methods.bayes_by_backprop(make(), Categorical())
    posterior.keep_reference(make_inputs(20))
    exported = bbh.export(posterior, make_inputs(1), num_samples=3)
    assert_predicts(exported, posterior, exported, make_inputs)


@pytest.mark.parametrize("name", ["batch norm", pytest.param("lstm", marks=pytest.mark.slow)])
def test_onnx(name, tmp_path):
    make, make_inputs = NETWORKS[name]
    posterior = bbh.methods.bayes_by_hypernet(make(), Categorical())
    posterior.keep_reference(make_inputs(20))
    exported = bbh.export(posterior, make_inputs(3), num_samples=2)
    run = in_onnxruntime(exported, tmp_path / "program.onnx")
    assert_predicts(run, posterior, exported, make_inputs)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["deep_ensemble", "mixture", "mc_dropout"])
@pytest.mark.parametrize("name", NETWORKS)
def test_onnx_of_many(name, method, tmp_path):
    make, make_inputs = NETWORKS[name]
    posterior = METHODS[method](make(), Categorical())
    posterior.keep_reference(make_inputs(20))
    exported = bbh.export(posterior, make_inputs(3), num_samples=4)
    run = in_onnxruntime(exported, tmp_path / "program.onnx")
    assert_predicts(run, posterior, exported, make_inputs, sizes=(1, 2, 9))


def regression(likelihood):
    """A posterior for targets around 5,000."""
    posterior = bbh.methods.bayes_by_backprop(nn.Linear(4, 2), likelihood)
    outputs = 1 if isinstance(likelihood, HeteroscedasticGaussian) else 2
    posterior.likelihood.fit_targets(5000 + 300 * torch.randn(50, outputs))
    return posterior


@pytest.mark.parametrize("likelihood", [Gaussian(), HeteroscedasticGaussian()])
def test_regressions_are_in_the_units_of_the_targets(likelihood):
    posterior = regression(likelihood)
    exported = bbh.export(posterior, features(3), num_samples=5)
    assert_predicts(exported, posterior, exported, features)
    inputs = features(4)
    parts = exported(inputs)
    rebuilt = bbh.predictive.RegressionPredictive(parts["mean"], 5, parts["locs"], parts["scales"])
    expected = bbh.predict(posterior, inputs, samples=exported.samples).interval(0.9)
    torch.testing.assert_close(rebuilt.interval(0.9), expected, rtol=1e-4, atol=1e-2)
    assert 2000 < float(parts["mean"].mean()) < 8000


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", [Gaussian(), HeteroscedasticGaussian(), Bernoulli()])
def test_onnx_of_likelihoods(likelihood, tmp_path):
    posterior = bbh.methods.bayes_by_backprop(mlp(), Bernoulli())
    if not isinstance(likelihood, Bernoulli):
        posterior = regression(likelihood)
    exported = bbh.export(posterior, features(3), num_samples=5)
    run = in_onnxruntime(exported, tmp_path / "program.onnx")
    assert_predicts(run, posterior, exported, features)


def test_yes_and_no():
    posterior = bbh.methods.bayes_by_backprop(mlp(), Bernoulli())
    exported = bbh.export(posterior, features(2), num_samples=3)
    assert_predicts(exported, posterior, exported, features)


def test_a_program_says_what_it_takes_and_gives():
    posterior = bbh.methods.bayes_by_backprop(mlp(), Categorical())
    shown = repr(bbh.export(posterior, features(2), num_samples=4))
    assert "inputs -> mean, entropy, mutual_information; 4 weight draws" in shown


def test_dictionaries_in_any_order():
    def named(number):
        left, right = pairs(number)
        return {"left": left, "right": right, "labels": torch.zeros(number)}

    posterior = bbh.methods.bayes_by_backprop(TwoInputs(), Categorical())
    exported = bbh.export(posterior, named(2), num_samples=3)
    assert exported.input_names == ("left", "right")
    assert_predicts(exported, posterior, exported, named)
    data = named(4)
    turned = dict(reversed(data.items()))
    assert torch.equal(exported(turned)["mean"], exported(data)["mean"])


@pytest.mark.slow
def test_models_of_hugging_face(tmp_path):
    hugging_face = pytest.importorskip("adapters.hugging_face")

    def inputs(number):
        return {n: v for n, v in hugging_face.sentences(number).items() if n != "labels"}

    for make in hugging_face.MODELS.values():
        posterior = bbh.methods.bayes_by_backprop(make(), Categorical())
        exported = bbh.export(posterior, inputs(2), num_samples=3)
        assert exported.input_names == ("input_ids", "attention_mask")
        assert_predicts(exported, posterior, exported, inputs)
        run = in_onnxruntime(exported, tmp_path / "program.onnx")
        assert_predicts(run, posterior, exported, inputs)


def test_files_of_torch_export(tmp_path):
    posterior = bbh.methods.bayes_by_backprop(mlp(), Categorical())
    exported = bbh.export(posterior, features(2), num_samples=3)
    exported.save(tmp_path / "program.pt2")
    loaded = torch.export.load(tmp_path / "program.pt2").module()
    assert_predicts(loaded, posterior, exported, features)
    with pytest.raises(ValueError, match="save_onnx"):
        exported.save(tmp_path / "program.onnx")


@pytest.mark.slow
def test_a_program_runs_without_the_library(tmp_path):
    posterior = bbh.methods.bayes_by_hypernet(mlp(), Categorical())
    exported = bbh.export(posterior, features(2), num_samples=3)
    exported.save(tmp_path / "program.pt2")
    inputs = features(3)
    torch.save(inputs, tmp_path / "inputs")
    script = (
        "import sys; sys.modules['bbh'] = None\nimport torch\n"
        "program = torch.export.load('program.pt2').module()\n"
        "print(program(torch.load('inputs'))['mean'].tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    np.testing.assert_allclose(np.array(eval(done.stdout)), exported(inputs)["mean"], rtol=1e-5)


def test_the_posterior_stays_as_it_was():
    posterior = bbh.methods.bayes_by_backprop(BatchNormNet(), Categorical())
    posterior.keep_reference(images(10))
    before = {name: value.clone() for name, value in posterior.state_dict().items()}
    bbh.export(posterior, images(2), num_samples=2)
    assert posterior.training
    for name, value in posterior.state_dict().items():
        assert torch.equal(value, before[name]), name
        assert type(value) is type(before[name])


def test_what_all_draws_share_is_in_the_program_once():
    posterior = bbh.methods.bayes_by_backprop(
        nn.Sequential(nn.Linear(4, 100), nn.Linear(100, 3)), Categorical(), bayesian="1"
    )
    exported = bbh.export(posterior, features(2), num_samples=20)
    sizes = {name: value.numel() for name, value in exported.program.state_dict.items()}
    assert sum(sizes.values()) == 4 * 100 + 100 + 20 * (100 * 3 + 3)


def test_given_draws():
    posterior = bbh.methods.bayes_by_backprop(mlp(), Categorical())
    samples = posterior.eval().sample(2)
    exported = bbh.export(posterior, features(2), samples=samples)
    inputs = features(3)
    expected = posterior(inputs, samples).softmax(-1).mean(0)
    torch.testing.assert_close(exported(inputs)["mean"], expected)


class TestWhatCannotBeExported:
    def test_dropout_layers_that_draw_masks(self):
        posterior = bbh.methods.mc_dropout(dropout_mlp(), Categorical())
        with pytest.raises(ValueError, match=r"dropout layers \(2\).*mc_dropout\(rate="):
            bbh.export(posterior, features(2))
        masks = bbh.methods.mc_dropout(dropout_mlp(), Categorical(), rate=0.3)
        exported = bbh.export(masks, features(2), num_samples=3)
        assert_predicts(exported, masks, exported, features)

    @pytest.mark.parametrize(
        "example",
        [
            torch.empty(0, 4),
            torch.tensor(1.0),
            (torch.randn(2, 4), torch.randn(3, 4)),
            {"inputs": torch.randn(2, 4), "more": None},
            pack_sequence([torch.randn(2, 4)]),
            "text",
        ],
        ids=["empty", "scalar", "unequal", "None", "packed", "text"],
    )
    def test_examples(self, example):
        posterior = bbh.methods.bayes_by_backprop(mlp(), Categorical())
        with pytest.raises(ValueError, match="the example must be"):
            bbh.export(posterior, example)

    def test_a_network_for_one_number_of_examples(self):
        class Fixed(nn.Linear):
            def forward(self, inputs):
                return super().forward(inputs.reshape(3, 4))

        posterior = bbh.methods.bayes_by_backprop(Fixed(4, 3), Categorical())
        with pytest.raises(ValueError, match="any number of examples"):
            bbh.export(posterior, features(3), num_samples=2)

    def test_weights_that_are_not_finite(self):
        posterior = bbh.methods.maximum_a_posteriori(nn.Linear(4, 3), Categorical())
        with torch.no_grad():
            next(posterior.parameters())[0, 0] = torch.nan
        with pytest.raises(ValueError, match="not finite: weight"):
            bbh.export(posterior, features(2))

    def test_onnx_is_not_installed(self, monkeypatch, tmp_path):
        posterior = bbh.methods.bayes_by_backprop(mlp(), Categorical())
        exported = bbh.export(posterior, features(2), num_samples=2)
        monkeypatch.setitem(sys.modules, "onnxscript", None)
        with pytest.raises(ImportError, match=r"pip install 'bayes-by-hypernet\[export\]'"):
            exported.save_onnx(tmp_path / "program.onnx")
