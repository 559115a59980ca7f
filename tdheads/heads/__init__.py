"""Policy heads: tensordict modules that draw actions."""

from tdheads.heads.actor import make_actor as make_actor
from tdheads.heads.base import Head as Head
from tdheads.heads.bernoulli import BernoulliHead as BernoulliHead
from tdheads.heads.beta import BetaHead as BetaHead
from tdheads.heads.categorical import CategoricalHead as CategoricalHead
from tdheads.heads.composite import CompositeHead as CompositeHead
from tdheads.heads.leaf import LeafHead as LeafHead
from tdheads.heads.multi_categorical import MultiCategoricalHead as MultiCategoricalHead
from tdheads.heads.normal import BoxNormalHead as BoxNormalHead
from tdheads.heads.normal import NormalHead as NormalHead
from tdheads.heads.normal import TanhNormalHead as TanhNormalHead
from tdheads.heads.one_hot import MultiOneHotHead as MultiOneHotHead
from tdheads.heads.one_hot import OneHotCategoricalHead as OneHotCategoricalHead
from tdheads.heads.registry import register_head as register_head
from tdheads.heads.sequence import SequenceHead as SequenceHead
from tdheads.heads.sparse import SparseCategoricalHead as SparseCategoricalHead
from tdheads.heads.specs import make_head as make_head
