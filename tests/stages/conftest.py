"""Drive stages through a store, as a flow would."""

import torch

from tests.stages.fixtures import finish, run_here, store, write_request

__all__ = ["finish", "run_here", "store", "write_request"]

torch.set_num_threads(1)  # the models are too small for more, and the machine may be busy
