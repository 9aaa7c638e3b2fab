"""Networks of Hugging Face, and batches as their tokenizers and collators give them."""

from collections import UserDict, namedtuple
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import bbh
from adapters.hugging_face import MODELS, bert, examples, sentences, transformers
from bbh.batches import as_batch
from bbh.likelihoods import Bernoulli, Categorical


class Wrapped(nn.Module):
    """A network whose logits come in some object."""

    def __init__(self, wrap):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.wrap = wrap

    def forward(self, inputs):
        return self.wrap(self.layer(inputs))


@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_those_of_the_model(name):
    network = MODELS[name]().eval()
    posterior = bbh.methods.maximum_a_posteriori(network, Categorical())
    data = sentences(5)
    with torch.no_grad():
        expected = network(data["input_ids"], attention_mask=data["attention_mask"]).logits
    predicted = bbh.predict(posterior, data).mean
    torch.testing.assert_close(predicted, expected.softmax(-1))


@pytest.mark.parametrize(
    "name",
    [
        "distil_bert",
        pytest.param("bert", marks=pytest.mark.slow),
        pytest.param("gpt2", marks=pytest.mark.slow),
    ],
)
def test_every_model_learns_from_tokenised_batches(name):
    posterior = bbh.methods.bayes_by_backprop(MODELS[name](), Categorical(), initial_scale=1e-3)
    data = sentences(48)
    loader = DataLoader(examples(data), batch_size=16, shuffle=True)
    validation = bbh.Validation(loader, num_samples=5)
    options = {"learning_rate": 0.03, "temperature": 0.01, "compare": False, "progress": False}
    history = bbh.fit(posterior, loader, epochs=10, validation=validation, **options)
    assert history[-1].validation["error"] < 15  # guessing is wrong in half of the cases


def test_the_model_never_sees_labels():
    network = bert()
    seen = []
    network.register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs), with_kwargs=True)
    posterior = bbh.methods.maximum_a_posteriori(network, Categorical())
    batch = sentences(4)
    bbh.fit(posterior, [batch], epochs=1, num_data=4, progress=False, validation=[batch])
    bbh.predict(posterior, batch)
    assert seen
    assert all(kwargs.keys() == {"input_ids", "attention_mask"} for kwargs in seen)


@pytest.mark.parametrize("mapping", [UserDict, transformers.BatchEncoding])
def test_mappings_that_are_no_dictionaries(mapping):
    posterior = bbh.methods.bayes_by_backprop(bert(), Categorical())
    data = sentences(6)
    samples = posterior.eval().sample(3)
    expected = bbh.predict(posterior, data, samples=samples).mean
    given = mapping(data)
    torch.testing.assert_close(bbh.predict(posterior, given, samples=samples).mean, expected)
    torch.testing.assert_close(
        bbh.predict(posterior, iter([given]), samples=samples).mean, expected
    )
    nll = bbh.evaluate(posterior, [given], samples=samples)["nll"]
    assert nll == bbh.evaluate(posterior, [data], samples=samples)["nll"]


def test_what_a_collator_gives():
    tokenised = [
        {"input_ids": [3] * length, "attention_mask": [1] * length, "label": length % 2}
        for length in (2, 3, 5)
    ]
    raw = {key: [one[key] for one in tokenised] for key in tokenised[0]}
    with pytest.raises(TypeError, match=r"'input_ids'.*list of numbers.*DataCollatorWithPadding"):
        as_batch({**raw, "labels": torch.tensor([0, 1, 1])})
    with pytest.raises(ValueError, match=r"'targets', 'labels'.*'label'"):
        as_batch(raw)
    batch = transformers.default_data_collator(
        [{**one, "input_ids": [3] * 5} for one in tokenised[:1]]
    )
    assert as_batch(batch).targets.tolist() == [0]
    assert as_batch(batch).inputs["input_ids"].shape == (1, 5)


def test_text_is_no_input():
    with pytest.raises(TypeError, match=r"'sentence'.*strings.*leave it out"):
        as_batch({"sentence": ["a", "b"], "labels": torch.tensor([0, 1])})


@pytest.mark.parametrize(
    "wrap",
    [
        lambda logits: {"loss": None, "logits": logits},
        lambda logits: SimpleNamespace(logits=logits),
        lambda logits: namedtuple("Output", "hidden logits")(None, logits),
        lambda logits: transformers.modeling_outputs.SequenceClassifierOutput(logits=logits),
    ],
    ids=["dictionary", "object", "named tuple", "ModelOutput"],
)
@pytest.mark.parametrize("execution", [bbh.Loop(), bbh.Vmap()], ids=["loop", "vmap"])
def test_any_object_with_logits(wrap, execution):
    network = Wrapped(wrap)
    posterior = bbh.methods.bayes_by_backprop(network, Categorical(), execution=execution).eval()
    inputs, samples = torch.randn(5, 4), posterior.sample(2)
    expected = torch.einsum("bi,soi->sbo", inputs, samples["layer.weight"])
    expected = expected + samples["layer.bias"].unsqueeze(1)
    torch.testing.assert_close(posterior(inputs, samples), expected)


def test_attacks_and_batch_norm_statistics_read_logits():
    network = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), Wrapped(lambda x: {"logits": x}))
    posterior = bbh.methods.bayes_by_backprop(network, Categorical())
    inputs, targets = torch.rand(40, 4), torch.randint(3, (40,))
    bbh.fit(posterior, [(inputs, targets)], epochs=1, num_data=40, progress=False)
    attacked = bbh.attacks.PGD(num_samples=3)(posterior, inputs, targets, 0.1)
    assert (attacked.loss >= attacked.clean_loss).all()
    network = bbh.adapters.AveragedNetwork(posterior, 3)
    assert network(inputs).shape == (40, 3)


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (lambda x: {"hidden": x, "pooled": x}, "dict with 'hidden', 'pooled'"),
        (lambda x: {"logits": (x, x)}, "dict with 'logits'"),
        (lambda x: (x,), "returned tuple"),
        (lambda x: SimpleNamespace(logits=None), "returned SimpleNamespace"),
        (lambda x: None, "returned NoneType"),
    ],
)
def test_outputs_without_logits(wrap, message):
    posterior = bbh.methods.bayes_by_backprop(Wrapped(wrap), Categorical())
    with pytest.raises(TypeError, match=rf"{message}.*forward="):
        bbh.predict(posterior, torch.randn(2, 4))


def test_a_body_without_a_head_says_what_it_has():
    network = transformers.BertModel(bert().config)
    posterior = bbh.methods.maximum_a_posteriori(network, Categorical())
    with pytest.raises(
        TypeError, match=r"BertModel.*'last_hidden_state', 'pooler_output'.*forward="
    ):
        bbh.predict(posterior, sentences(2))


def test_several_labels_per_example():
    posterior = bbh.methods.bayes_by_backprop(bert(num_labels=3), Bernoulli())
    batch = sentences(8) | {"labels": torch.randint(2, (8, 3)).float()}
    bbh.fit(posterior, [batch], epochs=1, num_data=8, compare=False, progress=False)
    assert bbh.predict(posterior, batch, num_samples=3).mean.shape == (8, 3)
