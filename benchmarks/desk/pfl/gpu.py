from fedavg import run

print("accuracy", run())  # pfl takes a GPU where torch sees one
