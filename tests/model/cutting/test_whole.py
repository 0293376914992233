import torch
from refusals import refused
from torch import nn

from paceline.model.cutting.whole import count_model, without_data
from paceline.task.task import Task


class Own(nn.Module):
    """No Sequential: it is counted as one."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 3), nn.Linear(3, 1)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def count(model, **changes):
    data = torch.zeros(5, 2), torch.zeros(5, 1)
    words = {"loss": nn.MSELoss(), "optimizer": lambda p: torch.optim.SGD(p, lr=1), "batch_size": 5}
    return count_model(Task(model=model, data=data, **words | changes), model, list(data))


def test_a_model_counts_the_same_cut_or_whole():
    whole = count(Own())
    assert whole.flops == 2 * 2 * 3 + 2 * 3
    assert whole.moved_bytes == 2 * 3 * 4
    row = count(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))
    assert row[1:] == whole[1:]


def test_counting_leaves_a_model_as_it_is():
    model = Own().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    count(model)
    assert not model.training
    torch.testing.assert_close(model.state_dict(), before)


def test_a_model_that_must_see_data_is_refused_with_a_remedy():
    class Looks(Own):
        def forward(self, x):
            return super().forward(x) * x.sum().item()

    with refused("device") as e:
        count(Looks())
    assert "pl.times" in str(e.value)


def test_a_step_of_ones_own_is_refused():
    with refused("device"):
        count(Own(), loss=None, step=lambda model, batch: model(batch[0]).mean())


def test_without_data_means_shapes_alone():
    blank = without_data([torch.ones(2, 3), {"a": torch.ones(1)}, "word"])
    assert (blank[0].is_meta, blank[1]["a"].is_meta, blank[2]) == (True, True, "word")
