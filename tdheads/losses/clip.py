"""The clipped loss."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tdheads.arguments import check_number
from tdheads.keys import NestedKey
from tdheads.losses import functional as F
from tdheads.losses.base import PolicyLoss
from tdheads.losses.policy import Bounds, PolicyRows, Terms
from tdheads.losses.settings import CLIP_NAMES, number
from tdheads.reduce import add


def _below_one(epsilon: float) -> bool:
    return 0 <= epsilon < 1


class ClipPPOLoss(PolicyLoss):
    r"""Clipped PPO over a set of action leaves, which share one ratio, one reward and one done.

    .. math:: L = -\mathrm{mean}_V \min(w A, \mathrm{clip}(w, 1 - \epsilon_l, 1 + \epsilon_h) A),
              \quad \log w = \sum_l \log p_{new}(a_l) - \log p_{old}(a_l)

    A drop-in for TorchRL's ``ClipPPOLoss``: same keywords, ``set_keys``, value estimators and
    output names. It reads the action leaves and their log-probs, ``advantage`` ``[*B, 1]`` (or
    computes it) and ``value_target`` ``[*B, 1]``; it writes ``loss_objective``, ``loss_entropy``,
    ``loss_critic`` and the figures listed in ``out_keys``.

    Args:
        actor_network: e.g. from :func:`~tdheads.make_actor`, or any TorchRL actor.
        critic_network: a module that writes ``state_value``.
        clip_epsilon: one number, or ``(low, high)``.
        clip_value: clip the value around the one at collection, by this much or, if ``True``, by
            ``clip_epsilon``.
        entropy_coeff: one number, or leaf -> number; either is changed by assignment, of a loss
            built with a mapping ``loss.entropy_coeff = {"kind": 0.0}``, all leaves or some.
        normalize_advantage: over the valid rows of the batch.
        aggregate: ``"sum"`` (the default): the leaves share one ratio, clipped once; ``"none"``:
            one ratio, clip and, if there is one for each, advantage per leaf.
        alive_in_critic: whether rows of agents that ``set_keys(alive=...)`` says are dead are left
            out of the critic's term too.
        options: further keywords of TorchRL's ``PPOLoss``: ``critic_coeff``, ``loss_critic_type``,
            ``normalize_advantage_exclude_dims``, ``advantage_norm``, ``separate_losses``,
            ``functional``, ``reduction``, ``delay_actor``, ``max_importance_ratio``, ...

    Raises:
        ValueError, KeyError: name the key, what was found and what to do: wrong shapes (a flat
            advantage, a stray dim), missing entries, a stored action that is illegal under the
            stored mask.

    Source: Schulman et al., "Proximal Policy Optimization Algorithms",
    https://arxiv.org/abs/1707.06347.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from tdheads import CategoricalHead, make_actor
        >>> body = TensorDictModule(torch.nn.Linear(4, 64), ["observation"], ["hidden"])
        >>> actor = make_actor(body, CategoricalHead("action", n=3, mask=True))
        >>> critic = TensorDictModule(torch.nn.Linear(4, 1), ["observation"], ["state_value"])
        >>> td = TensorDict({"observation": torch.randn(5, 4)}, [5])
        >>> td["action_mask"] = torch.tensor([[True, False, True]]).expand(5, 3)
        >>> td = actor(td).detach()
        >>> td["advantage"], td["value_target"] = torch.randn(5, 1), torch.randn(5, 1)
        >>> losses = ClipPPOLoss(actor, critic)(td)
        >>> (losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]).backward()
        >>> losses["max_ratio"]
        tensor(1.)
    """

    keyword_hints = {
        **PolicyLoss.keyword_hints,
        **dict.fromkeys(CLIP_NAMES, "it is clip_epsilon here"),
    }
    settings = {
        **PolicyLoss.settings,
        **dict.fromkeys(
            ("clip_epsilon", "clip_epsilon_low"), number("from 0 to below 1", _below_one)
        ),
        "clip_epsilon_high": number(">= 0", lambda x: x >= 0),
    }
    _schedulable_buffers = frozenset({"clip_epsilon", "clip_epsilon_low", "clip_epsilon_high"})

    def __init__(
        self,
        actor_network: Any = None,
        critic_network: Any = None,
        *,
        clip_epsilon: float | tuple[float, float] = 0.2,
        clip_value: bool | float | None = None,
        **options: Any,
    ) -> None:
        pair = isinstance(clip_epsilon, (tuple, list))
        bounds = clip_epsilon if isinstance(clip_epsilon, (tuple, list)) else [clip_epsilon] * 2
        if len(bounds) != 2:
            raise ValueError(f"clip_epsilon: expected a number or length 2, got {clip_epsilon}")
        low, high = bounds
        for epsilon in bounds:
            check_number("clip_epsilon", epsilon)
        if not (0 <= low < 1 and high >= 0):
            raise ValueError(
                "clip_epsilon: expected non-negative numbers, and the low one must be < 1, got"
                f" {low}, {high}"
            )
        if clip_value is True and pair:
            raise ValueError(f"clip_value=True: expected one clip_epsilon, got {clip_epsilon}")
        if isinstance(clip_value, bool):
            clip_value = low if clip_value else None
        super().__init__(actor_network, critic_network, clip_value=clip_value, **options)
        names = ("clip_epsilon_low", "clip_epsilon_high") if pair else ("clip_epsilon",)
        for name, value in zip(names, (low, high), strict=False):
            self.register_coeff_buffer(name, value, device=self.entropy_coeff.device)
        self._bound_names = names[0], names[-1]

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse to set the epsilon that this loss does not use, which would change nothing."""
        names = self.__dict__.get("_bound_names", ())
        if name in ClipPPOLoss._schedulable_buffers and names and name not in names:
            kind = "symmetric" if names[0] == names[1] else "asymmetric"
            raise AttributeError(
                f"{name}: this loss is {kind}; set {', '.join(sorted(set(names)))}"
            )
        super().__setattr__(name, value)

    def _bounds(self) -> Bounds:
        buffers: dict[str, Any] = self._buffers
        low, high = (buffers[name] for name in self._bound_names)
        return (-low).log1p(), high.log1p()

    def _surrogate(self, terms: Terms) -> Tensor:
        assert terms.bounds is not None
        return F.clipped_surrogate(
            terms.log_ratio, terms.advantage, *terms.bounds, terms.log_weight
        )

    def _variant_keys(self) -> list[NestedKey]:
        return ["clip_fraction"]

    def _variant_rows(self, rows: PolicyRows) -> dict[NestedKey, Tensor]:
        assert rows.bounds is not None
        low, high = rows.bounds
        clipped = [(x.clamp(low, high) != x).to(x.dtype) for x in self._acted_on(rows)]
        total = add(clipped)
        return {"clip_fraction": total if len(clipped) == 1 else total / len(clipped)}
