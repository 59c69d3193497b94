"""Which experts of a model are on the device: near bays, homes in host memory, and the map."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kinfolk.errors import StateError
from kinfolk.experts.arena import HostArena
from kinfolk.experts.placement import bay_map, landing_bays
from kinfolk.experts.records import RecordLayout
from kinfolk.plans import Placement

NO_EXPERT = -1
"""In place of an expert: the bay is empty."""


@dataclass(frozen=True, slots=True)
class Landing:
    """The landing bays of a layer, in memory that all layers share: ``records`` uint8 [M, record]
    with room for all of its experts that have no near bay, and the map ``bay_of_expert`` int64 [E]
    of a step that uses them, as in :class:`kinfolk_kernels.land.op.LandArguments`."""

    records: torch.Tensor
    bay_of_expert: torch.Tensor


@dataclass(frozen=True, slots=True)
class LayerExperts:
    """The records of a layer's E experts: ``near`` uint8 [N, record] on the device, and their homes
    ``far`` uint8 [E, record] in host memory, ``None`` if all experts are near and stay there.

    ``bay_of_expert`` int64 [E], ``expert_of_bay`` int32 [N], ``score`` float32 [E], ``uses`` int64
    [E] and ``traffic`` int64 [3] are those of :class:`kinfolk_kernels.fetch.op.FetchArguments`. The
    first ``pinned`` bays keep their experts. ``placed``: the experts in the bays at the start.
    ``landing``: where the far experts of steps of several rows are copied to; ``None`` = there is
    no room.
    """

    layout: RecordLayout
    near: torch.Tensor
    far: torch.Tensor | None
    bay_of_expert: torch.Tensor
    expert_of_bay: torch.Tensor
    score: torch.Tensor
    uses: torch.Tensor
    traffic: torch.Tensor
    pinned: int
    placed: tuple[int, ...]
    landing: Landing | None = None

    @property
    def count(self) -> int:
        """E."""
        return int(self.bay_of_expert.shape[0])

    @property
    def bays(self) -> int:
        """N."""
        return int(self.near.shape[0])

    @property
    def homes(self) -> torch.Tensor:
        """Where bays are filled from, uint8 [E, record]."""
        return self.near if self.far is None else self.far

    def stack(self, name: str) -> PlacedStack:
        """The stack of this name of all experts."""
        far = None if self.far is None else self.layout.stack(name, self.far)
        landing = None if self.landing is None else self.layout.stack(name, self.landing.records)
        return PlacedStack(self.layout.stack(name, self.near), far, landing, self)

    def enter(self, placed: tuple[int, ...]) -> None:
        """Write the map: ``placed`` are in the bays, every other expert is far."""
        where = [self.bays + expert for expert in range(self.count)]
        for bay, expert in enumerate(placed):
            where[expert] = bay
        self.bay_of_expert.copy_(torch.tensor(where, dtype=torch.int64))
        self.expert_of_bay.copy_(torch.tensor(placed, dtype=torch.int32))

    def disagreement(self) -> str:
        """What is wrong with map and owners; empty if each is the inverse of the other."""
        bays, count = self.bays, self.count
        where, owners = self.bay_of_expert.tolist(), self.expert_of_bay.tolist()
        for bay, expert in enumerate(owners):
            if expert != NO_EXPERT and not (0 <= expert < count and where[expert] == bay):
                return f"bay {bay} belongs to expert {expert}, which is not there"
        for expert, bay in enumerate(where):
            if not (owners[bay] == expert if 0 <= bay < bays else bay == bays + expert):
                return f"expert {expert} is in bay {bay}, which is not its own"
        return ""

    def swap(self, expert: int, bay: int) -> None:
        """Bring an expert from its home into a near bay, on the current stream, without a wait.
        One that is near already stays where it is, and nothing changes."""
        if self.far is None:
            return
        owner = self.expert_of_bay[bay : bay + 1].long()
        comes = self.bay_of_expert[expert : expert + 1] >= self.bays
        leaves = comes & (owner >= 0)
        old = owner.clamp(min=0)
        home = torch.where(leaves, old + self.bays, self.bay_of_expert.index_select(0, old))
        self.bay_of_expert.index_copy_(0, old, home)
        here = self.bay_of_expert[expert : expert + 1]
        here.copy_(torch.where(comes, torch.full_like(here, bay), here))
        place = self.expert_of_bay[bay : bay + 1]
        place.copy_(torch.where(comes, torch.full_like(place, expert), place))
        record = self.far[expert].to(self.near.device, non_blocking=True)
        self.near[bay].copy_(torch.where(comes, record, self.near[bay]))


@dataclass(frozen=True, slots=True)
class PlacedStack:
    """A stack of E matrices, one of each expert of a layer, of which ``near`` [N, ...] are on the
    device and ``far`` [E, ...] at home, ``None`` if all are near. ``landing`` [M, ...]: those in
    landing bays, if there are any."""

    near: Any
    far: Any
    landing: Any
    experts: LayerExperts

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.experts.count, *self.near.shape[1:])


class ExpertCache:
    """The experts of a model in near and far bays.

    ``layouts`` maps each layer with experts to the layout and the number of its records.
    ``landing``: bytes of the device for landing bays; layers with more far experts have none.
    Homes are empty until the loader fills them. Raises :class:`CapacityError` where host memory
    cannot be had, and :class:`kinfolk.errors.HookValueError` for a wrong ``placement``.
    """

    def __init__(
        self,
        layouts: Mapping[int, tuple[RecordLayout, int]],
        placement: Placement,
        device: torch.device,
        landing: int = 0,
    ) -> None:
        places = {layer: placement.bays[layer] for layer in layouts}
        for layer, (_, count) in layouts.items():
            bay_map(places[layer], count, layer)
        away = sum(
            layout.nbytes * count
            for layer, (layout, count) in layouts.items()
            if len(places[layer]) < count
        )
        self.device = device
        self.arena = HostArena(away, device)
        experts = sum(count for _, count in layouts.values())
        with torch.inference_mode(False):
            # One tensor, so that one copy reports all counts.
            self._counts = torch.zeros(experts + 3 * len(layouts), dtype=torch.int64, device=device)
            bays = sum(map(len, places.values()))
            self._owners = torch.zeros(bays, dtype=torch.int32, device=device)
            most = max((count for _, count in layouts.values()), default=0)
            self._landing = torch.zeros(landing, dtype=torch.uint8, device=device)
            self._landed = torch.zeros(most, dtype=torch.int64, device=device)
            self.layers: dict[int, LayerExperts] = {}
            start, traffic, bay = 0, experts, 0
            for layer, (layout, count) in layouts.items():
                self.layers[layer] = self._layer(
                    layout,
                    count,
                    places[layer],
                    placement.pinned[layer] if placement.pinned else 0,
                    self._counts[start : start + count],
                    self._counts[traffic : traffic + 3],
                    self._owners[bay : bay + len(places[layer])],
                )
                start, traffic = start + count, traffic + 3
                bay += len(places[layer])

    def _layer(
        self,
        layout: RecordLayout,
        count: int,
        placed: tuple[int, ...],
        pinned: int,
        uses: torch.Tensor,
        traffic: torch.Tensor,
        owners: torch.Tensor,
    ) -> LayerExperts:
        bays, device = len(placed), self.device
        made = LayerExperts(
            layout,
            torch.zeros(bays, layout.nbytes, dtype=torch.uint8, device=device),
            self.arena.take(count, layout.nbytes) if bays < count else None,
            torch.zeros(count, dtype=torch.int64, device=device),
            owners,
            torch.zeros(count, dtype=torch.float32, device=device),
            uses,
            traffic,
            pinned,
            placed,
            self._landing_of(layout.nbytes, count, bays),
        )
        made.enter(placed)
        return made

    def _landing_of(self, record: int, count: int, bays: int) -> Landing | None:
        places = landing_bays(count, bays)
        if not 0 < places * record <= self._landing.nbytes:
            return None
        records = self._landing[: places * record].view(places, record)
        return Landing(records, self._landed[:count])

    @property
    def device_bytes(self) -> int:
        """Bytes of all near bays."""
        return sum(each.near.nbytes for each in self.layers.values())

    @property
    def landing_bytes(self) -> int:
        """Bytes of landing bays."""
        return self._landing.nbytes

    @property
    def host_bytes(self) -> int:
        """Bytes of all homes."""
        return self.arena.nbytes

    @property
    def counts(self) -> torch.Tensor:
        """All counters in one int64 tensor on the device: the uses of each layer, then the traffic
        of each."""
        return self._counts

    @property
    def owners(self) -> torch.Tensor:
        """The expert in each bay of all layers, -1 = empty, in one int32 tensor on the device."""
        return self._owners

    def check_integrity(self) -> None:
        """Raise :class:`StateError` if map and owners are not inverse, or a near record differs
        from its home. Reads all near bays; no step may run."""
        for layer, each in self.layers.items():
            if wrong := each.disagreement():
                raise StateError(f"experts of layer {layer}: {wrong}")
            if each.far is None:
                continue
            for bay, expert in enumerate(each.expert_of_bay.tolist()):
                home = each.far[expert] if expert != NO_EXPERT else None
                if home is not None and not torch.equal(each.near[bay].cpu(), home):
                    raise StateError(
                        f"experts of layer {layer}: bay {bay} differs from the home of expert "
                        f"{expert}"
                    )

    def restore(self) -> None:
        """After a failed step: nobody knows which records it had copied. Every bay gets the record
        of its owner again; a map that is not whole becomes that of the start."""
        for each in self.layers.values():
            if each.disagreement():
                each.enter(each.placed)
            if each.far is None:
                continue
            for bay, expert in enumerate(each.expert_of_bay.tolist()):
                if expert != NO_EXPERT:
                    each.near[bay].copy_(each.far[expert])

    def release(self) -> None:
        """Give host memory back; the model cannot run afterwards."""
        self.arena.release()
