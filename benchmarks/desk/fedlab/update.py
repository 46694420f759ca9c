from fedavg import run
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from samples import CLIENTS, network


class TopK(SGDSerialClientTrainer):
    def train(self, model_parameters, train_loader):
        [trained] = super().train(model_parameters, train_loader)
        change = trained - model_parameters
        least = change.abs().kthvalue(round(0.9 * change.numel())).values
        return [model_parameters + change * (change.abs() >= least)]


print("accuracy", run(TopK(network(), CLIENTS)))
