"""Why a PPO set-up is wrong: a look at its first batch."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from tensordict import TensorDictBase

from tdheads.checks import show
from tdheads.groups import GroupLosses
from tdheads.keys import NestedKey
from tdheads.losses import PolicyLoss
from tdheads.signals import with_signals
from tdheads.symptoms import CHECKS, ERROR, Batch


class Finding(NamedTuple):
    """One thing that is wrong, or worth knowing."""

    check: str
    level: str
    key: NestedKey | None
    found: str
    todo: str

    def __str__(self) -> str:
        """Return it as one line."""
        where = "" if self.key is None else f"{show(self.key)}: "
        return f"{self.level:7s}  {self.check:9s}  {where}{self.found}; {self.todo}"


class Report(Mapping[str, tuple[Finding, ...]]):
    """What :func:`diagnose` found: check -> findings, none if all is well; prints as a table."""

    def __init__(self, checks: list[str], findings: list[Finding], skipped: list[str]) -> None:
        self._by_check = {check: tuple(f for f in findings if f.check == check) for check in checks}
        self.skipped = tuple(skipped)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, in the order of the checks."""
        return tuple(f for found in self._by_check.values() for f in found)

    @property
    def ok(self) -> bool:
        """Whether every check ran and none found an error."""
        return not self.skipped and all(f.level != ERROR for f in self.findings)

    def __getitem__(self, check: str) -> tuple[Finding, ...]:
        """Return the findings of one check."""
        return self._by_check[check]

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the checks."""
        yield from self._by_check

    def __len__(self) -> int:
        """Return the number of checks."""
        return len(self._by_check)

    def __str__(self) -> str:
        """Return one line per check that found nothing, and one per finding."""
        lines = []
        for check, found in self._by_check.items():
            if check in self.skipped:
                lines.append(f"skipped  {check:9s}  the errors above come first")
            elif not found:
                lines.append(f"ok       {check}")
            lines += map(str, found)
        return "\n".join(lines)

    __repr__ = __str__


def diagnose(loss: PolicyLoss, td: TensorDictBase) -> Report:
    r"""Check a first batch, collected with the weights that the loss has now.

    Looked at, in this order: are all ``keys`` there; is anything ``nan``; is there a ``mask`` that
    the head was built without; can the ``policy`` be built; is every stored action ``legal`` under
    the stored mask; is the ``ratio`` of every leaf, :math:`w = p_{new}(a) / p_{old}(a)`, exactly 1,
    as it is before the first update; which rows are ``empty``; is the scale of the ``advantage``
    sound; does every leaf get a ``gradient``; does the ``forward`` run.

    Args:
        loss: any loss of tdheads, that of one group included; it is not changed, nor is torch's
            random state.
        td: a batch as the loss takes it, shape ``[*B]``.

    Returns:
        A mapping check -> findings, with ``ok``, that prints as a table. It says which key, which
        rows, and what to do.

    Raises:
        TypeError: for what is no loss of tdheads, or no tensordict.

    Source: the reports of users who trained with a mask that was missing or stale in the update,
    such as https://github.com/Stable-Baselines-Team/stable-baselines3-contrib/issues/49.

    Example:
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from tdheads import CategoricalHead, ClipPPOLoss, make_actor
        >>> body = TensorDictModule(torch.nn.Linear(4, 64), ["observation"], ["hidden"])
        >>> actor = make_actor(body, CategoricalHead("action", n=3, mask=True))
        >>> td = TensorDict({"observation": torch.randn(5, 4)}, [5])
        >>> td["action_mask"] = torch.tensor([[True, False, True]]).expand(5, 3)
        >>> td = actor(td).detach()
        >>> td["advantage"] = torch.randn(5, 1)
        >>> td["action_mask"] = ~td["action_mask"]  # the mask of the next step, say
        >>> report = diagnose(ClipPPOLoss(actor), td)
        >>> report.ok, report["legal"][0].key
        (False, 'action')
    """
    if not isinstance(loss, PolicyLoss):
        todo = "; look at each group, losses[group]" if isinstance(loss, GroupLosses) else ""
        raise TypeError(f"loss: expected a loss of tdheads, got a {type(loss).__name__}{todo}")
    if not isinstance(td, TensorDictBase):
        raise TypeError(f"td: expected a tensordict, got a {type(td).__name__}")
    td = with_signals(td, loss, lenient=True)
    devices = [d for d in {p.device for p in loss.parameters()} if d.type == "cuda"]
    with torch.random.fork_rng(devices=devices):
        batch = Batch(copy.deepcopy(loss), td)
        findings: list[Finding] = []
        skipped: list[str] = []
        for name, (check, needs) in CHECKS.items():
            failed = {f.check for f in findings if f.level == ERROR} | set(skipped)
            if failed & set(needs):
                skipped.append(name)
                continue
            findings += [Finding(name, *finding) for finding in check(batch)]
    return Report(list(CHECKS), findings, skipped)
