"""Faults seen in other libraries, each with the tests that keep it out of this one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

# What went wrong elsewhere -> the tests named after what holds here.
MASKS: dict[str, list[str]] = {
    "one row without a legal choice fails or spoils the whole batch": [
        "test_distributions::test_a_row_without_a_legal_choice_is_an_error_by_default",
        "test_distributions::test_neutral_rows_take_action_0_and_count_nothing",
        "test_heads::test_empty_rows_are_named",
        "test_heads::test_on_empty_neutral_acts_with_0_in_rows_without_a_choice",
    ],
    "a finite fill gives illegal actions a probability": [
        "test_distributions::test_illegal_choices_have_probability_zero_and_log_prob_minus_inf",
        "test_distributions::test_no_finite_number_stands_in_for_an_illegal_choice",
        "test_distributions::test_illegal_choices_get_exactly_zero_gradient",
    ],
    "multiplying by a mask draws illegal actions": [
        "test_distributions::test_a_million_draws_are_all_legal_even_with_negative_logits",
        "test_joint::test_a_million_draws_are_legal_and_follow_the_joint",
    ],
    "the gradient of KL or of probs= is nan beside a masked entry": [
        "test_distributions::test_gradcheck_under_a_mask",
        "test_distributions::test_probs_instead_of_logits_give_finite_gradients_for_legal_choices",
        "test_joint::test_gradcheck_under_masks",
    ],
    "a sample with a sample shape cannot be scored": [
        "test_distributions::test_samples_with_leading_sample_dims_are_scored_one_by_one",
    ],
    "masks of int8 or of floats are refused": [
        "test_distributions::test_masks_of_numbers_equal_bool_masks",
    ],
    "a mask of another shape is broadcast": [
        "test_distributions::test_a_mask_that_would_have_to_be_broadcast_is_an_error",
        "test_heads::test_masks_of_the_wrong_shape_are_named_with_both_shapes",
    ],
    "a forgotten mask means that all is legal": [
        "test_heads::test_a_missing_mask_is_an_error_and_never_means_unmasked",
    ],
    "an action stored under another mask is trained on": [
        "test_heads::"
        "test_an_action_stored_under_another_mask_is_an_error_that_names_key_row_and_action",
    ],
    "nan of the network is turned into a finite loss": [
        "test_distributions::test_nan_logits_are_an_error_that_names_the_rows",
        "test_distributions::test_nan_logits_stay_nan_with_checks_off",
        "test_heads::test_nan_parameters_are_named",
    ],
    "the check of a simplex fails at random with many choices": [
        "test_distributions::test_thirty_thousand_choices",
        "test_distributions::test_random_large_logits_never_fail_a_simplex_check",
    ],
    "the mode of a one-hot has several ones on ties": [
        "test_one_hot::test_modes_with_ties_have_exactly_one_1",
    ],
    "the gradient of a relaxed one-hot is wrong": [
        "test_one_hot::test_relaxed_has_the_gradient_of_the_gumbel_softmax_that_was_drawn",
        "test_one_hot::test_pass_through_has_the_gradient_of_the_softmax",
    ],
    "a straight-through sample has no entry equal to 1": [
        "test_one_hot::test_every_drawn_row_is_exactly_one_hot",
    ],
    "a one-hot of one choice loses its batch dim": [
        "test_one_hot::test_a_single_choice_keeps_its_batch_dim",
    ],
    "lists of legal choices are compared place by place": [
        "test_sparse::test_lists_in_different_orders_agree_with_three_batch_dims",
        "test_sparse::test_log_prob_entropy_mode_and_kl_equal_the_dense_mask",
    ],
    "masks are copied into the parameters": [
        "test_heads::test_masks_are_read_where_they_are_and_stored_once",
    ],
    "dimensions of unequal size cannot be masked": [
        "test_distributions::test_unequal_dimensions_take_a_flat_mask_or_a_padded_one",
        "test_make_head::test_joint_is_stated_not_guessed",
    ],
}

DEPENDENCE: dict[str, list[str]] = {
    "the update draws the first action again": [
        "test_dependence::test_the_update_uses_the_stored_actions_and_draws_nothing",
        "test_heads::test_with_unchanged_weights_every_ratio_is_exactly_one",
    ],
    "the old distribution is the live network": [
        "test_heads::test_the_distribution_at_collection_is_rebuilt_from_what_is_stored",
    ],
    "arguments of no matter count": [
        "test_dependence::test_a_loss_counts_active_arguments_only",
        "test_dependence::test_an_irrelevant_leaf_is_0_and_counts_nothing",
    ],
    "a choice cannot restrict the next one": [
        "test_dependence::test_a_choice_restricts_the_next_one",
        "test_dependence::test_log_probs_equal_the_enumeration_and_the_joint_normalises",
    ],
}

NAMED = [name for faults in (MASKS, DEPENDENCE) for names in faults.values() for name in names]


@pytest.mark.parametrize("name", NAMED)
def test_the_test_exists(name: str) -> None:
    file, test = name.split("::")
    text = (TESTS / f"{file}.py").read_text()
    assert re.search(rf"^def {test}\(", text, re.MULTILINE), f"{file}.py has no {test}"


def test_every_fault_has_a_test() -> None:
    assert len(MASKS) == 18
    assert len(DEPENDENCE) == 4
    assert all(names for faults in (MASKS, DEPENDENCE) for names in faults.values())
