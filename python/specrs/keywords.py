"""Keyword arguments that other engines have: what they are called here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

PEERS = {
    # loading
    "model_path": "path",
    "n_threads": "threads",
    "num_threads": "threads",
    "n_threads_batch": "threads",
    "num_ctx": "n_ctx",
    "context_length": "n_ctx",
    "max_model_len": "n_ctx",
    "max_seq_len": "n_ctx",
    "n_gpu_layers": "device",
    # length and end
    "max_new_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "max_length": "max_tokens",
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "stop_sequences": "stop",
    "stop_strings": "stop",
    "stop_words": "stop",
    "eos_token_id": "stop_token_ids",
    # sampling
    "temp": "temperature",
    "do_sample": "temperature",
    "repeat_penalty": "repetition_penalty",
    "random_seed": "seed",
    "logits_processors": "logits_processor",
    "top_logprobs": "logprobs",
    # speculation
    "draft_model": "drafter",
    "assistant_model": "drafter",
    "prompt_lookup_num_tokens": "drafter",
    "num_draft_tokens": "draft_length",
    "num_assistant_tokens": "draft_length",
    "num_speculative_tokens": "draft_length",
    # chats and answers in a form
    "functions": "tools",
    "function_call": "tool_choice",
    "chat_template_kwargs": "template_variables",
    "enable_thinking": "template_variables",
    "documents": "template_variables",
    "response_format": "grammar",
    "json_schema": "grammar",
    "guided_json": "grammar",
    "guided_regex": "grammar",
    "guided_grammar": "grammar",
    "structured_outputs": "grammar",
}
"""Ours, by the names that transformers, vLLM, llama.cpp and its Python package, Ollama, MLX and
OpenAI's API have for it."""


def unexpected(
    method: str, name: str, known: Collection[str], elsewhere: Mapping[str, Collection[str]]
) -> TypeError:
    """Return the error for a keyword argument that a method does not have.

    It says where the argument belongs, and what it is called there, if that is known.

    Args:
        method: The method that was called.
        name: The argument.
        known: Those that the method has.
        elsewhere: Those that others have, by a form such as "specrs.Sampling({}=...)".
    """
    ours = PEERS.get(name, name)
    hint = ""
    if ours in known:
        hint = f"; it is {ours}= here"
    else:
        place = next((form for form, names in elsewhere.items() if ours in names), None)
        if place is not None:
            hint = f"; it belongs to {place.format(ours)}"
    return TypeError(f"{method}() got an unexpected keyword argument {name!r}{hint}")


def check_known(
    method: str,
    names: Iterable[str],
    known: Collection[str],
    elsewhere: Mapping[str, Collection[str]],
) -> None:
    """Raise the error of `unexpected` for the first of `names` that is not among the known ones."""
    for name in names:
        if name not in known:
            raise unexpected(method, name, known, elsewhere)
