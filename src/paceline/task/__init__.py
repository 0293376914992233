"""The definition of a training task: model, data, loss, optimizer and metric. Validated when the task is created."""
