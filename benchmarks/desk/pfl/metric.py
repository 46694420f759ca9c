import torch
from fedavg import run
from pfl.callback.base import TrainingProcessCallback
from pfl.metrics import Metrics
from samples import CLASSES, test


class F1(TrainingProcessCallback):
    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        x, y = map(torch.from_numpy, test())
        with torch.no_grad():
            answers = model.pytorch_model.module(x).argmax(1)
        scores = []
        for label in range(CLASSES):
            both = ((answers == label) & (y == label)).sum()
            scores.append(2 * both / ((answers == label).sum() + (y == label).sum()).clamp(min=1))
        score = float(sum(scores) / CLASSES)
        print("f1", score)
        return False, Metrics([("f1", score)])


run(callbacks=[F1()])
