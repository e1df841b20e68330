"""Reinforcement learning: features of a problem, the policy, how it learns, and how it was pretrained."""
