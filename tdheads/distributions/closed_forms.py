"""Pairs of one kind whose KL has a closed form, looked up once."""

from __future__ import annotations

from torch.distributions import (
    Beta,
    Distribution,
    Independent,
    Normal,
    TransformedDistribution,
    kl,
)

# torch forgets what it has looked up with every pair that is registered: these come first
from tdheads.distributions import action as action
from tdheads.distributions import torch_kinds as torch_kinds
from tdheads.distributions.box_normal import BoxNormal
from tdheads.distributions.gated import GatedLeaf
from tdheads.distributions.gaussian import Gaussian
from tdheads.distributions.independent import IndependentLeaf
from tdheads.distributions.masked_bernoulli import MaskedBernoulli
from tdheads.distributions.masked_categorical import MaskedCategorical
from tdheads.distributions.masked_joint_categorical import MaskedJointCategorical
from tdheads.distributions.masked_multi_categorical import MaskedMultiCategorical
from tdheads.distributions.masked_multi_one_hot import MaskedMultiOneHot
from tdheads.distributions.masked_one_hot import MaskedOneHotCategorical
from tdheads.distributions.scaled_beta import ScaledBeta
from tdheads.distributions.shifted import ShiftedLeaf
from tdheads.distributions.sparse_categorical import SparseCategorical
from tdheads.distributions.tanh_normal import TanhNormal

KINDS = frozenset(
    {
        Beta,
        BoxNormal,
        Gaussian,
        MaskedBernoulli,
        MaskedCategorical,
        MaskedJointCategorical,
        MaskedMultiCategorical,
        MaskedMultiOneHot,
        MaskedOneHotCategorical,
        Normal,
        ScaledBeta,
        ShiftedLeaf,
        SparseCategorical,
        TanhNormal,
    }
)


def look_up(*kinds: type[Distribution]) -> None:
    """Let torch remember the KL of two distributions of one kind.

    torch looks a pair up when it is first asked for, in a way that a compiler cannot trace, and
    remembers it in a place that a compiled loss guards on.

    Example:
        >>> look_up(Normal)
    """
    for kind in kinds:
        kl._KL_MEMOIZE[kind, kind] = kl._dispatch_kl(kind, kind)


look_up(*KINDS, GatedLeaf, IndependentLeaf)


def has_closed_form(p: Distribution, q: Distribution) -> bool:
    """Whether both are of one of the kinds above, with closed event dims or not.

    Example:
        >>> import torch
        >>> dist = MaskedCategorical(torch.zeros(2, 3))
        >>> has_closed_form(dist, dist), has_closed_form(dist, Normal(0.0, 1.0))
        (True, False)
    """
    if isinstance(p, IndependentLeaf) and isinstance(q, IndependentLeaf):
        return has_closed_form(p.base_dist, q.base_dist)
    return type(p) is type(q) and type(p) in KINDS


def is_registered(p: Distribution, q: Distribution) -> bool:
    """Whether torch has a KL for the two, of whatever library.

    The KL of wrappers is registered, but exists only where that of what they wrap does.

    Example:
        >>> import torch
        >>> normal, student = Normal(0.0, 1.0), torch.distributions.StudentT(3.0)
        >>> is_registered(normal, normal), is_registered(student, student)
        (True, False)
    """
    for left, right in kl._KL_REGISTRY:
        wraps = issubclass(left, Independent) or left is TransformedDistribution
        if not wraps and isinstance(p, left) and isinstance(q, right):
            return True
    if isinstance(p, Independent) and isinstance(q, Independent):
        same = p.reinterpreted_batch_ndims == q.reinterpreted_batch_ndims
        return same and is_registered(p.base_dist, q.base_dist)
    if isinstance(p, TransformedDistribution) and isinstance(q, TransformedDistribution):
        same = p.transforms == q.transforms and p.event_shape == q.event_shape
        return same and is_registered(p.base_dist, q.base_dist)
    return False
