"""Where classes are rare, labels that teach most are worth more than labels at random."""

import pytest
import torch
from scipy import stats
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bbh


def rare_and_common(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A pool with 100 of each digit below five and ten of each other; all ten alike in the test."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    by_class = [order[labels[order] == digit] for digit in range(10)]
    pool = torch.cat([one[: 100 if digit < 5 else 10] for digit, one in enumerate(by_class)])
    test = torch.cat([one[100:] for one in by_class])
    return images[pool], labels[pool], images[test], labels[test]


def trained(images: Tensor, labels: Tensor) -> bbh.Posterior:
    network = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10))
    posterior = bbh.methods.bayes_by_hypernet(network, bbh.likelihoods.Categorical())
    loader = DataLoader(TensorDataset(images, labels), batch_size=20, shuffle=True)
    bbh.fit(posterior, loader, epochs=300 // len(loader), progress=False, compare=False)
    return posterior


def last_error(seed: int, *, active: bool) -> float:
    """The error with 65 labels: twenty at random, then three times fifteen."""
    images, labels, test_images, test_labels = rare_and_common(seed)
    torch.manual_seed(seed)
    order = torch.randperm(len(labels))
    labelled, pool = order[:20], order[20:]
    for _ in range(3):
        chosen = torch.randperm(len(pool))[:15]
        if active:
            posterior = trained(images[labelled], labels[labelled])
            predictive = bbh.predict(posterior, images[pool], num_samples=50)
            chosen = bbh.acquisition.top(bbh.acquisition.bald(predictive), 15)
        labelled = torch.cat([labelled, pool[chosen]])
        pool = pool[~torch.isin(torch.arange(len(pool)), chosen)]
    posterior = trained(images[labelled], labels[labelled])
    return bbh.metrics.error(bbh.predict(posterior, test_images, 50).mean, test_labels)


@pytest.mark.slow
def test_fewer_errors_than_with_labels_at_random():
    gains = [last_error(seed, active=False) - last_error(seed, active=True) for seed in range(5)]
    # Better all five times, or p would be above 1/32.
    assert stats.wilcoxon(gains, alternative="greater").pvalue < 0.05, gains
    assert sum(gains) / 5 > 5, gains
