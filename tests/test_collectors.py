"""Every head in the worker processes of TorchRL's collectors."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torchrl.collectors import MultiSyncCollector

from tdheads import ActionDistribution
from tests.cases import HEADS, case_ids
from tests.versions import COLLECTOR_OPTIONS
from tests.workers import EveryActor, EveryInput


def collected(policy: EveryActor, frames: int) -> list[TensorDict]:
    """Two batches of two worker processes, which have ended when they are returned."""
    collector = MultiSyncCollector(
        [EveryInput] * 2,
        policy,
        frames_per_batch=frames,
        total_frames=2 * frames,
        **COLLECTOR_OPTIONS,
    )
    try:
        return [batch.clone() for batch in collector]
    finally:
        collector.shutdown()


@pytest.mark.slow
def test_every_head_is_sent_to_worker_processes_and_collects_there() -> None:
    actors = {f"case {i}": case.actor() for i, case in enumerate(HEADS)}
    batches = collected(EveryActor(actors), 12)
    assert len(batches) == 2
    for batch in batches:
        assert batch.numel() == 12
        for case, (name, actor) in zip(HEADS, actors.items(), strict=True):
            td = batch[name].reshape(-1)
            written = {*actor.in_keys, *actor.out_keys, "hidden", *actor[-1].in_keys}
            assert set(td.keys(True, True)) == written, case.name
            with torch.no_grad():
                dist = actor.get_dist(td.clone())
            for action, key in zip(actor.dist_sample_keys, actor.log_prob_keys, strict=True):
                leaf = dist[action] if isinstance(dist, ActionDistribution) else dist
                # collected one row at a time, scored as a batch: sums are rounded in another order
                torch.testing.assert_close(leaf.log_prob(td[action]), td[key], rtol=1e-4, atol=1e-5)
        drawn = batch["case " + str(case_ids(HEADS).index("normal")), "action"]
        assert len(drawn.unique()) == drawn.numel()  # no worker and no step repeats another
