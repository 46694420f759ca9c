from fedavg import run
from pfl.metrics import Metrics
from pfl.postprocessor.base import Postprocessor


def largest(change):
    least = change.abs().flatten().kthvalue(max(1, round(0.9 * change.numel()))).values
    return change * (change.abs() >= least)


class TopK(Postprocessor):
    def postprocess_one_user(self, *, stats, user_context):
        return stats.apply_elementwise(largest), Metrics()


print("accuracy", run(postprocessors=[TopK()]))
