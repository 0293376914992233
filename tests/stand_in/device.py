"""Makes the stand-in known to torch, as an accelerator of two units."""

import os
import types
import warnings

import torch

NAME = "standin"
LIBRARY = "PACELINE_STAND_IN"
"""The environment variable that says where the library is: workers have it, too."""


def autoload():
    """For torch, which loads the entry point. Importing this module has done it all."""


def synchronized():
    """How often this process has waited for the device."""
    return torch.ops.stand_in.synchronized()


def _register():
    # The CPU's mse_loss resizes its output tensor, and warns about it.
    warnings.filterwarnings("ignore", message="An output with one or more elements was resized")
    torch.ops.load_library(os.environ[LIBRARY])
    torch.utils.rename_privateuse1_backend(NAME)
    module = types.ModuleType(f"torch.{NAME}")
    module.is_available = lambda: True
    module.device_count = lambda: 2
    module.current_device = torch.accelerator.current_device_index
    module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    # It draws from the processor's generator.
    module.manual_seed = module.manual_seed_all = lambda seed: None
    module.get_rng_state = lambda device=None: torch.zeros(0)
    module.set_rng_state = lambda state, device=None: None
    torch._register_device_module(NAME, module)
    torch.utils.generate_methods_for_privateuse1_backend()


_register()
