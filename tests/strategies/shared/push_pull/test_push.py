import torch

from paceline.context import Batch
from paceline.strategies.shared.push_pull.push import Push, in_order


def a_push(worker, step):
    batch = Batch(step, 0, 1, 1, lambda step: None)
    return Push(worker, step, 0, 0.5, torch.zeros(1), batch)


def test_pushes_are_put_in_the_order_of_workers_and_steps():
    pushes = [a_push(2, 0), a_push(1, 7), a_push(1, 3)]
    assert [push.key for push in in_order(pushes)] == [(1, 3), (1, 7), (2, 0)]
    assert [push.key for push in pushes] == [(2, 0), (1, 7), (1, 3)], "who came first is still known"


def test_one_push_is_in_order():
    push = a_push(4, 2)
    assert list(in_order([push])) == [push]
