"""Reads a Dockerfile's instructions, as far as the tests need them."""

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of one stage, its lines joined."""

    stage: str
    name: str
    arguments: str


def read_instructions(path: Path) -> list[Instruction]:
    """Return the instructions in order; the stage of those before the first FROM is empty."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    instructions, stage = [], ""
    for line in filter(None, joined.splitlines()):
        name, _, arguments = line.partition(" ")
        if name == "FROM":
            stage = arguments.split(" AS ")[-1]
        instructions.append(Instruction(stage, name, arguments.strip()))
    return instructions


def stage_chain(instructions: list[Instruction], target: str) -> list[str]:
    """Return the stages that a target is built on, itself last."""
    sources = {each.stage: each.arguments.split()[0] for each in instructions if each.name == "FROM"}
    chain = [target]
    while sources[chain[0]] in sources:
        chain.insert(0, sources[chain[0]])
    return chain
