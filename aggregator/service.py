"""The shell around the round machine: one thread, fed by the link's inbox and a clock.

`run` is the loop; `start`, `handle` and `tick` are its parts, for whoever has a loop of their own.
"""

from __future__ import annotations

import logging
import queue
import secrets
import threading
from collections import deque
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import msgspec

from broker import link, topics
from broker import messages as wire
from broker.transfer import answer
from models import bundle as bundles
from models import tensors
from models.bundle import Bundle
from models.errors import one_line
from strategies.zeroth_order import ZerothOrder

from . import check, machine, merging, moves
from .contributions import Stored, record_of
from .errors import AggregatorError, RunFolderError, UpdateRefused
from .evaluation import Evaluator, summarise
from .intake import Intake
from .observer import (
    Contributed,
    DeviceSeen,
    Finished,
    Happening,
    PlanMade,
    Refused,
    RoundExtended,
    RoundOpened,
    Started,
)
from .ports import Ports
from .store import Identity, Store
from .task import Task
from .traffic import Traffic
