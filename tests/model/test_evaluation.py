import pytest
import torch
from gans import NOISE, REAL, a_gan
from refusals import has, refused
from tasks import a_task, numbers, perceptron
from torch import nn

from paceline.data.samples import Samples
from paceline.model.evaluation import evaluate, is_in_parts, parts_of, put_together

INPUTS, TARGETS = numbers(50, 4), torch.arange(50) % 2
TEST = (INPUTS, TARGETS)


class Sizes:
    def __init__(self):
        self.sizes = []

    def update(self, outputs, targets):
        assert not outputs.requires_grad
        self.sizes.append(len(outputs))

    def compute(self):
        return max(self.sizes)


def measure(model, **changes):
    task = a_task(**({"test": TEST, "model": model} | changes))
    return evaluate(task, model, Samples(TEST))


@pytest.mark.parametrize(("size", "largest"), [(1024, 50), (20, 17), (1, 1)])
def test_samples_pass_the_model_in_batches_of_the_size_that_the_task_says(size, largest):
    assert measure(perceptron(), metric=Sizes, test_batch_size=size) == {"metric": largest}


def test_several_metrics_are_found_in_one_pass():
    passes = []

    class Counted(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = perceptron()

        def forward(self, x):
            passes.append(len(x))
            return self.body(x)

    metrics = {"accuracy": "accuracy", "mean": lambda outputs, targets: outputs.mean(), "sizes": Sizes()}
    model = Counted()
    found = measure(model, metric=metrics, test_batch_size=25)
    assert passes == [25, 25]
    assert list(found) == ["accuracy", "mean", "sizes"]
    assert found["mean"] == pytest.approx(model.body(INPUTS).mean().item(), rel=1e-12)


class Dictionaries(nn.Module):
    def __init__(self, *names):
        super().__init__()
        self.body, self.names = perceptron(), names

    def forward(self, x):
        return {name: self.body(x) for name in self.names}


def test_a_metric_is_given_the_logits_where_outputs_have_them():
    model = Dictionaries("logits", "hidden")
    assert measure(model, metric="accuracy") == measure(model.body, metric="accuracy")


def test_outputs_without_logits_are_put_together_by_key():
    def metric(outputs, targets):
        assert set(outputs) == {"a", "b"}
        return float(len(outputs["a"]) == len(targets) == 50)

    assert measure(Dictionaries("a", "b"), metric=metric, test_batch_size=7) == {"metric": 1.0}


def test_predict_says_what_the_metric_is_given():
    found = measure(perceptron(), metric="accuracy", predict=lambda model, batch: torch.eye(2)[batch[1]])
    assert found == {"metric": 1.0}


def test_several_models_need_to_be_told_which_is_asked():
    test = (REAL, NOISE)
    task = a_gan(test=test, metric=lambda outputs, targets: 0.0)
    with refused("predict", None):
        evaluate(task, task.build_model(0), Samples(test))
    task = a_gan(test=test, metric=lambda fake, _: fake.mean(), predict=lambda m, batch: m["g"](batch[1]))
    model = task.build_model(0)
    assert evaluate(task, model, Samples(test))["metric"] == pytest.approx(model["g"](NOISE).mean().item())


def test_layers_are_as_they_were_even_if_a_metric_fails():
    def metric(outputs, targets):
        raise ValueError("no")

    model = perceptron()
    with refused("metric 'metric'", remedy=has("no")):
        measure(model, metric=metric)
    assert model.training


@pytest.mark.parametrize("value", [torch.zeros(3), None, [1.0]])
def test_a_metric_of_several_numbers_is_refused(value):
    with refused("metric '<lambda>'"):
        measure(perceptron(), metric={"each": lambda outputs, targets: value})


# In parts


def in_parts(model, hands, **changes):
    """Return the metrics, merged from the contributions of several ranks. Each evaluates its batches in any order."""
    task = a_task(**({"test": TEST, "model": model, "loss": nn.functional.cross_entropy} | changes))
    found = {}
    for numbers_ in hands:
        parts = parts_of(task, model, Samples(TEST), numbers_, torch.device("cpu"), lambda _number: None)
        found |= dict(zip(numbers_, parts, strict=True))
    return put_together(task, torch.stack([found[number] for number in sorted(found)]))


@pytest.mark.parametrize(
    "hands", [[range(8)], [range(1, 8, 2), range(0, 8, 2)], [[7, 0, 3], [1, 2, 4, 5, 6]]]
)
def test_parts_put_together_give_the_bits_of_the_whole_whoever_looked_at_them(hands):
    metrics = {"accuracy": "accuracy", "loss": "loss", "perplexity": "perplexity"}
    model, how = perceptron(), {"metric": metrics, "test_batch_size": 7, "loss": nn.functional.cross_entropy}
    assert in_parts(model, hands, **how) == measure(model, **how)


def test_only_metrics_with_names_can_be_put_together():
    assert is_in_parts(a_task(test=TEST, metric={"a": "mse", "b": "mae"}))
    assert not is_in_parts(a_task(test=TEST, metric={"a": "mse", "b": Sizes}))
    assert not is_in_parts(a_task(test=TEST, metric=lambda outputs, targets: 0.0))


def test_each_batch_begins_with_its_number():
    begun = []
    task = a_task(test=TEST, metric="accuracy", test_batch_size=20)
    model, samples = perceptron(), Samples(TEST)
    evaluate(task, model, samples, begin=begun.append)
    parts_of(task, model, samples, [2, 0], torch.device("cpu"), begun.append)
    assert begun == [0, 1, 2, 2, 0]
