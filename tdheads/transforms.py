"""Environment transforms that put into the data what heads and losses read."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Composite
from torchrl.envs.transforms import Transform

from tdheads.keys import MASK, NestedKey, as_key, suffixed


class ActionSpecMask(Transform):
    """Copies the masks that an environment keeps in its action spec into the data.

    Some environments (OpenSpiel) say what is legal in ``full_action_spec[K].mask`` alone, which
    changes with every step. A loss has to know the mask that an action was drawn with: here it is
    written as ``K_mask`` beside the observation, where :func:`~tdheads.make_head` finds it.

    Shapes: ``K_mask`` ``[*B, n]`` bool, the shape of the spec's mask.

    Raises:
        ValueError: for an environment whose action spec has no mask.

    Source: TorchRL's ``ActionMask``, which goes the other way.

    Example:
        >>> from torchrl.data import Binary, Categorical, Composite
        >>> from torchrl.envs import EnvBase, TransformedEnv
        >>> class Door(EnvBase):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.action_spec = Categorical(2, mask=torch.tensor([True, False]))
        ...         self.observation_spec = Composite(open=Binary(1))
        ...
        ...     def _reset(self, td):
        ...         return self.observation_spec.zero()
        ...
        ...     def _step(self, td):
        ...         return self.full_observation_spec.zero()
        ...
        ...     def _set_seed(self, seed):
        ...         pass
        >>> TransformedEnv(Door(), ActionSpecMask()).reset()["action_mask"]
        tensor([ True, False])
    """

    def masks(self) -> dict[NestedKey, Tensor]:
        """Return the key and the mask of every leaf whose spec has one, as they are now."""
        spec = self.parent.base_env.full_action_spec
        found = {}
        for key in spec.keys(include_nested=True, leaves_only=True):
            mask = getattr(spec[key], "mask", None)
            if mask is not None:
                found[suffixed(as_key(key), MASK)] = mask.clone()
        if not found:
            leaves = list(spec.keys(include_nested=True, leaves_only=True))
            raise ValueError(
                f"ActionSpecMask: expected an action spec with a mask, got none in {leaves}; leave"
                " the transform out"
            )
        return found

    def _write(self, td: TensorDictBase) -> TensorDictBase:
        return td.update(self.masks())

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._write(next_tensordict)

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return self._write(tensordict_reset)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Add the masks to the observations."""
        for key, mask in self.masks().items():
            observation_spec[key] = Binary(mask.shape[-1], mask.shape, dtype=torch.bool)
        return observation_spec
