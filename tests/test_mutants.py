"""The tests of the two machines find faults: see benchmarks/mutants.py, which tries all mutants."""

import pytest

from benchmarks import mutants


@pytest.mark.slow
@pytest.mark.skipif(mutants.MUTMUT is None, reason="mutmut is not installed: pip install -e '.[mutation]'")
def test_nine_of_ten_faults_in_either_machine_are_found(tmp_path):
    codes = mutants.tried(tmp_path, sample=100, seed=0)
    for machine in mutants.MACHINES:
        names, count = mutants.missed(codes, machine)
        assert (count, len(names) <= 10) == (100, True), names
