"""`python -m bench [SCENARIO ...]`: runs the scenarios, prints and writes their table."""

import argparse

from bench.report import describe, write_plot, write_table
from bench.scenarios import SCENARIOS


def main() -> None:
    """Run what was asked for, all by default."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("scenario", nargs="*", help=f"any of {', '.join(SCENARIOS)}; all by default")
    names = parser.parse_args().scenario or list(SCENARIOS)
    results = {}
    for name in names:
        print(f"{name}: {describe(name)}", flush=True)
        results[name] = SCENARIOS[name]()
        for row in results[name]:
            print("  " + "  ".join(row), flush=True)
    print(f"written to {write_table(results)}", write_plot(results) or "")


if __name__ == "__main__":
    main()
