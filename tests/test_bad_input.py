"""Bad input gets one clear line that names it, before anything is computed; good input works.

Arguments of a wrong type are tried in a process of their own: here the run-time type checker of the
tests would be the first to refuse them.
"""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh.batches import as_tensors
from bbh.likelihoods import Categorical
from training.small import assert_same_state, copied

INPUTS = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
TARGETS = torch.arange(40) % 3
DATASET = TensorDataset(INPUTS, TARGETS)

# Argument, what the message must hold.
OF_FIT = [
    *((f"temperature={bad}", "temperature=") for bad in ("-1.0", "math.nan", "math.inf", "'1'")),
    *((f"beta={bad}", "beta=") for bad in ("-1.0", "math.nan", "math.inf")),
    ("beta='linear'", "a schedule such as bbh.Linear"),
    ("beta=lambda epoch: math.nan", "beta(0)=nan"),
    ("beta=lambda epoch: 0.5 - epoch", "beta(0.75)=-0.25"),
    *((f"gradient_clip={bad}", "gradient_clip=") for bad in ("-1.0", "0", "math.nan", "math.inf")),
    *((f"learning_rate={bad}", "learning_rate=") for bad in ("-1.0", "0", "math.nan", "math.inf")),
    ("learning_rate='fast'", "learning_rate='fast'"),
    ("likelihood_samples=0", "at least one"),
    ("likelihood_samples=11", "a step has only 10 draws"),
    ("likelihood_samples=4, num_samples=3", "a step has only 3 draws"),
    ("num_data=0", "num_data=0"),
    ("num_data=2.5", "whole number"),
    ("epochs=2.5", "epochs=2.5"),
    ("epochs=0", "epochs=0"),
    ("num_samples=0", "num_samples=0"),
    ("num_samples=2.5", "whole number"),
    ("average_epochs=1.5", "whole number"),
    ("batch_norm_examples=2.5", "whole number"),
    ("batch_norm_examples=math.nan", "batch_norm_examples=nan"),
    ("optimizer=lambda p: torch.optim.SGD(p, lr=math.nan)", "lr=nan"),
    ("optimizer=lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=math.nan)", "weight_decay=nan"),
    ("scheduler=lambda o: LambdaLR(o, lambda epoch: -1.0)", "learning_rate=-0.003"),
    ("scheduler=lambda o: LambdaLR(o, lambda epoch: 1 - 3 * epoch), epochs=2", "learning_rate=-0"),
    ("checkpoint=bbh.Checkpoint('x', seconds=-1.0)", "Checkpoint(seconds)=-1.0"),
    ("checkpoint=bbh.Checkpoint('x', seconds=math.nan)", "Checkpoint(seconds)=nan"),
    ("validation=bbh.Validation(loader, patience=0)", "Validation(patience)=0"),
    ("beta=bbh.Linear(0, math.inf)", "annealing from epoch 0 to inf"),
    ("optimizer='adam'", "lambda parameters"),
    ("scheduler='cosine'", "lambda optimizer"),
    ("scheduler=StepLR(torch.optim.Adam(network.parameters()), 1)", "lambda optimizer"),
    ("train_loader=(INPUTS, TARGETS)", "DataLoader(TensorDataset(inputs, targets)"),
    ("train_loader=[INPUTS, TARGETS], num_data=40", "DataLoader(TensorDataset(inputs, targets)"),
    ("train_loader=DATASET, num_data=40", "DataLoader(dataset"),
    ("train_loader=INPUTS.numpy(), num_data=40", "train_loader is a ndarray"),
    ("train_loader=5, num_data=40", "train_loader=5"),
    ("validation=(INPUTS, TARGETS)", "validation is a tuple"),
    ("validation=bbh.Validation(DATASET)", "DataLoader(dataset"),
    ("validation=0.2", "validation=0.2"),
    ("validation=bbh.Validation(loader, num_samples=0)", "num_samples"),
]
OF_METHODS = [
    ("network=nn.Linear", "network=<class"),
    ("likelihood=Categorical", "pass an object of bbh.likelihoods"),
    ("likelihood=network", "likelihood=<Sequential>"),
    ("prior=1.0", "prior=1.0: pass an object of bbh.priors"),
    ("prior=bbh.priors.Normal", "pass an object of bbh.priors"),
    ("generator=bbh.generators.LayerWise", "pass an object of bbh.generators"),
    ("noise=4", "noise=4: pass bbh.GaussianNoise"),
    ("divergence=bbh.divergences.NearestNeighbour", "pass an object of bbh.divergences"),
    ("execution=bbh.Vmap", "bbh.Vmap()"),
    ("num_samples=0", "num_samples=0"),
    ("num_samples=2.5", "whole number"),
    ("noise=bbh.GaussianNoise(2.5)", "GaussianNoise(dim)=2.5"),
    ("generator=bbh.generators.LayerWise(hidden=(0,))", "hidden=0"),
    ("generator=bbh.generators.LayerWise(hidden=())", "at least one layer width"),
    ("generator=bbh.generators.LayerWise(slope=math.nan)", "slope=nan"),
    ("divergence=bbh.divergences.Adversarial(steps=0)", "steps=0"),
    ("divergence=bbh.divergences.Adversarial(pretraining=-3)", "pretraining=-3"),
    ("divergence=bbh.divergences.Adversarial(max_weights=0)", "max_weights=0"),
    ("divergence=bbh.divergences.NearestNeighbourEntropy(floor=math.inf)", "floor=inf"),
    ("bayesian=2", 'bayesian=2: give names as strings, e.g. "2"'),
    ("bayesian=[0, '2']", "bayesian=0"),
    ("priors=1", "bayes_by_hypernet: got an unexpected keyword argument 'priors'"),
]
OTHERS = [
    ("bbh.save(network, 'x')", "torch.save(network.state_dict()"),
    (
        "fit(posterior, DataLoader(DATASET, batch_size=64, drop_last=True), epochs=1)",
        "With drop_last=True",
    ),
    ("bbh.predict(posterior, DATASET)", "DataLoader(dataset"),
    ("bbh.predict(posterior, INPUTS, 2.5)", "num_samples=2.5"),
    ("bbh.predict(posterior, np.array(['a', 'b']))", "NumPy array of <U1"),
    *(
        (f"bbh.predict(posterior, INPUTS, memory_limit={bad})", "memory_limit=")
        for bad in ("0", "-1", "math.nan", "'1 GB'")
    ),
    ("bbh.attacks.FGSM(memory_limit=0)", "memory_limit=0"),
    ("bbh.inspect.look(posterior, memory_limit=-1)", "memory_limit=-1"),
    ("bbh.evaluate(posterior, (INPUTS, TARGETS))", "loader is a tuple"),
    ("bbh.methods.deep_ensemble(network, Categorical(), num_members=1.5)", "num_members=1.5"),
    ("bbh.methods.mixture(network, Categorical(), num_members=1.5)", "num_members=1.5"),
    ("bbh.methods.mixture(network, Categorical(), method='bbh')", "method='bbh': pass a function"),
    ("bbh.methods.mixture(network, Categorical(), noise=4)", "noise=4: pass bbh.GaussianNoise"),
    ("bbh.AdversarialTraining(epsilon=-1.0)", "AdversarialTraining(epsilon)=-1.0"),
    ("bbh.AdversarialTraining(weight=math.nan)", "AdversarialTraining(weight)=nan"),
    ("bbh.AdversarialTraining(weight=2.0)", "a share is at most 1"),
    ("bbh.methods.bayes_by_backprop(network, Categorical(), initial_scale=math.inf)", "scale=inf"),
    (
        "bbh.methods.multiplicative_normalizing_flows(network, Categorical(), num_flows=-1)",
        "flows=-1",
    ),
    ("bbh.attacks.PGD(steps=2.5)", "steps=2.5"),
    ("Categorical(3.0)", "class_weights=3.0"),
    ("Categorical('abc')", "class_weights='abc'"),
    ("Categorical((1.0, -1.0))", "class_weights=(1.0, -1.0)"),
    ("Categorical((1.0, math.inf))", "class_weights=(1.0, inf)"),
    ("bbh.likelihoods.Bernoulli(-1.0)", "positive_weight=-1.0"),
    ("bbh.free_energy(posterior, (INPUTS, TARGETS), num_data=40, beta=-1)", "beta=-1"),
]
CALLS = {
    **{f"fit(posterior, **options({call}))": message for call, message in OF_FIT},
    **{f"method(**parts({call}))": message for call, message in OF_METHODS},
    **dict(OTHERS),
}
# Tries every call that it reads, and prints what became of each.
TRIALS = """
import json, math, sys
import numpy as np, torch, bbh
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, StepLR
from torch.utils.data import DataLoader, TensorDataset
from bbh.likelihoods import Categorical

INPUTS, TARGETS = torch.randn(40, 4), torch.arange(40) % 3
DATASET = TensorDataset(INPUTS, TARGETS)
loader = DataLoader(DATASET, batch_size=10)
network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
method, fit = bbh.methods.bayes_by_hypernet, bbh.fit
posterior = method(network, Categorical())
def options(**given):
    return {"train_loader": loader, "epochs": 1, "progress": False, **given}
def parts(**given):
    return {"network": network, "likelihood": Categorical(), **given}
found = {}
for call in json.load(sys.stdin):
    try:
        eval(call)
        found[call] = ["nothing", ""]
    except Exception as error:
        found[call] = [type(error).__name__, str(error)]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def refusals() -> dict[str, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", TRIALS],
        input=json.dumps(list(CALLS)),
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("call", CALLS)
def test_refused_in_one_line_that_names_it(refusals, call):
    kind, message = refusals[call]
    assert kind in ("TypeError", "ValueError"), kind
    assert CALLS[call] in message
    assert "\n" not in message


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def test_refused_before_the_posterior_changes():
    posterior = bbh.methods.bayes_by_hypernet(network(), Categorical())
    before, random = copied(posterior), torch.get_rng_state()
    for bad in ({"temperature": math.nan}, {"beta": -1.0}, {"validation": [INPUTS, TARGETS]}):
        with pytest.raises((TypeError, ValueError)):
            bbh.fit(posterior, DataLoader(DATASET, 10), epochs=1, progress=False, **bad)
    assert_same_state(posterior.state_dict(), before)
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize(
    "weights",
    [[1, 2, 4], (1.0, 2.0, 4.0), torch.tensor([1.0, 2.0, 4.0]), np.array([1, 2, 4])],
    ids=["list", "tuple", "tensor", "array"],
)
def test_class_weights_in_any_form(weights, tmp_path):
    likelihood = Categorical(weights)
    assert likelihood.class_weights == (1.0, 2.0, 4.0)
    outputs = torch.zeros(1, 3, 3)
    wanted = -math.log(3) * torch.tensor([[1.0, 2.0, 4.0]])
    torch.testing.assert_close(likelihood.log_prob(outputs, torch.arange(3)), wanted)
    posterior = bbh.methods.maximum_a_posteriori(network(), likelihood)
    bbh.save(posterior, tmp_path / "file")
    read = bbh.load(tmp_path / "file", network())
    assert read.likelihood.class_weights == (1.0, 2.0, 4.0)


class TestArrays:
    """NumPy arrays do what tensors do."""

    def batches(self, convert):
        return [
            tuple(map(convert, (INPUTS[i : i + 10], TARGETS[i : i + 10]))) for i in range(0, 40, 10)
        ]

    def fitted(self, convert):
        torch.manual_seed(3)
        posterior = bbh.methods.maximum_a_posteriori(network(), Categorical())
        loader = self.batches(convert)
        history = bbh.fit(
            posterior, loader, epochs=2, num_data=40, validation=loader, progress=False
        )
        return posterior, history

    @pytest.mark.parametrize("floats", [np.float32, np.float64])
    def test_fit_evaluate_and_predict(self, floats):
        def as_array(tensor):
            return tensor.numpy().astype(floats if tensor.is_floating_point() else np.int16)

        expected, history = self.fitted(lambda tensor: tensor)
        posterior, again = self.fitted(as_array)
        assert_same_state(expected.state_dict(), posterior.state_dict())
        assert again[-1].validation == history[-1].validation
        assert again.comparison == history.comparison
        predicted = bbh.predict(posterior, INPUTS.numpy().astype(floats)).mean
        assert torch.equal(predicted, bbh.predict(expected, INPUTS).mean)

    def test_types(self):
        given = {
            "a": np.zeros(2),
            "b": [np.zeros(2, np.uint8), torch.ones(1)],
            "c": (np.True_, "d"),
        }
        made = as_tensors(given)
        assert made["a"].dtype == torch.float32
        assert made["b"][0].dtype == torch.int64
        assert made["b"][1] is given["b"][1]
        assert made["c"] == given["c"]
        assert as_tensors(np.zeros(2, np.float16)).dtype == torch.float16
        assert as_tensors(np.zeros(2, bool)).dtype == torch.bool
        backwards = np.arange(3)[::-1]
        assert as_tensors(backwards).tolist() == [2, 1, 0]

    def test_copied(self):
        array = np.zeros(2, np.float32)
        made = as_tensors(array)
        array[:] = 1
        assert made.tolist() == [0, 0]


def test_predictive_objects_print_one_line():
    classes = bbh.methods.bayes_by_hypernet(network(), Categorical())
    shown = repr(bbh.predict(classes, INPUTS, 7))
    assert shown.startswith("ClassPredictive(40 examples, mean [40, 3], 7 weight draws, on average")
    numbers = bbh.methods.bayes_by_backprop(nn.Linear(4, 1), bbh.likelihoods.Gaussian(2.0))
    shown = repr(bbh.predict(numbers, INPUTS, 7))
    assert "RegressionPredictive(40 examples" in shown
    assert "total_std 2" in shown
    assert "\n" not in shown


@pytest.mark.parametrize("method", ["bayes_by_hypernet", "bayes_by_backprop"])
def test_inputs_in_double_precision_are_named(method):
    network = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    posterior = getattr(bbh.methods, method)(network, Categorical())
    loader = DataLoader(TensorDataset(INPUTS.double(), TARGETS), batch_size=20)
    for call in (
        lambda: bbh.fit(posterior, loader, epochs=1, progress=False),
        lambda: bbh.predict(posterior, INPUTS.double(), num_samples=4),
    ):
        with pytest.raises(TypeError, match=r"float64 and the weights torch.float32: give the inp"):
            call()


def test_whole_numbers_as_inputs_are_named():
    posterior = bbh.methods.bayes_by_backprop(nn.Linear(4, 3), Categorical())
    with pytest.raises(TypeError, match=r"torch.int64 and the weights torch.float32: give the inp"):
        bbh.predict(posterior, torch.ones(40, 4, dtype=torch.long), num_samples=4)


@pytest.mark.parametrize("method", ["bayes_by_hypernet", "maximum_a_posteriori"])
def test_a_last_batch_of_one_example_for_batch_norm(method):
    network = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    posterior = getattr(bbh.methods, method)(network, Categorical())
    loader = DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=13)
    with pytest.raises(ValueError, match=r"use DataLoader\(…, drop_last=True\)"):
        bbh.fit(posterior, loader, epochs=1, progress=False)


@pytest.mark.parametrize(
    ("last", "likelihood"),
    [(nn.Softmax(-1), Categorical()), (nn.Sigmoid(), bbh.likelihoods.Bernoulli())],
    ids=["softmax", "sigmoid"],
)
def test_networks_do_not_end_with_what_the_likelihood_applies(last, likelihood):
    inner = nn.Sequential(nn.Linear(5, 3), last)
    network = nn.Sequential(nn.Linear(4, 5), inner)
    for method in (bbh.methods.bayes_by_hypernet, bbh.methods.deep_ensemble):
        with pytest.raises(ValueError, match=r"ends with S.*leave the last layer out"):
            method(network, likelihood)
    bbh.methods.bayes_by_hypernet(network, bbh.likelihoods.Gaussian())


def test_other_errors_of_the_network_stay_as_they_are():
    posterior = bbh.methods.bayes_by_backprop(nn.Linear(4, 3), Categorical())
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        posterior(INPUTS[:, :3], posterior.sample(2))


def test_a_network_that_converts_its_inputs_gets_double_precision():
    class Converts(nn.Linear):
        def forward(self, input):
            return super().forward(input.float())

    posterior = bbh.methods.bayes_by_backprop(Converts(4, 3), Categorical())
    assert bbh.predict(posterior, INPUTS.double(), num_samples=4).mean.shape == (40, 3)


def test_posteriors_print_their_parts():
    posterior = bbh.methods.mixture(nn.Linear(4, 3), Categorical(), num_members=2)
    lines = str(posterior).splitlines()
    assert lines[1:3] == ["  method: mixture", "  network: Linear, 15 weights"]
    assert "  members: bayes_by_hypernet" in lines
    assert "  num_members: 2" in lines
    assert sum(line.startswith("  generator: LayerWise") for line in lines) == 1
    assert len(lines) < 15
