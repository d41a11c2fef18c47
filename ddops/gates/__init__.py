"""Proof that a started engine is the release and answers right."""

from ddops.gates.golden import Golden, judge_golden, nearness, needs_ties, parse_golden
from ddops.gates.ladder import judge_g0, judge_g1, judge_g2, judge_g3
from ddops.gates.observation import (
    Answer,
    Job,
    Launch,
    Observation,
    Port,
    Rank,
    Unit,
    observation_of,
    observe,
    parse_observation,
)
from ddops.gates.soak import judge_soak, soaked

__all__ = [
    "Answer",
    "Golden",
    "Job",
    "Launch",
    "Observation",
    "Port",
    "Rank",
    "Unit",
    "judge_g0",
    "judge_g1",
    "judge_g2",
    "judge_g3",
    "judge_golden",
    "judge_soak",
    "nearness",
    "needs_ties",
    "observation_of",
    "observe",
    "parse_golden",
    "parse_observation",
    "soaked",
]
