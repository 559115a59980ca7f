"""PPO losses over a set of action leaves."""

from tdheads.losses.base import PolicyLoss as PolicyLoss
from tdheads.losses.clip import ClipPPOLoss as ClipPPOLoss
from tdheads.losses.kl_penalty import KLPENPPOLoss as KLPENPPOLoss
from tdheads.losses.ppo import PPOLoss as PPOLoss
from tdheads.losses.spo import SPOLoss as SPOLoss
