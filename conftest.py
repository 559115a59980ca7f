"""One thread and fixed seeds for every test and doctest."""

import os
import random

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for processes that a test starts

import numpy as np
import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
