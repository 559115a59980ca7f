"""PPO losses over a set of action leaves."""

from tdheads.losses.base import PolicyLoss as PolicyLoss
from tdheads.losses.clip import ClipPPOLoss as ClipPPOLoss
