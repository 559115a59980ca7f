"""Tests of what the oldest supported TorchRL does not have yet."""

from __future__ import annotations

import pytest
import torchrl.modules
from torchrl.objectives import ValueEstimators

needs_value_norm = pytest.mark.skipif(
    not hasattr(torchrl.modules, "ValueNorm"), reason="torchrl has ValueNorm since 0.13"
)
needs_multi_agent_gae = pytest.mark.skipif(
    not hasattr(ValueEstimators, "MAGAE"), reason="torchrl has MultiAgentGAE since 0.13"
)
