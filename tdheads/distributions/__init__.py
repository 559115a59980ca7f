"""Distributions of action leaves, and their joint distribution."""

from tdheads.distributions import closed_forms as closed_forms  # registers KLs, looks them up
from tdheads.distributions.action import ActionDistribution as ActionDistribution
from tdheads.distributions.box_normal import BoxNormal as BoxNormal
from tdheads.distributions.dependent import DependentDistribution as DependentDistribution
from tdheads.distributions.gated import GatedLeaf as GatedLeaf
from tdheads.distributions.independent import IndependentLeaf as IndependentLeaf
from tdheads.distributions.masked_bernoulli import MaskedBernoulli as MaskedBernoulli
from tdheads.distributions.masked_categorical import MaskedCategorical as MaskedCategorical
from tdheads.distributions.masked_joint_categorical import (
    MaskedJointCategorical as MaskedJointCategorical,
)
from tdheads.distributions.masked_multi_categorical import (
    MaskedMultiCategorical as MaskedMultiCategorical,
)
from tdheads.distributions.masked_multi_one_hot import MaskedMultiOneHot as MaskedMultiOneHot
from tdheads.distributions.masked_one_hot import MaskedOneHotCategorical as MaskedOneHotCategorical
from tdheads.distributions.scaled_beta import ScaledBeta as ScaledBeta
from tdheads.distributions.sparse_categorical import SparseCategorical as SparseCategorical
from tdheads.distributions.sparse_categorical import legal_index as legal_index
from tdheads.distributions.tanh_normal import TanhNormal as TanhNormal
