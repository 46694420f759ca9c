from device_runtime.client.connection.other_tasks import TASKS, OtherTasks


def taken(elsewhere):
    return list(iter(elsewhere.take, ""))


def test_the_first_by_its_name_is_taken_and_is_elsewhere_no_longer():
    elsewhere = OtherTasks()
    for task in ("speech", "digits", "letters", "speech"):
        elsewhere.add(task)
    elsewhere.discard("letters")
    elsewhere.discard("never heard of")
    assert taken(elsewhere) == ["digits", "speech"]


def test_only_so_many_tasks_are_remembered_those_heard_of_last():
    elsewhere = OtherTasks()
    for number in range(1000):
        elsewhere.add(f"{number:03}")
        elsewhere.add("000")
    assert taken(elsewhere) == ["000", *(f"{number:03}" for number in range(1001 - TASKS, 1000))]
