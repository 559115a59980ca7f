"""Entropy coefficients: one number, or one per leaf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tdheads.arguments import check_number
from tdheads.keys import ENTROPY, LOG_PROB, NestedKey, as_key, suffixed


def entropy_coefficients(
    coeff: float | Tensor | Mapping[NestedKey, float], leaves: Sequence[NestedKey]
) -> Tensor:
    """Return the coefficients as a buffer: ``[]`` for one number, ``[leaves]`` for a mapping.

    The keys of a mapping are the leaves' action keys; their ``_log_prob`` and ``_entropy`` forms,
    which TorchRL uses, are accepted.

    Raises:
        TypeError: for anything else than a number or a mapping.
        ValueError: for a mapping whose keys are not exactly the leaves.

    Example:
        >>> entropy_coefficients({"kind": 0.1, "where_log_prob": 0.0}, ["kind", "where"])
        tensor([0.1000, 0.0000])
    """
    if not isinstance(coeff, Mapping):
        one = isinstance(coeff, Tensor) and coeff.numel() == 1
        if not one and (isinstance(coeff, bool) or not isinstance(coeff, (int, float))):
            raise TypeError(f"entropy_coeff: expected a number or a mapping, got {coeff!r}")
        check_number("entropy_coeff", coeff)
        return torch.as_tensor(coeff, dtype=torch.get_default_dtype()).clone().squeeze()
    given = _by_leaf(coeff, leaves)
    if set(given) != set(leaves):
        raise _error(coeff, leaves)
    return torch.tensor([float(given[leaf]) for leaf in leaves])


def updated(
    coeff: Tensor, change: Mapping[NestedKey, float], leaves: Sequence[NestedKey]
) -> Tensor:
    """Return the coefficients with those of some leaves changed.

    Raises:
        ValueError: for a loss with one coefficient for all leaves, and for unknown leaves.

    Example:
        >>> updated(torch.tensor([0.1, 0.2]), {"where": 0.0}, ["kind", "where"])
        tensor([0.1000, 0.0000])
    """
    if not coeff.ndim:
        raise ValueError(
            "entropy_coeff: this loss has one coefficient for all leaves; build it with a mapping"
            " to schedule them one by one"
        )
    given = _by_leaf(change, leaves)
    if not given:
        raise _error(change, leaves)
    places = [leaves.index(leaf) for leaf in given]
    values = torch.tensor([float(value) for value in given.values()]).to(coeff)
    return coeff.index_copy(0, torch.tensor(places, device=coeff.device), values)


def _by_leaf(
    coeff: Mapping[NestedKey, float], leaves: Sequence[NestedKey]
) -> dict[NestedKey, float]:
    forms = {suffixed(leaf, end): leaf for leaf in leaves for end in ("", LOG_PROB, ENTROPY)}
    given = {forms.get(as_key(key, "entropy_coeff"), key): value for key, value in coeff.items()}
    for value in given.values():
        check_number("entropy_coeff", value)
    if not set(given) <= set(leaves) or len(given) != len(coeff):
        raise _error(coeff, leaves)
    return given


def _error(coeff: Mapping[NestedKey, float], leaves: Sequence[NestedKey]) -> ValueError:
    return ValueError(
        f"entropy_coeff: expected one coefficient for each of the leaves {list(leaves)}, got"
        f" {dict(coeff)}"
    )
