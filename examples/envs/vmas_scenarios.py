"""VMAS: two groups of agents whose actions differ, discrete and continuous."""

from __future__ import annotations

from functools import partial

from torchrl.envs import EnvBase, StepCounter, TransformedEnv

from envs.common import Task, as_it_is, require


def speaker_listener(num_envs: int, *, continuous: bool = False) -> EnvBase:
    """VMAS's simple_speaker_listener, 25 steps long.

    The speaker sees which of three landmarks is the goal, and talks; the listener sees where the
    landmarks are, hears, and moves. Both get minus the listener's distance from the goal. Discrete,
    the speaker has 27 choices and the listener 9; continuous, they write three and two numbers.
    """
    require("vmas", "vmas")
    from torchrl.envs import VmasEnv

    env = VmasEnv("simple_speaker_listener", num_envs=num_envs, continuous_actions=continuous)
    return TransformedEnv(env, StepCounter(max_steps=25))


SETTINGS = {
    "total_frames": 320_000,
    "num_envs": 160,
    "frames_per_batch": 8000,
    "minibatch_size": 1000,
    "lr": 1e-3,
    "gamma": 0.9,
}

SPEAKER_LISTENER = Task(
    make=speaker_listener,
    encode=as_it_is,
    package="vmas",
    settings=SETTINGS,
    groups=("speaker", "listener"),
    mask=None,
)

SPEAKER_LISTENER_CONTINUOUS = Task(
    make=partial(speaker_listener, continuous=True),
    encode=as_it_is,
    package="vmas",
    settings=SETTINGS,
    groups=("speaker", "listener"),
    mask=None,
)
