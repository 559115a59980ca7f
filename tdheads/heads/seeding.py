"""Draws that come from a generator of the head's own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def drawing_from(generator: torch.Generator | None) -> Iterator[None]:
    """Let torch draw from ``generator``, which moves on; ``None`` changes nothing.

    torch's distributions take no generator: its state stands in for the global one for the time of
    the draw, as tensordict does it. Not seen by ``torch.compile``, which draws from the global one.

    Example:
        >>> def draw():
        ...     with drawing_from(torch.Generator().manual_seed(3)):
        ...         return torch.rand(2)
        >>> bool((draw() == draw()).all())
        True
    """
    if generator is None or torch.compiler.is_compiling():
        yield
        return
    device = generator.device
    devices = [device.index or 0] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        if devices:
            torch.cuda.set_rng_state(generator.get_state(), device)
        else:
            torch.set_rng_state(generator.get_state())
        try:
            yield
        finally:
            state = torch.cuda.get_rng_state(device) if devices else torch.get_rng_state()
            generator.set_state(state)
