"""What a loss may be set to, in its constructor and by assignment later."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from tensordict import NestedKey

from tdheads.arguments import check_count, check_flag, check_number, unknown_name
from tdheads.checks import check_options

Check = Callable[[str, Any], None]


def number(expected: str, ok: Callable[[float], bool], *, off: bool = False) -> Check:
    """Return the check of a coefficient; with ``off``, ``None`` turns it off.

    Example:
        >>> number("> 0", lambda x: x > 0)("epsilon", 0.2)
    """

    def check(name: str, value: Any) -> None:
        if not (off and value is None):
            check_number(name, value, ok, expected)

    return check


def one_of(*options: str) -> Check:
    """Return the check of a keyword with few values.

    Example:
        >>> one_of("sum", "none")("aggregate", "sum")
    """
    return lambda name, value: check_options(name, value, options)


def _norm(name: str, value: Any, method: str = "normalize") -> None:
    # by its methods: torchrl has the class since 0.13, with a scale since 0.14
    methods = (getattr(value, method, None) for method in ("update", method))
    if value is not None and not all(map(callable, methods)):
        raise TypeError(
            f"{name}: expected a ValueNorm of torchrl.modules with {method}(), or None, got"
            f" {value!r}"
        )


def _mask_key(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, NestedKey):  # in TorchRL's words
        raise ValueError(f"{name} must be 'auto', None or a NestedKey, got {value!r}.")


def _clip_value(name: str, value: Any) -> None:
    if isinstance(value, bool):  # in TorchRL's words
        raise ValueError(f"{name} must be a float or a scalar tensor, got {value}.")
    number(">= 0", lambda x: x >= 0, off=True)(name, value)


positive = number("> 0", lambda x: x > 0)

#: name -> what it may be; a loss adds its own
SETTINGS: dict[str, Check] = {
    **dict.fromkeys(
        (
            "entropy_bonus",
            "log_explained_variance",
            "normalize_advantage",
            "separate_losses",
            "delay_actor",
            "alive_in_critic",
        ),
        check_flag,
    ),
    "samples_mc_entropy": check_count,
    "loss_critic_type": one_of("l1", "l2", "smooth_l1"),
    "reduction": one_of("mean", "sum", "none"),
    "aggregate": one_of("sum", "none"),
    "entropy_coeff": number("that is finite", lambda _: True),
    "critic_coeff": number(">= 0", lambda x: x >= 0, off=True),
    "clip_value": _clip_value,
    "max_importance_ratio": number("> 0", lambda x: x > 0, off=True),
    "advantage_norm": functools.partial(_norm, method="scale"),
    "value_norm": _norm,
    "loss_mask_key": _mask_key,
}
#: coefficients that some loss has
COEFFICIENTS = ("beta", "dtarg", "epsilon", "clip_epsilon")


def check_setting(settings: Mapping[str, Check], name: str, value: Any) -> None:
    """Check what ``name`` is set to.

    Example:
        >>> check_setting(SETTINGS, "reduction", "sum")
    """
    check = settings.get(name)
    if check is not None:
        check(name, value)


def check_known(cls: type, settings: Mapping[str, Check], name: str, value: Any) -> None:
    """Refuse to set a number under a name that is a misspelt coefficient, which changes nothing.

    Example:
        >>> from tdheads import PPOLoss
        >>> check_known(PPOLoss, SETTINGS, "step", 3)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, Mapping)):
        return
    message = unknown_name(f"{cls.__name__}: no coefficient", name, settings)
    if "did you mean" in message or name in COEFFICIENTS:
        raise AttributeError(message)


#: what other libraries call the epsilon of the clip
CLIP_NAMES = ("clip_range", "clip_coef", "clip_param")
#: keyword of another library -> what to do instead
FOREIGN_NAMES = {
    **dict.fromkeys(CLIP_NAMES, "this loss does not clip the ratio, ClipPPOLoss does"),
    **dict.fromkeys(("clip_range_vf", "vf_clip_param"), "it is clip_value here"),
    **dict.fromkeys(("ent_coef", "entropy_cost"), "it is entropy_coeff here"),
    **dict.fromkeys(("vf_coef", "vf_loss_coeff"), "it is critic_coeff here"),
    "gae_lambda": "give lmbda to loss.make_value_estimator(...)",
}
