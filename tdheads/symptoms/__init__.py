"""The checks of :func:`tdheads.diagnose`, one function each."""

from __future__ import annotations

from collections.abc import Callable

from tdheads.symptoms.batch import ERROR as ERROR
from tdheads.symptoms.batch import Batch as Batch
from tdheads.symptoms.batch import Symptoms
from tdheads.symptoms.learning import check_advantage, check_empty, check_forward, check_gradient
from tdheads.symptoms.policy import check_legal, check_policy, check_ratio
from tdheads.symptoms.stored import check_keys, check_mask, check_nan

#: name -> check, and the checks that have to be well before it can run
CHECKS: dict[str, tuple[Callable[[Batch], Symptoms], tuple[str, ...]]] = {
    "keys": (check_keys, ()),
    "nan": (check_nan, ("keys",)),
    "mask": (check_mask, ("keys",)),
    "policy": (check_policy, ("keys", "nan")),
    "legal": (check_legal, ("policy",)),
    "ratio": (check_ratio, ("policy", "legal")),
    "empty": (check_empty, ("policy",)),
    "advantage": (check_advantage, ("policy",)),
    "gradient": (check_gradient, ("policy", "legal", "empty")),
    "forward": (check_forward, ("keys", "nan")),
}
