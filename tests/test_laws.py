"""The page of laws in the docs says what the tests do."""

from __future__ import annotations

from tests.cases import DISCRETE, HEADS
from tests.joint import JOINTS
from tests.laws import PAGE, laws, page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run `python -m tests.laws`"


def test_every_case_of_every_table_obeys_laws() -> None:
    seen = {name for _, _, names in laws() for name in names}
    assert seen == {case.name for case in (*DISCRETE, *HEADS, *JOINTS)}


def test_heads_of_several_leaves_all_have_an_oracle() -> None:
    several = {case.name for case in HEADS if len(case.build().dist_sample_keys) > 1}
    assert several == {joint.name for joint in JOINTS}
