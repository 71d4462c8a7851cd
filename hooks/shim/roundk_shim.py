"""The `torch.backends` entry point of a job under `roundk run` whose Python may not have roundk installed."""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))


def autoload() -> None:
    """Start the recorder: torch calls this at the end of `import torch`."""
    try:
        try:
            from roundk.hooks import autoload as installed
        except ImportError:
            sys.path.append(os.path.join(_here, "lib"))
            from roundk.hooks import autoload as installed
        installed.start(os.path.join(_here, "config.json"))
    except Exception as error:  # an exception here would make `import torch` fail
        sys.stderr.write(f"roundk: this process is not recorded: {error!r}\n")
