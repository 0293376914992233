"""Reinforcement learning with a replay buffer: a Q-network learns to cross a grid.

Supported: a buffer of transitions is data like any other. The driver plays with the current network, adds the
transitions to the buffer, and trains on the buffer, on any cluster and with any strategy. Then it plays again. The
frozen target network is a model without an optimizer. It is sent with the other model, and the step uses it.

Not supported: workers do not play, and the buffer does not grow during a run, because the seed determines the samples
of each batch before the run. So there is one run per round, with a fresh optimizer. The driver would have to implement
prioritized sampling, round by round.

    python examples/replay_buffer.py
"""

import copy
import random
from functools import partial

import torch
from torch import Tensor, nn

import paceline as pl

SIDE = 5
MOVES = ((0, 1), (1, 0), (0, -1), (-1, 0))
GOAL = (SIDE - 1, SIDE - 1)
LONGEST = 40
DISCOUNT = 0.95

Place = tuple[int, int]
Transition = tuple[Place, int, float, Place, bool]


def move(place: Place, action: int) -> tuple[Place, float, bool]:
    """Return the new place, the reward, and whether the place is the goal."""
    x, y = (min(max(a + b, 0), SIDE - 1) for a, b in zip(place, MOVES[action], strict=True))
    done = (x, y) == GOAL
    return (x, y), 1.0 if done else -0.02, done


def encode(places: list[Place]) -> Tensor:
    return nn.functional.one_hot(torch.tensor([x * SIDE + y for x, y in places]), SIDE**2).float()


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(SIDE**2, 64), nn.ReLU(), nn.Linear(64, len(MOVES)))


def play(q: nn.Module, chance: random.Random, explore: float) -> list[Transition]:
    """Play one episode. Return its transitions."""
    place, seen = (0, 0), []
    for _ in range(LONGEST):
        with torch.no_grad():
            best = int(q(encode([place])).argmax())
        action = chance.randrange(len(MOVES)) if chance.random() < explore else best
        after, reward, done = move(place, action)
        seen.append((place, action, reward, after, done))
        place = after
        if done:
            break
    return seen


def step(model: nn.ModuleDict, batch: list[Tensor]) -> dict[str, Tensor]:
    """Return the loss of Q-learning. The target network gives the value of the next place."""
    places, actions, rewards, afters, done = batch
    values = model["q"](places).gather(1, actions[:, None]).squeeze(1)
    with torch.no_grad():
        worth = rewards + DISCOUNT * model["target"](afters).amax(dim=1) * (1 - done)
    return {"loss": nn.functional.smooth_l1_loss(values, worth), "value": values.mean()}


def buffer_as_data(buffer: list[Transition]) -> tuple[Tensor, ...]:
    places, actions, rewards, afters, done = zip(*buffer, strict=True)
    numbers = (torch.tensor(actions), torch.tensor(rewards))
    return encode(list(places)), *numbers, encode(list(afters)), torch.tensor(done).float()


CLUSTER = pl.Local(workers=2)


def train(q: nn.Module, buffer: list[Transition], seed: int, cluster: object = CLUSTER) -> pl.Run:
    task = pl.Task(
        model={"q": q, "target": copy.deepcopy(q).requires_grad_(False)},
        data=buffer_as_data(buffer),
        step=step,
        optimizer={"q": partial(torch.optim.Adam, lr=2e-3)},
        batch_size=64,
    )
    return pl.train(task, "all-reduce", cluster, steps=120, seed=seed)


def main(rounds: int = 8) -> int:
    """Play and train in turn. Return the moves that the last network needs from corner to corner."""
    torch.manual_seed(0)
    chance, q, buffer = random.Random(0), network(), []
    for number in range(rounds):
        for _ in range(10):
            buffer += play(q, chance, explore=max(0.1, 0.8 - 0.15 * number))
        del buffer[:-3000]
        run = train(q, buffer, seed=number)
        q = run.model["q"]
        moves = len(play(q, chance, explore=0.0))
        print(f"round {number + 1}: {len(buffer)} transitions, value {run.last('value'):.3f}, {moves} moves")
    return moves


if __name__ == "__main__":
    main()
