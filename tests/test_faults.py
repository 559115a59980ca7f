"""Faults seen in other libraries, each with the tests that keep it out of this one."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from tensordict.nn import set_composite_lp_aggregate

from tdheads import ClipPPOLoss
from tests import cases
from tests.batches import collect, move

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

LOSSES: dict[str, list[str]] = {
    "a global flag changes types and shapes": [
        "test_heads::test_no_global_flag_changes_a_key_or_a_shape",
        "test_traps::test_foreign_composites_of_every_flag",
        "test_faults::test_threads_that_set_the_flag_change_no_figure",
    ],
    "a flat advantage is summed over the batch": [
        "test_drop_in::test_a_flat_advantage_is_refused_for_every_kind_of_actor",
    ],
    "open event dims are averaged when a leaf is alone": [
        "test_heads::test_event_dims_are_closed",
        "test_traps::test_elementwise_distributions_in_a_foreign_actor_are_summed",
        "test_clip_loss::test_a_plain_normal_of_another_library_is_summed_over_its_event_dims",
    ],
    "a stray dim of an action is broadcast": [
        "test_traps::test_a_continuous_action_with_a_stray_or_missing_dim_is_an_error",
        "test_clip_loss::test_misuse_is_answered_with_the_key_what_was_found_and_what_to_do",
    ],
    "a team advantage means another ratio for another number of leaves": [
        "test_clip_loss::test_a_team_advantage_is_broadcast_over_per_agent_ratios",
        "test_traps::test_a_team_advantage_means_per_agent_ratios_for_every_actor",
    ],
    "entropy coefficients are averaged, lost or misnamed": [
        "test_clip_loss::test_entropy_coefficients_per_leaf",
        "test_clip_loss::test_entropy_coefficients_are_saved_and_can_be_scheduled",
        "test_losses::test_entropy_coefficients_are_scheduled_leaf_by_leaf",
        "test_traps::test_entropy_coefficients_follow_their_leaf_when_keys_are_set_in_another_order",
    ],
    "every leaf is clipped by itself": [
        "test_clip_loss::test_the_joint_ratio_is_clipped_not_each_leaf",
    ],
    "the KL of a composite is one random draw": [
        "test_losses::test_the_kl_is_that_from_the_stored_to_the_current_policy",
        "test_losses::test_the_kl_of_a_masked_leaf_by_enumeration",
        "test_losses::test_finite_differences_of_every_term",
        "test_joint::test_gradcheck_under_masks",
    ],
    "the gradient uses the beta after adaptation, and evaluation moves it": [
        "test_losses::test_beta_takes_part_as_it_is_and_moves_afterwards",
        "test_losses::test_beta_stays_in_evaluation_without_gradients_and_without_valid_rows",
        "test_compile::test_the_compiled_losses_equal_eager_and_compile_once",
    ],
    "probabilities that underflow, and 0 times inf": [
        "test_clip_loss::test_a_zero_coefficient_drops_a_term_that_is_not_finite",
        "test_traps::test_kl_is_infinite_also_where_the_forbidden_probability_rounds_to_zero",
    ],
    "advantages are normalised over padding, or are nan": [
        "test_clip_loss::test_normalisation_uses_valid_rows_only_and_never_gives_nan",
        "test_clip_loss::test_normalisation_keeps_the_dims_apart_that_the_user_names",
        "test_losses::test_a_batch_without_a_valid_row_moves_no_statistics",
    ],
    "figures include padded rows": [
        "test_clip_loss::test_garbage_in_padded_rows_changes_no_clipped_value",
        "test_losses::test_garbage_in_padded_rows_changes_nothing",
    ],
    "another action is scored than was written": [
        "test_tanh_normal::test_a_written_action_scores_the_same_when_it_is_read_back",
        "test_heads::test_every_ratio_is_exactly_one_at_the_bounds",
    ],
    "a centred loc is at an end of asymmetric bounds": [
        "test_tanh_normal::test_centred_loc_is_the_middle_of_asymmetric_bounds",
    ],
    "importing changes the checks of the process": [
        "test_faults::test_importing_changes_no_check_of_torch_that_torchrl_leaves_alone",
    ],
    "a loss does not compile, and compiled entropies draw": [
        "test_compile::test_the_compiled_losses_equal_eager_and_compile_once",
        "test_compile::test_padding_and_one_ratio_per_leaf_compile_too",
        "test_faults::test_a_loss_draws_no_random_numbers",
    ],
    "stacked parameters and several processes": [
        "test_transforms::test_vmap_over_stacked_parameters_equals_a_loop",
        "test_transforms::test_the_gradient_of_every_stacked_parameter_equals_backward",
        "test_ddp::test_two_processes_have_the_gradient_of_one_on_the_joined_batch",
        "test_ddp::test_networks_in_ddp_are_refused_inside_a_loss",
    ],
    "messages that do not say what is missing": [
        "test_clip_loss::test_misuse_is_answered_with_the_key_what_was_found_and_what_to_do",
        "test_clip_loss::test_bad_arguments_are_refused_in_the_constructor",
        "test_losses::test_parameters_that_were_not_stored_are_named",
        "test_heads::test_misspelt_keywords_are_refused",
    ],
    "declared keys are not those written": [
        "test_losses::test_keys_written_are_the_keys_declared",
        "test_heads::test_keys_written_are_the_keys_declared",
    ],
}

NAMED = [
    name for faults in (MASKS, DEPENDENCE, LOSSES) for names in faults.values() for name in names
]


@pytest.mark.parametrize("name", NAMED)
def test_the_test_exists(name: str) -> None:
    file, test = name.split("::")
    text = (TESTS / f"{file}.py").read_text()
    assert re.search(rf"^def {test}\(", text, re.MULTILINE), f"{file}.py has no {test}"


def test_every_fault_has_a_test() -> None:
    assert len(MASKS) == 18
    assert len(LOSSES) == 19
    assert len(DEPENDENCE) == 4
    assert all(names for faults in (MASKS, DEPENDENCE, LOSSES) for names in faults.values())


# ---- what no other test file says


@pytest.mark.parametrize("kind", cases.LOSSES, ids=cases.case_ids(cases.LOSSES))
@pytest.mark.parametrize("case", cases.HEADS, ids=cases.case_ids(cases.HEADS))
def test_a_loss_draws_no_random_numbers(case: cases.HeadCase, kind: cases.LossCase) -> None:
    """Eagerly, and so compiled: there is nothing to draw in what is traced."""
    td = collect(case, actor := case.actor(), [5])
    loss = kind.build(actor, cases.critic())
    before = torch.get_rng_state()
    loss(td)
    assert (torch.get_rng_state() == before).all()


def test_threads_that_set_the_flag_change_no_figure() -> None:
    """The flag is one for the process, and interleaved threads may leave it stuck."""
    case = cases.HEADS[-1]
    td = collect(case, actor := case.actor(), [5])
    move(actor)
    loss = ClipPPOLoss(actor, cases.critic())
    expected = loss(td)
    inside, done = threading.Barrier(3, timeout=60), threading.Barrier(3, timeout=60)

    def hold(value: bool) -> None:
        with set_composite_lp_aggregate(value):
            inside.wait()
            done.wait()

    threads = [threading.Thread(target=hold, args=(value,)) for value in (True, False)]
    with set_composite_lp_aggregate(True):  # puts the flag back, which the threads may leave stuck
        for thread in threads:
            thread.start()
        inside.wait()
        found = loss(td)
        done.wait()
        for thread in threads:
            thread.join()
        after = loss(td)
    for out in (found, after):
        assert set(out.keys(True, True)) == set(loss.out_keys)
        for key, figure in expected.items(True, True):
            assert (out[key] == figure).all()


def test_importing_changes_no_check_of_torch_that_torchrl_leaves_alone() -> None:
    """TorchRL turns them off when it is imported; tdheads leaves them as they are after that."""
    code = (
        "import torchrl.modules, torchrl.objectives\n"
        "from torch.distributions import Distribution as D\n"
        "for state in (True, False):\n"
        "    D.set_default_validate_args(state)\n"
        "    import tdheads\n"
        "    assert D._validate_args is state\n"
        "    for name in [n for n in __import__('sys').modules if n.startswith('tdheads')]:\n"
        "        del __import__('sys').modules[name]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240, cwd=TESTS.parent)
