"""The gate: conditions on an evaluation before its policy may become champion; see `verdict`."""

from tasks.gate.gate_checks import Check
from tasks.gate.gate_config import ApprovalConfig, GateConfig
from tasks.gate.verdict import GateOutcome, Verdict, as_list, as_table, judge

__all__ = [
    "ApprovalConfig",
    "Check",
    "GateConfig",
    "GateOutcome",
    "Verdict",
    "as_list",
    "as_table",
    "judge",
]
