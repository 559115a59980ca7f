"""What a loss is made of: networks, coefficients, keys. TorchRL's ``LossModule`` does the work."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import (
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torchrl.objectives import ValueEstimators

from tdheads.arguments import check_flag, check_keywords
from tdheads.keys import NestedKey, as_key, as_path
from tdheads.losses.accepted_keys import KeyedLossModule
from tdheads.losses.adapter import actor_keys, mask_fills
from tdheads.losses.advantage import advantage_keys
from tdheads.losses.checkpoint import SavedLossModule
from tdheads.losses.entropy import entropy_coefficients
from tdheads.losses.estimators import (
    ESTIMATORS,
    build_estimator,
    find_estimator,
    is_recurrent,
)
from tdheads.losses.rows import SHIFTED_VALID, Valid, both, clean_inputs, fill, find_valid
from tdheads.losses.settings import FOREIGN_NAMES

if TYPE_CHECKING:
    from torchrl.modules import ValueNorm
    from typing_extensions import Self

#: the validity masks that TorchRL writes: where it pads slices of a replay buffer, and where an
#: estimator looked past the end of an episode
AUTO_LOSS_MASK_KEYS: tuple[NestedKey, ...] = (("collector", "mask"), SHIFTED_VALID)


class PolicyLossModule(SavedLossModule):
    """Networks, coefficients and keys of a policy-gradient loss with a critic.

    Keywords are those of TorchRL's ``PPOLoss``; see :class:`~tdheads.losses.PolicyLoss`.
    """

    default_value_estimator = ValueEstimators.GAE
    SUPPORTED_VALUE_ESTIMATORS = tuple(ESTIMATORS)
    #: which rows count: one entry, those that TorchRL writes ("auto"), or all (``None``)
    loss_mask_key: Any = "auto"
    #: draws for a leaf whose KL has no closed form
    samples_mc_kl = 1
    #: what to do instead of a keyword that TorchRL's losses had
    keyword_hints = {
        **dict.fromkeys(("gamma", "lmbda"), "give it to loss.make_value_estimator(...)"),
        **FOREIGN_NAMES,
        **{f"{name}_key": f"loss.set_keys({name}=...)" for name in KeyedLossModule.names()},
    }

    def __init_subclass__(cls, **options: Any) -> None:
        """Show the keywords of the constructor, which ``__new__`` would hide."""
        super().__init_subclass__(**options)
        params: dict[str, inspect.Parameter] = {}
        for base in (b for b in cls.__mro__ if "__init__" in vars(b)):
            own = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
            named = [param for param in own if param.kind is not param.VAR_KEYWORD]
            params = {**{p.name: p for p in named}, **params}
            if base is PolicyLossModule:
                break
        ordered = sorted(params.values(), key=lambda param: param.kind)
        cls.__signature__ = inspect.Signature(ordered)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Refuse unknown keywords before anything else."""
        check_keywords(cls, kwargs, subclass_takes_more=True)
        return super().__new__(cls)

    def __init__(
        self,
        actor_network: ProbabilisticTensorDictSequential | None = None,
        critic_network: TensorDictModule | None = None,
        *,
        entropy_bonus: bool = True,
        samples_mc_entropy: int = 1,
        entropy_coeff: float | Mapping[NestedKey, float] | None = None,
        log_explained_variance: bool = True,
        critic_coeff: float | None = None,
        loss_critic_type: str = "smooth_l1",
        normalize_advantage: bool = False,
        normalize_advantage_exclude_dims: Sequence[int] = (),
        advantage_norm: ValueNorm | None = None,
        separate_losses: bool = False,
        functional: bool = True,
        actor: ProbabilisticTensorDictSequential | None = None,
        critic: TensorDictModule | None = None,
        reduction: str | None = None,
        clip_value: float | None = None,
        delay_actor: bool = False,
        max_importance_ratio: float | None = None,
        device: torch.device | None = None,
        aggregate: str = "sum",
        value_norm: ValueNorm | None = None,
        alive_in_critic: bool = False,
        **unknown: Any,
    ) -> None:
        check_keywords(type(self), unknown)
        check_flag("functional", functional)
        self._functional = functional
        super().__init__()
        self._add_networks(
            actor_network if actor is None else actor,
            critic_network if critic is None else critic,
            delay_actor=delay_actor,
            separate_losses=separate_losses,
        )
        if advantage_norm is not None and normalize_advantage:
            raise ValueError("normalize_advantage, advantage_norm: mutually exclusive, give one")
        self.entropy_bonus = entropy_bonus
        self.samples_mc_entropy = samples_mc_entropy
        self.log_explained_variance = log_explained_variance
        self.loss_critic_type = loss_critic_type
        self.normalize_advantage = normalize_advantage
        self.normalize_advantage_exclude_dims = _dims(normalize_advantage_exclude_dims)
        self.advantage_norm, self.value_norm = advantage_norm, value_norm
        self.separate_losses = separate_losses
        self.reduction = reduction or "mean"
        self.aggregate, self.alive_in_critic = aggregate, alive_in_critic
        self.delay_actor = delay_actor
        actions, log_probs = actor_keys(self.actor_network)
        _check_aggregate(aggregate, actions, log_probs)
        self.set_keys(action=_one_or_list(actions), sample_log_prob=_one_or_list(log_probs))
        coeff = entropy_coefficients(0.01 if entropy_coeff is None else entropy_coeff, actions)
        device = device or next((p.device for p in self.parameters()), None)
        self.register_buffer("entropy_coeff", coeff.to(device))
        self._coeff_leaves = actions
        if self.critic_network is None or critic_coeff == 0:
            critic_coeff = None
        elif critic_coeff is None:
            critic_coeff = 1.0
        self.register_coeff_buffer("critic_coeff", critic_coeff, device=device)
        self.register_coeff_buffer("clip_value", clip_value, device=device)
        self.register_coeff_buffer("max_importance_ratio", max_importance_ratio, device=device)
        self._recurrent = is_recurrent(self.actor_network) or is_recurrent(self.critic_network)
        self._built = True

    def make_value_estimator(self, value_type: Any = None, **hyperparams: Any) -> Any:
        """Choose the advantage estimator; see TorchRL's ``LossModule.make_value_estimator``.

        Raises:
            TypeError: for a keyword that the estimator does not know.
            ValueError: for a ``gamma`` or ``lmbda`` outside of 0 to 1.
        """
        kind = find_estimator(value_type or self.default_value_estimator, hyperparams)
        if kind is None:  # an estimator of the caller's, with its own keys
            super().make_value_estimator(value_type, **hyperparams)
        else:
            self.value_type = kind
            self._value_estimator = build_estimator(self, kind, hyperparams)
            self._forward_value_estimator_keys()
        if is_recurrent(self.critic_network):  # for which vmap has no rule
            self._value_estimator.deactivate_vmap = True
        return self

    @property
    def in_keys(self) -> list[NestedKey]:
        """Every key that ``forward`` may read when the advantage is not there yet."""
        if self.__dict__.get("_in_keys") is not None:
            return self._in_keys
        critic_keys = [] if self.critic_network is None else list(self.critic_network.in_keys)
        inputs = dict.fromkeys(map(as_key, [*self.actor_network.in_keys, *critic_keys]))
        names = self.tensor_keys
        ends = (*inputs, names.reward, names.done, names.terminated)
        following = [as_key(("next", key)) for key in ends]
        keys = [*self.action_keys, *self.log_prob_keys, *following, *self._old_params()]
        keys += [] if names.alive is None else [as_key(names.alive)]
        return list(dict.fromkeys([*inputs, *keys]))

    @in_keys.setter
    def in_keys(self, keys: list[NestedKey]) -> None:
        self._in_keys = keys

    # ---- rows that count

    def _valid(self, td: TensorDictBase) -> Valid | None:
        """Return the rows that count for every term."""
        key = self.loss_mask_key
        if key is None:
            return None
        if key == "auto":
            group = as_path(self.action_keys[0])[:-1]
            own = [as_key((*group, SHIFTED_VALID))] if group else []
            return find_valid(td, (*AUTO_LOSS_MASK_KEYS, *own))
        todo = "it is the loss_mask_key: store it, or set it to None"
        return find_valid(td, (key,), required=todo)

    def _acting(
        self, td: TensorDictBase, valid: Valid | None, *, required: bool = True
    ) -> Valid | None:
        """Return the rows that count for the policy's terms: those of agents that are alive."""
        key = self.tensor_keys.alive
        if key is None:
            return valid
        todo = "it says which agents act (set_keys(alive=...)): store it, or set it to None"
        todo = todo if required else ""
        alive = find_valid(td, (key,), required=todo)
        return alive if valid is None or alive is None else both(valid, alive, key)

    def _judged(self, valid: Valid | None, acting: Valid | None) -> Valid | None:
        """Return the rows that count for the critic's term."""
        return acting if self.alive_in_critic else valid

    def _without_garbage(
        self, td: TensorDictBase, acting: Valid | None, judged: Valid | None
    ) -> TensorDictBase:
        """Return the batch with harmless content in the rows that do not count."""
        keys = self.tensor_keys
        if judged is not None:
            td = fill(td, judged, [keys.value_target, keys.value], 0)
        if acting is None:
            return td
        masks = mask_fills(self.actor_network)
        inputs = [*self.actor_network.in_keys]
        inputs += [] if self.critic_network is None else [*self.critic_network.in_keys]
        td = clean_inputs(td, acting, [key for key in map(as_key, inputs) if key not in masks])
        for key, content in masks.items():
            td = fill(td, acting, [key], content)
        # 1 is a parameter of every distribution
        stored = [key for key in self._old_params() if key not in masks]
        td = fill(td, acting, stored, 1)
        rows = [*self.action_keys, *self.log_prob_keys, *advantage_keys(self, td)]
        return fill(td, acting, rows, 0)


def _one_or_list(keys: list[NestedKey]) -> NestedKey | list[NestedKey]:
    return keys if len(keys) > 1 else keys[0]


def _check_aggregate(aggregate: str, actions: list[Any], log_probs: list[Any]) -> None:
    if aggregate == "none" and len(actions) != len(log_probs):
        raise ValueError(
            f"aggregate='none': expected one log-prob per leaf of {actions}, the actor writes"
            f" {log_probs}; build it with tdheads' heads, or under"
            " set_composite_lp_aggregate(False)"
        )


def _dims(dims: Any) -> tuple[int, ...]:
    listed = dims if isinstance(dims, (list, tuple)) else [None]
    if not all(isinstance(dim, int) for dim in listed):
        raise TypeError(
            f"normalize_advantage_exclude_dims: expected a tuple of dims, e.g. (-2,), got {dims!r}"
        )
    return tuple(listed)
