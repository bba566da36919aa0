"""Guessing ahead: who drafts, how far, and what it costs.

A drafter proposes tokens; a length policy says how many to ask for and how many of them to verify,
from what forwards cost and how many drafts were right.
"""
