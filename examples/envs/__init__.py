"""The environments that `train.py` knows, each one a short function, with its settings beside it.

To add one, write a function `(num_envs) -> EnvBase` whose batch size is `[num_envs]`, and a `Task`
with it; then name the task here. Packages are imported inside the functions, so that one
environment's package is not needed for another's.
"""

from envs.chess_game import CHESS
from envs.common import MissingPackageError, Task, require
from envs.golf import GOLF
from envs.jumanji_games import BINPACK, CONNECTOR, FORAGING, SNAKE
from envs.openspiel_games import LEDUC_POKER
from envs.pettingzoo_games import CONNECT_FOUR, KNIGHTS_ARCHERS_ZOMBIES
from envs.taxi import TAXI
from envs.tictactoe import TICTACTOE
from envs.vmas_scenarios import SPEAKER_LISTENER, SPEAKER_LISTENER_CONTINUOUS

__all__ = ["TASKS", "MissingPackageError", "Task", "require"]

TASKS = {
    "taxi": TAXI,
    "tictactoe": TICTACTOE,
    "golf": GOLF,
    "chess": CHESS,
    "connect_four": CONNECT_FOUR,
    "zombies": KNIGHTS_ARCHERS_ZOMBIES,
    "leduc_poker": LEDUC_POKER,
    "snake": SNAKE,
    "connector": CONNECTOR,
    "binpack": BINPACK,
    "foraging": FORAGING,
    "speaker_listener": SPEAKER_LISTENER,
    "speaker_listener_continuous": SPEAKER_LISTENER_CONTINUOUS,
}
