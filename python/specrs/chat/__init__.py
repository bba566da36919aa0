"""Conversations: from messages to the ids a model expects, by the chat template in its file.

The template runs in a sandbox with bounded work, and what stands in a message stays text.
"""
