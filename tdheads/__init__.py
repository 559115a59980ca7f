"""TensorDict-native policy heads and PPO losses for hard action spaces."""

from tdheads.distributions import ActionDistribution as ActionDistribution
from tdheads.distributions import MaskedCategorical as MaskedCategorical
from tdheads.distributions import MaskedJointCategorical as MaskedJointCategorical
from tdheads.distributions import MaskedMultiCategorical as MaskedMultiCategorical
from tdheads.distributions import TanhNormal as TanhNormal
