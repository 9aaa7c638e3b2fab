"""Imported by the process that others are forked from: a first training loads for seconds."""

import torch
from torch.utils.data import DataLoader

from training.small import dataset, fit, hypernet

torch.set_num_threads(1)
fit(hypernet(), DataLoader(dataset(), batch_size=4), 1)
