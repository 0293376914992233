"""Inspection of a model that computes: evaluation, a copy of its state, and its assembly on the reporter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import Tensor

from paceline.data.samples import Samples
from paceline.model.autocast import computing
from paceline.model.cutting.cut import Cut
from paceline.model.engines.assembled import AssembledModel
from paceline.model.evaluation import evaluate, parts_of
from paceline.model.stages.stripping import buffers_of, flat_by_dtype
from paceline.system.seeding import drawing, rng_preserved

if TYPE_CHECKING:
    from paceline.model.engines.torch_engine import TorchEngine


class TorchInspection:
    """The whole model, on ranks that have it."""

    def __init__(self, engine: TorchEngine, cut: Cut | None, assembled: AssembledModel | None) -> None:
        """`assembled` is the whole model of a reporter that holds a part of it."""
        self._engine = engine
        self._cut = cut
        self._assembled = assembled

    def held_parameters(self) -> Tensor:
        return self._engine.store.all_parameters()

    def held_buffers(self) -> list[Tensor]:
        assert self._cut is not None, "hold comes first"
        held = self._engine.holding.held(self._cut)
        return flat_by_dtype(buffers_of(self._engine.module, self._cut, held))

    def put(
        self, held: Sequence[int], parameters: Tensor, buffers: Sequence[Tensor], position: int = 0
    ) -> None:
        if self._engine.holding.segments is None:
            return  # the whole model is gathered here, so there is nothing to assemble
        assert self._cut is not None, "hold comes first"
        assert self._assembled is not None, "only a reporter assembles the model"
        self._assembled.put(self._cut.at(position), held, parameters, buffers)

    @property
    def _whole(self) -> TorchEngine:
        whole = self._engine.whole
        assert whole is not None, "only a reporter has the whole model"
        return whole

    def evaluate(self, samples: Samples, parameters: Tensor | None = None) -> dict[str, float]:
        whole = self._whole
        with self._bound(parameters):
            return evaluate(whole.task, whole.called, samples, whole.device, whole.inputs.seed_test)

    def evaluate_parts(self, samples: Samples, numbers: Sequence[int]) -> Tensor:
        whole = self._whole
        with self._bound(None):
            seed = whole.inputs.seed_test
            return parts_of(whole.task, whole.called, samples, numbers, whole.device, seed)

    @contextmanager
    def _bound(self, parameters: Tensor | None) -> Iterator[None]:
        """Bind the parameters. Random numbers drawn in this context do not affect later ones."""
        whole = self._whole
        with whole.store.bound(parameters), computing(whole.settings.autocast), drawing(), rng_preserved():
            yield

    def state(self, parameters: Tensor | None = None) -> dict[str, Tensor]:
        whole = self._whole
        whole.store.check_updated(parameters)
        with whole.store.bound(parameters):
            state = whole.module.state_dict()
            return {name: tensor.detach().to("cpu", copy=True) for name, tensor in state.items()}
