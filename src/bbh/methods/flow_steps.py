"""Small normalising flows over the multiplicative noise of MNF."""

import math
from abc import ABC, abstractmethod
from enum import StrEnum

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

# The point at which softplus is one.
_SOFTPLUS_ONE = math.log(math.e - 1)


class FlowKind(StrEnum):
    """Which flow to use; in a single dimension it is always planar."""

    REAL_NVP = "real_nvp"
    PLANAR = "planar"


class FlowStep(nn.Module, ABC):
    """An invertible map with its log-determinant."""

    @abstractmethod
    def forward(self, z: Float[Tensor, "S Z"], kept: Bool[Tensor, "S Z"]) -> tuple[Tensor, Tensor]:
        """The mapped points [S, Z] and log|det ∂f/∂z| [S].

        Args:
            z: Points.
            kept: A random mask of the entries that stay as they are, for maps that use a mask.
        """


class MaskedRealNVP(FlowStep):
    """z ← b∘z + (1−b)∘(g∘z + (1−g)∘m), where gates g and shifts m are functions of b∘z.

    Dinh, Sohl-Dickstein & Bengio (2017) with the gated update of Louizos & Welling (2017). Every
    draw has a new random mask b. Given its mask, the map is invertible and the density of its
    output is known, so the bound that uses this density holds.
    """

    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.hidden = nn.Linear(dim, hidden)
        self.shift = nn.Linear(hidden, dim)
        self.gate = nn.Linear(hidden, dim)
        for layer in (self.hidden, self.shift, self.gate):
            nn.init.normal_(layer.weight, std=0.05)
        # Shifts start at 1, which makes z = 1 a fixed point: z = 1 leaves the weights unchanged.
        nn.init.ones_(self.shift.bias)
        # sigmoid(2) ≈ 0.88: close to the identity, as in the reference code.
        nn.init.constant_(self.gate.bias, 2.0)

    def forward(self, z: Float[Tensor, "S Z"], kept: Bool[Tensor, "S Z"]) -> tuple[Tensor, Tensor]:
        """Moves the entries that are not kept."""
        hidden = torch.tanh(self.hidden(z.masked_fill(~kept, 0)))
        # In the type of z: mixed precision makes both of half precision.
        logits, shift = self.gate(hidden).to(z.dtype), self.shift(hidden).to(z.dtype)
        moved = torch.lerp(shift, z, torch.sigmoid(logits))
        log_det = F.logsigmoid(logits).masked_fill(kept, 0).sum(1)
        return torch.where(kept, z, moved), log_det


class Planar(FlowStep):
    """z ← z + û tanh(wᵀz + b), Rezende & Mohamed (2015), kept invertible by wᵀû > −1."""

    def __init__(self, dim: int):
        super().__init__()
        self.direction = nn.Parameter(0.05 * torch.randn(dim))
        self.normal = nn.Parameter(0.05 * torch.randn(dim))
        self.offset = nn.Parameter(torch.zeros(()))

    def forward(self, z: Float[Tensor, "S Z"], kept: Bool[Tensor, "S Z"]) -> tuple[Tensor, Tensor]:
        """Moves every entry; this map does not use the mask."""
        del kept
        inner = self.normal @ self.direction
        # The paper has wᵀû = softplus(wᵀu) − 1. Here softplus is shifted so that u = 0 gives the
        # identity: without the shift a freshly initialised step in one dimension shrinks z, and
        # with it the weights, by a third.
        allowed = F.softplus(inner + _SOFTPLUS_ONE) - 1
        norm = self.normal.square().sum().clamp(min=1e-12)
        direction = self.direction + (allowed - inner) / norm * self.normal
        activation = torch.tanh(z @ self.normal + self.offset)
        slope = (1 - activation.square()) * (self.normal @ direction)
        return z + activation.unsqueeze(1) * direction, torch.log1p(slope)


class FlowChain(nn.Module):
    """Several flow steps, applied one after the other."""

    def __init__(self, kind: FlowKind, dim: int, steps: int, hidden: int):
        super().__init__()
        self.is_masked = FlowKind(kind) is FlowKind.REAL_NVP and dim > 1
        self.steps = nn.ModuleList(
            MaskedRealNVP(dim, hidden) if self.is_masked else Planar(dim) for _ in range(steps)
        )

    def forward(
        self, z: Float[Tensor, "S Z"], masks: Bool[Tensor, "S steps Z"]
    ) -> tuple[Tensor, Tensor]:
        """Applies all steps and adds up their log-determinants."""
        log_det = z.new_zeros(len(z))
        for step, kept in zip(self.steps, masks.unbind(1), strict=True):
            z, more = step(z, kept)
            log_det = log_det + more
        return z, log_det


def draw_masks(chains: list[FlowChain], z: Float[Tensor, "G S Z"]) -> Bool[Tensor, "G S steps Z"]:
    """A random mask for every point and step; all False where the steps need none."""
    number = len(chains[0].steps)
    if not chains[0].is_masked or not number:
        return z.new_zeros((*z.shape[:2], number, z.shape[2]), dtype=torch.bool)
    return torch.stack([torch.randint_like(z, 0, 2).bool() for _ in range(number)], dim=2)


def flows_together(
    chains: list[FlowChain], z: Float[Tensor, "G S Z"], masks: Bool[Tensor, "G S steps Z"]
) -> tuple[Float[Tensor, "G S Z"], Float[Tensor, "G S"]]:
    """Applies each of several chains of equal structure to its own points, in one ``vmap``.

    A deep network has dozens of chains, and running them one by one would be slow.
    """
    if len(chains) == 1:
        mapped, log_det = chains[0](z[0], masks[0])
        return mapped.unsqueeze(0), log_det.unsqueeze(0)
    tables = [dict(chain.named_parameters()) for chain in chains]
    stacked = {name: torch.stack([table[name] for table in tables]) for name in tables[0]}

    def one(values: dict[str, Tensor], points: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        return functional_call(chains[0], values, (points, kept))

    return vmap(one)(stacked, z, masks)
