"""Forks of work; what they do while a CUDA graph is recorded is in ``test_cuda``."""

import pytest
import torch

from bbh.execution import Fork


def test_without_a_recording_work_is_done_when_it_is_given():
    done = []
    fork = Fork(lambda: done.append("first") or torch.ones(2), torch.zeros(3))
    done.append("second")
    assert done == ["first", "second"]
    assert fork.result() is fork.result()
    assert fork.result().tolist() == [1, 1]


def test_errors_of_the_work_come_at_once():
    def fail():
        raise ValueError("no draws")

    with pytest.raises(ValueError, match="no draws"):
        Fork(fail)
