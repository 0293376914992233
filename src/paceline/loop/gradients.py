"""The gradients of a user's loop: their weights within a step, and a check that only backward has changed them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from paceline.errors import ConfigurationError


class LoopGradients:
    """The gradients that backward leaves in the parameters."""

    def __init__(self, module: nn.Module, workers: int) -> None:
        self._named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self._are_trained = [(name, p, p.requires_grad) for name, p in module.named_parameters()]
        self._workers = workers
        self._seen: dict[int, tuple[int, int]] = {}
        """For each parameter: identity and version of its gradient after the last backward."""
        self._sizes: list[tuple[int, int]] = []
        """Samples of this worker and of all workers, for each micro-batch of this step."""
        self._share = 1.0
        self._scale = 1.0
        self._is_scaled = False
        if workers > 1:
            for number, (_, parameter) in enumerate(self._named):
                parameter.register_post_accumulate_grad_hook(self._hook(number))  # type: ignore[no-untyped-call]

    def _hook(self, number: int) -> Callable[[Tensor], None]:
        def note(parameter: Tensor) -> None:
            assert parameter.grad is not None
            self._seen[number] = (id(parameter.grad), parameter.grad._version)

        return note

    # The samples of a step

    def begin_micro_batch(self, count: int, total: int) -> None:
        """Note that the next backward is of `count` samples of a batch of `total` samples."""
        self._sizes.append((count, total))
        share = count / total
        if len(self._sizes) == 1:
            # If the first micro-batch has an empty slice, use the share of another micro-batch as the reference.
            self._share = share or 1 / self._workers
        self._scale = share / self._share
        if self._scale != 1.0 and not self._is_scaled:
            self._is_scaled = True
            for _, parameter in self._named:
                parameter.register_hook(self._scaled)  # type: ignore[no-untyped-call]

    def _scaled(self, gradient: Tensor) -> Tensor | None:
        """Weight a micro-batch that has another share of its batch than the first one of the step."""
        return None if self._scale == 1.0 else gradient * self._scale

    def end_step(self) -> tuple[int, int]:
        """Return the samples of this worker and of all workers in this step. The next micro-batch begins a step."""
        sizes, self._sizes, self._scale = self._sizes, [], 1.0
        if not sizes:
            return 1, self._workers
        count, total = sizes[0]
        if len(sizes) == 1 or count:
            return count, total
        return (1, self._workers) if any(count for count, _ in sizes) else (0, total)

    # Clipping

    def check_unchanged(self) -> None:
        """Refuse gradients that were changed after backward: such a change should apply to the reduced gradient.

        Refuse parameters that were frozen or thawed, too: the ranks that apply updates would not know.
        """
        if others := [name for name, p, is_trained in self._are_trained if p.requires_grad != is_trained]:
            bound = "must stay as at pl.prepare"
            remedy = (
                "give these parameters a group of their own, with a learning rate of 0 while they are frozen"
            )
            raise ConfigurationError("requires_grad", bound, f"changed: {_names(others)}", remedy)
        changed = [
            name
            for number, (name, parameter) in enumerate(self._named)
            if parameter.grad is not None and self._is_changed(number, parameter.grad)
        ]
        if changed and self._workers > 1:
            bound = "must be unchanged since backward, because each worker has the gradient of its own samples only"
            remedy = (
                "to clip, call optimizer.clip_grad_norm_(max_norm) instead of torch.nn.utils.clip_grad_norm_"
            )
            raise ConfigurationError("gradients", bound, f"changed: {_names(changed)}", remedy)

    def _is_changed(self, number: int, gradient: Tensor) -> bool:
        if self._seen.get(number) == (id(gradient), gradient._version):
            return False
        return bool(gradient.any())  # zero_grad(set_to_none=False) changes unused gradients, too


def _names(names: Sequence[str]) -> str:
    return names[0] + (f" and {len(names) - 1} others" if len(names) > 1 else "")
