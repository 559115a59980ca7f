"""What a forward and backward keeps and needs, in bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile


def saved_bytes(forward: Callable[[], Any]) -> int:
    """Bytes of the tensors that autograd keeps for the backward pass, each storage once."""
    kept: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        out = forward()  # alive, so that no storage is used twice
    del out
    return sum(kept.values())


def peak_bytes(run: Callable[[], Any]) -> int:
    """Most bytes that a call has allocated at a time, beyond what was there before it."""
    run()  # gradients of parameters are there from the second call on
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        run()
    events = found.profiler.kineto_results.events()
    steps = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    now = most = 0
    for _, step in sorted(steps, key=lambda pair: pair[0]):
        now += step
        most = max(most, now)
    return most
