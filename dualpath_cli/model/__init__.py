"""The model: the equations of the paper.

Nothing here knows about training or decoding.
"""

from dualpath_cli.model.language_model import DualPathLM
from dualpath_cli.model.layer_pass import AuxiliaryLoss
from dualpath_cli.model.routing import LayerTrace, RoutingTrace
from dualpath_cli.spec.intervention import Intervention

__all__ = ["AuxiliaryLoss", "DualPathLM", "Intervention", "LayerTrace", "RoutingTrace"]
