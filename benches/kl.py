"""Distance of the logits from an exact float32 forward: `python benches/kl.py [MODEL] [TOKENS]`.

Prints mean and largest KL divergence in nats and the share of equal most likely tokens, over 512
tokens of technical English by default. The exact forward is tests/reference.py.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent / "tests"
sys.path.insert(0, str(TESTS))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m", help="name or GGUF file")
    parser.add_argument(
        "tokens",
        nargs="?",
        type=Path,
        default=TESTS / "data" / "kl_tokens.txt",
        help="file of token ids separated by white space",
    )
    arguments = parser.parse_args()

    import specrs
    from reference import Reference, kl

    path = specrs.pull(arguments.model)
    tokens = [int(word) for word in arguments.tokens.read_text().split()]
    exact = Reference(path).logits(tokens)
    llm = specrs.Llama(path)
    logits = llm.session().forward_all_positions(tokens)
    rows = kl(exact, logits)
    agreement = (exact.argmax(-1) == logits.argmax(-1)).mean()
    print(f"{path.name}, kernels {llm.kernels}, {len(tokens)} tokens")
    print(f"KL mean {rows.mean():.5f}, max {rows.max():.4f} nats; same argmax {agreement:.4f}")


if __name__ == "__main__":
    main()
