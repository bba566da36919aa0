"""Conversations: from messages to the ids a model expects, by the chat template in its file.

The template runs in a process of its own with limits, and what stands in a message stays text.
"""
