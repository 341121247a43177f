"""A few faults of every kind, as `make faults` tries them: in a process that has imported torch and computed nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_few_faults_of_every_kind_are_survived() -> None:
    program = Path(__file__).with_name("faults.py")
    done = subprocess.run([sys.executable, program, "--short", "--jobs", "1"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
