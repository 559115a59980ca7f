"""OpenSpiel: what is legal stands in the action spec alone, and changes with every step."""

from __future__ import annotations

from torchrl.envs import EnvBase, SerialEnv, TransformedEnv

from envs.common import Task, as_it_is, require
from envs.opponent import RandomOpponent
from tdheads import ActionSpecMask


def leduc_poker(num_envs: int) -> EnvBase:
    """OpenSpiel's Leduc poker: the first player learns, the second plays at random.

    `ActionSpecMask` copies the mask out of the action spec. OpenSpiel gives the player who waits
    one legal choice, 0, so that every row has something to take.
    """
    require("pyspiel", "openspiel")
    from torchrl.envs import OpenSpielEnv

    def one() -> EnvBase:
        groups = {"learner": ["player_0"], "opponent": ["player_1"]}
        env = OpenSpielEnv("leduc_poker", group_map=groups, categorical_actions=True)
        return TransformedEnv(env, ActionSpecMask()).append_transform(RandomOpponent("opponent"))

    return SerialEnv(num_envs, one)


LEDUC_POKER = Task(
    make=leduc_poker,
    encode=as_it_is,
    package="open-spiel",
    settings={
        "total_frames": 20_480,
        "num_envs": 16,
        "frames_per_batch": 2048,
        "minibatch_size": 512,
        "gamma": 1.0,
        "eval_episodes": 1000,
    },
    groups=("learner",),
    observation=("information_state",),
)
