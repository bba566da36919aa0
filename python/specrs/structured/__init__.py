"""Structured output: texts that a grammar allows, and no others.

A grammar is compiled once for the tokens of a model. Each generation then has a constraint, which
follows its tokens and tells which may come next. The work is llguidance's.
"""
