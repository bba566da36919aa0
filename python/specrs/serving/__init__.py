"""Many texts at once: requests that share every pass over the weights.

The scheduler decides over plain data who evaluates how many tokens in the next pass; a step runs
it. A batch does so on a thread of its own; `generate_many` and its kin stand on a batch. No bit of
a result depends on who else is there.
"""
