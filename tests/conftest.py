"""torchvision's wheel is built for CUDA and fails beside a CPU build of torch; timm and transformers import it."""

import importlib
import signal
import sys

import torch


def mended():
    """A library with the two operators whose absence stops `import torchvision`; None where nothing is missing."""
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return None
    except RuntimeError as missing:
        if "torchvision::" not in str(missing):
            raise
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        importlib.import_module("torchvision")
        return library
    return None


LIBRARY = mended()  # the operators are gone when it is

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background job; tests of Ctrl-C must hear it
    signal.signal(signal.SIGINT, signal.default_int_handler)
