import torch
from tasks import numbers, perceptron
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from paceline.clusters.rank.averaging import MovingAverage


def test_it_is_the_average_that_torch_has():
    model, ours = perceptron(), MovingAverage(0.9)
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    assert ours.values is None
    for step in range(4):
        torch.nn.utils.vector_to_parameters(numbers(37, seed=step), model.parameters())
        ours.update(torch.nn.utils.parameters_to_vector(model.parameters()))
        theirs.update_parameters(model)
    expected = torch.nn.utils.parameters_to_vector(theirs.module.parameters())
    torch.testing.assert_close(ours.values, expected.detach(), rtol=0, atol=1e-15)
