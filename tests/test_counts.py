"""The counts of counts.json: operators, host synchronisations, tensordict entries, saved bytes.

They say on any machine what a change costs. Graph breaks are gated by test_compile.py: there are
none. ``python -m tests.counts`` writes the file anew, for a change that moves them on purpose.
"""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from tests import counts
from tests.cases import LOSSES, HeadCase, LossCase, case_ids

EXPECTED = counts.expected()
pytestmark = pytest.mark.skipif(
    counts.versions() != EXPECTED["versions"],
    reason=f"the counts are those of {EXPECTED['versions']}",
)


@pytest.mark.parametrize("kind", LOSSES, ids=case_ids(LOSSES))
@pytest.mark.parametrize("case", counts.CASES, ids=case_ids(counts.CASES))
def test_operators_synchronisations_and_entries(case: HeadCase, kind: LossCase) -> None:
    assert counts.of_loss(case, kind) == EXPECTED["losses"][f"{kind.name}, {case.name}"]


@pytest.mark.parametrize("case", counts.CASES, ids=case_ids(counts.CASES))
def test_a_step_of_the_actor(case: HeadCase) -> None:
    assert counts.of_acting(case) == EXPECTED["acting"][case.name]


def test_bytes_kept_for_the_backward_pass() -> None:
    assert counts.measure_saved() == EXPECTED["saved bytes of 29,275 choices"]


def test_the_counters_see_what_they_count() -> None:
    with counts.CountOperators() as operators:
        torch.ones(2).exp()
    assert operators.found == 2
    td = TensorDict({"x": torch.ones(2)}, [2])
    with counts.counted_entries() as entries:
        td.set("y", td.get("x"))
    assert sorted(entries) == ["get", "set"]
