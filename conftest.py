"""One thread and fixed seeds for every test and doctest."""

import importlib.util
import os
import random

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for processes that a test starts

import numpy as np
import pytest
import torch

torch.set_num_threads(1)

# BenchMARL asks for an older TorchRL than the newest supported one
if importlib.util.find_spec("benchmarl") is None:
    collect_ignore = ["tdheads/benchmarl.py", "tests/masked_team.py"]


@pytest.fixture(autouse=True)
def _seed() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
