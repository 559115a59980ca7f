"""What the tests do otherwise, or leave out, on a TorchRL older than the newest supported one."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torchrl.modules
from torchrl.collectors import Collector
from torchrl.objectives import ValueEstimators, a2c

needs_value_norm = pytest.mark.skipif(
    not hasattr(torchrl.modules, "ValueNorm"), reason="torchrl has ValueNorm since 0.13"
)
needs_scale = pytest.mark.skipif(
    not hasattr(getattr(torchrl.modules, "ValueNorm", None), "scale"),
    reason="torchrl has ValueNorm.scale since 0.14",
)
needs_multi_agent_gae = pytest.mark.skipif(
    not hasattr(ValueEstimators, "MAGAE"), reason="torchrl has MultiAgentGAE since 0.13"
)
#: since 0.13 a collector warns unless it is told this
COLLECTOR_OPTIONS: dict[str, Any] = (
    {"auto_register_policy_transforms": False}
    if "auto_register_policy_transforms" in inspect.signature(Collector.__init__).parameters
    else {}
)
#: before 0.14 A2CLoss asks only distributions of TorchRL's own for their entropy, and draws from
#: all others with rsample
A2C_OPTIONS: dict[str, Any] = {"entropy_bonus": False} if hasattr(a2c, "HAS_ENTROPY") else {}
