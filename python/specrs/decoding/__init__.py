"""The decoding loop: draft, evaluate, pick, verify; and the records of what it did.

Plain decoding is speculation with an empty draft, so there is one loop. Its steps add up to
statistics, make a trace, and can be replayed without the model.
"""
