"""The environments that `train.py` knows, each one a short function, with its settings beside it.

To add one, write a function `(num_envs) -> EnvBase` whose batch size is `[num_envs]`, and a `Task`
with it; then name the task here. Packages are imported inside the functions, so that one
environment's package is not needed for another's.
"""

from envs.common import MissingPackageError, Task, require
from envs.golf import GOLF
from envs.jumanji_games import BINPACK, CONNECTOR
from envs.pettingzoo_games import CONNECT_FOUR
from envs.taxi import TAXI
from envs.tictactoe import TICTACTOE

__all__ = ["TASKS", "MissingPackageError", "Task", "require"]

TASKS = {
    "taxi": TAXI,
    "tictactoe": TICTACTOE,
    "golf": GOLF,
    "connect_four": CONNECT_FOUR,
    "connector": CONNECTOR,
    "binpack": BINPACK,
}
