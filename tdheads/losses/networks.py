"""The networks of a loss, and the parameters that they run with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import NoneType
from typing import Any

from tensordict import TensorDict, TensorDictParams
from tensordict.nn import (
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictModuleBase,
)
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torchrl.modules import set_recurrent_mode

from tdheads.arguments import check_flag
from tdheads.compat import declare, swapped_in
from tdheads.keys import NestedKey
from tdheads.losses.accepted_keys import KeyedLossModule
from tdheads.losses.divergence import stored_keys


class NetworkLossModule(KeyedLossModule):
    """A loss with an actor and possibly a critic."""

    #: whether ``_surrogate`` needs the KL from the old policy
    needs_kl = False

    delay_actor: bool
    separate_losses: bool
    actor_network: ProbabilisticTensorDictSequential
    critic_network: TensorDictModule
    actor_network_params: TensorDictParams
    critic_network_params: TensorDictParams
    target_actor_network_params: TensorDictParams
    target_critic_network_params: TensorDictParams

    def __init_subclass__(cls, **options: Any) -> None:
        """Declare the networks in the class itself."""
        super().__init_subclass__(**options)
        declare(cls)

    def _add_networks(
        self, actor: Any, critic: Any, *, delay_actor: bool, separate_losses: bool
    ) -> None:
        for name, network in (("actor_network", actor), ("critic_network", critic)):
            _refuse_ddp(name, network)
        if not hasattr(actor, "get_dist") or not isinstance(actor, nn.Module):
            raise TypeError(
                f"actor_network: expected a module with get_dist, got {type(actor).__name__}; build"
                " one with make_actor"
            )
        if not isinstance(critic, (TensorDictModuleBase, NoneType)):
            raise TypeError(
                f"critic_network: expected a TensorDictModule, got a {type(critic).__name__}; wrap"
                " it: TensorDictModule(net, in_keys=['observation'], out_keys=['state_value'])"
            )
        check_flag("delay_actor", delay_actor)
        check_flag("separate_losses", separate_losses)
        if delay_actor and not self.functional:
            raise ValueError(
                "delay_actor=True needs functional=True, which holds the target params"
            )
        if not self.functional:
            self.actor_network, self.critic_network = actor, critic
            return
        self.convert_to_functional(actor, "actor_network", create_target_params=delay_actor)
        if critic is None:
            self.critic_network = None
            return
        shared = list(actor.parameters()) if separate_losses else None
        self.convert_to_functional(critic, "critic_network", compare_against=shared)

    @property
    def functional(self) -> bool:
        """Whether the loss holds the parameters and runs the networks with them swapped in."""
        return self._functional

    def _old_params(self) -> list[NestedKey]:
        """Return where the parameters at collection are stored, if the loss needs them."""
        stored = self.needs_kl and not self.delay_actor
        return stored_keys(self.actor_network) if stored else []

    def using(self, name: str, params: Any = None) -> AbstractContextManager[Any]:
        """Run the network ``name`` with the loss's (or the given) parameters.

        It runs over time in a forward, as TorchRL sees to; elsewhere ask for ``over_time``.
        """
        network = getattr(self, name)
        swapped = self._swapped_in(name, network, params)
        return contextlib.nullcontext(network) if swapped is None else _using(network, swapped)

    @contextlib.contextmanager
    def over_time(self, name: str) -> Iterator[Any]:
        """Run the network ``name`` with the loss's parameters, over time if it has a memory."""
        with set_recurrent_mode(True), self.using(name) as network:
            yield network

    def _swapped_in(
        self, name: str, network: Any, params: Any
    ) -> AbstractContextManager[Any] | None:
        if not self.functional:
            if name != "critic_network" or not self.separate_losses:
                return None
            # with functional=True the loss holds the shared parameters as detached ones
            params = self._without_shared(network)
        params = getattr(self, name + "_params") if params is None else params
        return None if _holds(network, params) else swapped_in(params, network)

    def _without_shared(self, critic: nn.Module) -> TensorDict:
        shared = {id(param) for param in self.actor_network.parameters()}
        params = TensorDict.from_module(critic)
        return params.apply(lambda param: param.detach() if id(param) in shared else param)


@contextlib.contextmanager
def _using(network: Any, swapped: AbstractContextManager[Any]) -> Iterator[Any]:
    with swapped:
        yield network


def _holds(module: Any, params: Any) -> bool:
    """Whether a module computes with these very tensors: then there is nothing to swap."""
    entries = getattr(params, "_param_td", params)
    # read as they are: a call of items() for each module takes a share of every forward
    for name, value in getattr(entries, "_tensordict", entries).items():
        if isinstance(value, Tensor):
            if module._parameters.get(name, module._buffers.get(name)) is not value:
                return False
        elif name not in module._modules or not _holds(module._modules[name], value):
            return False
    return True


def _refuse_ddp(name: str, network: Any) -> None:
    """Refuse a network that synchronises gradients itself: a loss does not call its ``forward``."""
    if isinstance(network, nn.Module) and any(
        isinstance(module, DistributedDataParallel) for module in network.modules()
    ):
        raise TypeError(
            f"{name}: expected a plain network, got one in DistributedDataParallel, whose gradients"
            " would not be reduced; build the loss with functional=False and wrap the loss:"
            " DistributedDataParallel(loss)"
        )
