"""Members of an ensemble: the network itself first, then fresh ones."""

import logging
import math

import pytest
import torch
from torch import nn

import bbh
from network.unusual import Categorical, Scalar
from scenarios import BatchNormNet, SmallLeNet, mlp


class TestEnsemble:
    def test_the_first_is_the_network_and_the_others_are_fresh(self):
        network = SmallLeNet()
        posterior = bbh.methods.deep_ensemble(network, Categorical(), num_members=4)
        members = posterior.sample(4)
        for name, value in network.named_parameters():
            assert torch.equal(members[name][0], value)
            for index in range(1, 4):
                for other in range(index):
                    assert not torch.equal(members[name][index], members[name][other]), name
        # As its own class would initialise it: uniform up to 1/√fan_in.
        bound = 1 / math.sqrt(8)
        assert members["fc2.weight"].abs().max() <= bound
        assert members["fc2.weight"][1:].abs().max() > 0.8 * bound

    def test_normalisation_layers_start_anew_and_unmoved(self):
        network = BatchNormNet()
        with torch.no_grad():
            network.norm.weight.fill_(3.0)
            network.norm.running_mean.fill_(7.0)
        members = bbh.methods.deep_ensemble(network, Categorical(), num_members=2).sample(2)
        assert members["norm.weight"].tolist() == [[3.0] * 4, [1.0] * 4]
        assert members["norm.running_mean"].tolist() == [[7.0] * 4, [0.0] * 4]

    def test_frozen_layers_keep_their_statistics_in_every_member(self):
        network = BatchNormNet()
        network.norm.running_mean.fill_(7.0)
        network.norm.requires_grad_(False)
        members = bbh.methods.deep_ensemble(network, Categorical(), num_members=3).sample(3)
        assert members["norm.running_mean"].tolist() == [[7.0] * 4] * 3

    def test_attention_is_initialised_anew(self, caplog):
        with caplog.at_level(logging.WARNING, logger="bbh"):
            members = bbh.methods.deep_ensemble(
                nn.MultiheadAttention(4, 2), Categorical(), num_members=2
            ).sample(2)
        assert caplog.records == []
        assert not torch.equal(members["in_proj_weight"][0], members["in_proj_weight"][1])

    def test_networks_made_by_the_user(self, caplog):
        made = []

        def make():
            network = Scalar()
            with torch.no_grad():
                network.temperature.fill_(10.0 + len(made))
            made.append(network)
            return network

        with caplog.at_level(logging.WARNING, logger="bbh"):
            posterior = bbh.methods.deep_ensemble(
                Scalar(), Categorical(), num_members=3, make_network=make
            )
        assert len(made) == 2
        assert posterior.sample(3)["temperature"].tolist() == pytest.approx([0.7, 10.0, 11.0])
        torch.testing.assert_close(posterior.sample(3)["layer.weight"][2], made[1].layer.weight)
        assert caplog.records == []

    def test_a_warning_names_what_cannot_be_initialised_anew(self, caplog):
        with caplog.at_level(logging.WARNING, logger="bbh"):
            posterior = bbh.methods.deep_ensemble(Scalar(), Categorical(), num_members=2)
        (record,) = caplog.records
        assert "temperature" in record.getMessage()
        assert "layer" not in record.getMessage()
        assert "make_network=" in record.getMessage()
        members = posterior.sample(2)
        assert members["temperature"][0] == members["temperature"][1]
        assert not torch.equal(members["layer.weight"][0], members["layer.weight"][1])

    def test_another_network_from_the_user(self):
        with pytest.raises(ValueError, match=r"without the parameters.*fc1\.weight"):
            bbh.methods.deep_ensemble(SmallLeNet(), Categorical(), make_network=mlp)

    def test_only_the_chosen_differ_between_members(self):
        posterior = bbh.methods.deep_ensemble(
            SmallLeNet(), Categorical(), num_members=2, bayesian="fc2"
        )
        members = posterior.sample(2)
        for name, value in members.items():
            assert torch.equal(value[0], value[1]) is not name.startswith("fc2"), name

    def test_no_members(self):
        with pytest.raises(ValueError, match="num_members=0"):
            bbh.methods.deep_ensemble(mlp(), Categorical(), num_members=0)
