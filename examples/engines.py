"""The engines of `distributed.py`: processes, collectors, and the death of a worker.

All collectors yield batches of `frames_per_batch` frames from `num_envs` environments, split evenly
over the workers; but `async` has all of them in every worker, and takes whichever batch is ready.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.distributed as dist
from agent import Settings
from envs import TASKS, require
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.collectors import BaseCollector, Collector, MultiAsyncCollector, MultiSyncCollector
from torchrl.envs import EnvBase, RewardSum, TransformedEnv

WITH_WORKERS = ("multiprocess", "async", "ray")
ENGINES = ("single", "ddp", *WITH_WORKERS)


# --- Processes -------------------------------------------------------------------------------


@contextmanager
def process_group(settings: Settings) -> Iterator[None]:
    """The processes that torchrun started: NCCL between GPUs, Gloo between CPUs.

    No DistributedDataParallel may outlive it: freed afterwards, it can deadlock with Gloo's thread.
    """
    if settings["engine"] != "ddp":
        yield
        return
    if settings["device"] == "cuda":
        settings["device"] = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(settings["device"])
    backend = "gloo" if settings["device"] == "cpu" else "nccl"
    dist.init_process_group(backend, timeout=timedelta(minutes=2))
    try:
        yield
    finally:
        dist.destroy_process_group()


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def processes() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def summed(values: Tensor) -> Tensor:
    """The sum over all processes."""
    if dist.is_initialized():
        dist.all_reduce(values)
    return values


def normalize(values: Tensor) -> None:
    """In place, to mean 0 and standard deviation 1 over all processes."""
    x = values.double()
    powers = torch.stack([torch.ones_like(x), x, x.square()])
    count, total, squares = summed(powers.flatten(1).sum(1))
    mean = total / count
    std = (squares / count - mean.square()).clamp_min(0).sqrt()
    values.sub_(mean).div_(std.clamp_min(1e-6))


# --- Collectors ------------------------------------------------------------------------------


def make_env(name: str, num_envs: int) -> EnvBase:
    """The environments of one process; it runs in that process, and so sets its threads too."""
    torch.set_num_threads(1)
    env = TASKS[name].make(num_envs)
    return TransformedEnv(env, RewardSum(["reward"], ["episode_return"]), auto_unwrap=True)


def shares(settings: Settings) -> int:
    """The number of processes over which the environments are split."""
    if settings["engine"] == "ddp":
        return int(os.environ["WORLD_SIZE"])
    return settings["workers"] if settings["engine"] in ("multiprocess", "ray") else 1


def make_collector(policy: TensorDictModuleBase, settings: Settings) -> BaseCollector:
    """The engine's collector; under DDP each process has one, for its share."""
    engine, workers, frames = settings["engine"], settings["workers"], settings["frames_per_batch"]
    share = shares(settings)
    env = partial(make_env, settings["env"], settings["num_envs"] // share)
    options = {"total_frames": -1, "env_device": "cpu"}
    quiet = {"auto_register_policy_transforms": False}  # they are for recurrent policies
    if engine not in WITH_WORKERS:
        options |= dict.fromkeys(("policy_device", "storing_device"), settings["device"])
        return Collector(env(), policy, frames_per_batch=frames // share, **options, **quiet)
    options |= {"frames_per_batch": frames, "policy_device": "cpu", "storing_device": "cpu"}
    if engine == "ray":
        return ray_collector([env] * workers, policy, collector_kwargs=quiet, **options)
    options |= quiet | {"num_threads": 1, "num_sub_threads": 1}
    if engine == "async":
        return MultiAsyncCollector([env] * workers, policy, **options)
    return MultiSyncCollector([env] * workers, policy, cat_results=0, **options)


def seed(collector: BaseCollector, number: int) -> None:
    """Seed every worker, each with a number of its own, and reset its environments."""
    collector.set_seed(number)
    if hasattr(collector, "remote_collectors"):
        collector.map_fn("reset")
    else:
        collector.reset()


def ray_collector(envs: list[Any], policy: TensorDictModuleBase, **options: Any) -> BaseCollector:
    """A RayCollector on the cluster that RAY_ADDRESS names, or on a local Ray that it starts."""
    require("ray", "ray")
    from torchrl.collectors.distributed import RayCollector

    local = {"address": "local", "num_cpus": len(envs), "include_dashboard": False}
    cluster = {"address": "auto"} if "RAY_ADDRESS" in os.environ else local
    return RayCollector(
        envs,
        policy,
        sync=True,
        num_collectors=len(envs),
        ray_init_config=cluster | {"log_to_driver": False},
        remote_configs={"num_cpus": 1},
        **options | {"total_frames": sys.maxsize},  # -1 would end it before the first batch
    )


# --- A worker that dies ----------------------------------------------------------------------


class WorkerDied(BaseException):
    """Says which worker died. TorchRL's weight update would log an `Exception`, and wait on."""


def raising_when_workers_die(engine: str, collector: BaseCollector) -> AbstractContextManager[None]:
    """A context in which the death of a worker raises `WorkerDied`, whatever is being done."""
    if engine == "ray":
        return watching_ray()
    return watching(collector.procs) if engine in WITH_WORKERS else nullcontext()


@contextmanager
def watching(processes: Sequence[BaseProcess]) -> Iterator[None]:
    """Raise in the main thread as soon as one of its child processes has died.

    TorchRL looks for dead workers while it waits for a batch, but `update_policy_weights_` waits
    for the answer of each one without end. A signal gets out of any wait.
    """
    sentinels = [process.sentinel for process in processes]

    def check(*signal_and_frame: object) -> None:
        for ended in wait(sentinels, timeout=0):
            worker = sentinels.index(ended)
            raise WorkerDied(f"worker {worker} died (exit code {processes[worker].exitcode})")

    before = signal.signal(signal.SIGCHLD, check)
    try:
        check()
        yield
    finally:
        signal.signal(signal.SIGCHLD, before)


@contextmanager
def watching_ray() -> Iterator[None]:
    """Ray raises by itself."""
    from ray.exceptions import RayActorError

    try:
        yield
    except RayActorError as error:
        reason = str(error).splitlines()[0]
        raise WorkerDied(f"a Ray worker died ({reason})") from None
