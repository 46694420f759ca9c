import matplotlib.pyplot as plt
from fedavg import run

values = run()
figure, axes = plt.subplots()
axes.plot(values)
axes.set(xlabel="round", ylabel="accuracy", ylim=(0, 1))
figure.savefig("accuracy.png")
print("accuracy", values)
