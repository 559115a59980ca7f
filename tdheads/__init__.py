"""TensorDict-native policy heads and PPO losses for hard action spaces."""

from tdheads.distributions import ActionDistribution as ActionDistribution
from tdheads.distributions import MaskedBernoulli as MaskedBernoulli
from tdheads.distributions import MaskedCategorical as MaskedCategorical
from tdheads.distributions import MaskedJointCategorical as MaskedJointCategorical
from tdheads.distributions import MaskedMultiCategorical as MaskedMultiCategorical
from tdheads.distributions import MaskedMultiOneHot as MaskedMultiOneHot
from tdheads.distributions import MaskedOneHotCategorical as MaskedOneHotCategorical
from tdheads.distributions import ScaledBeta as ScaledBeta
from tdheads.distributions import TanhNormal as TanhNormal
from tdheads.heads import BernoulliHead as BernoulliHead
from tdheads.heads import BetaHead as BetaHead
from tdheads.heads import CategoricalHead as CategoricalHead
from tdheads.heads import CompositeHead as CompositeHead
from tdheads.heads import Head as Head
from tdheads.heads import LeafHead as LeafHead
from tdheads.heads import MultiCategoricalHead as MultiCategoricalHead
from tdheads.heads import MultiOneHotHead as MultiOneHotHead
from tdheads.heads import NormalHead as NormalHead
from tdheads.heads import OneHotCategoricalHead as OneHotCategoricalHead
from tdheads.heads import TanhNormalHead as TanhNormalHead
from tdheads.heads import make_actor as make_actor
from tdheads.heads import make_head as make_head
from tdheads.heads import register_head as register_head
from tdheads.losses import ClipPPOLoss as ClipPPOLoss
from tdheads.losses import PolicyLoss as PolicyLoss
